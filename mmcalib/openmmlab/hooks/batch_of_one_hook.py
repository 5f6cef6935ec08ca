"""The hook that refuses a batch of one image for which batch normalisation has one value."""

from __future__ import annotations

from functools import partial

from mmengine.dataset import DefaultSampler
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from mmcalib.errors import UserError

# Samplers that give each image once in an epoch.
EPOCH_SAMPLERS = (DefaultSampler, DistributedSampler, RandomSampler, SequentialSampler)


class BatchOfOneHook(Hook):
    """Hook that refuses, in the first step of a training, a last batch of one image.

    A layer that normalises one value of each image, such as one behind a global pooling, has no
    variance of a single image, so PyTorch ends the training with an error at the end of an epoch:
    lost hours. Whether a model has such a layer shows when it first runs.
    """

    def before_train(self, runner: Runner) -> None:
        self._handles = []
        loader = runner.train_dataloader
        reason = reason_for_batch_of_one(loader)
        if reason is None or runner.max_iters < len(loader):  # The last batch is never read.
            return
        for name, module in runner.model.named_modules():
            is_synchronised = isinstance(module, nn.SyncBatchNorm) and get_world_size() > 1
            if isinstance(module, _BatchNorm) and not is_synchronised:
                check = partial(check_normalised_values, name.removeprefix('module.'), reason)
                self._handles.append(module.register_forward_pre_hook(check))

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def reason_for_batch_of_one(loader: DataLoader) -> str | None:
    """Return why a loader gives a batch of one image, with the remedy; None if it gives none."""
    batch_size = loader.batch_size
    is_epoch = isinstance(loader.sampler, EPOCH_SAMPLERS)  # Others may go on without an end.
    num_images = len(loader.sampler) if is_epoch else None
    if num_images == 1:
        return 'each process has one image: take more images, or fewer processes'
    if batch_size == 1:
        return 'batches have one image: set train_dataloader.batch_size to 2 or more'
    # A batch sampler of a user has no batch size.
    if num_images is None or not batch_size or loader.drop_last or num_images % batch_size != 1:
        return None
    return (
        f'the last batch of an epoch has one image, of {num_images:,} in batches of {batch_size}: '
        'set train_dataloader.drop_last=True, or another batch_size'
    )


def check_normalised_values(
    name: str, reason: str, module: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    """Raise a UserError if a layer in training mode normalises one value of each image.

    Args:
        name: Name of the layer.
        reason: Reason for a batch of one image, with the remedy.
        module: The layer.
        inputs: Its inputs, ``(N, C)`` or ``(N, C, *)``.
    """
    if module.training and inputs[0][0, 0].numel() == 1:
        raise UserError(
            f'model.{name} normalises one value of each image, which one image alone does not '
            f'determine, and {reason}'
        )
