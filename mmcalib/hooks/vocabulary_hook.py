"""Before a training: the vocabulary of a text model."""

from __future__ import annotations

from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop
from torch import nn

from mmcalib.models.text_data_preprocessor import TextDataPreprocessor, most_frequent


@HOOKS.register_module()
class VocabularyHook(Hook):
    """Fit the vocabulary on the training split, and refuse weights trained on other posts.

    A training starts with :func:`fit_vocabulary`; a checkpoint that is resumed or loaded brings its
    own, which wins. A loaded checkpoint must have been trained on the training posts of the split
    in use (``training_posts`` of the dataset's ``metainfo``), since it may else have been trained
    on posts it is to be tested on.

    Raises:
        TypeError: If the model's data preprocessor has no vocabulary.
        ValueError: If the checkpoint was trained on other posts.
    """

    # Before hooks that copy the model, such as EMAHook.
    priority = 'VERY_HIGH'

    def before_run(self, runner) -> None:
        # A runner that only tests leaves its training loop unbuilt.
        if isinstance(runner._train_loop, BaseLoop):
            model = runner.model.module if is_model_wrapper(runner.model) else runner.model
            if not getattr(model.data_preprocessor, 'words', None):
                fit_vocabulary(model, runner.train_dataloader.dataset)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        trained = checkpoint.get('meta', {}).get('dataset_meta') or {}
        trained = trained.get('training_posts')
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if not isinstance(loop, BaseLoop):
                continue
            here = loop.dataloader.dataset.metainfo.get('training_posts')
            if trained and here and trained != here:
                raise ValueError(
                    f'the checkpoint was trained on {trained}, but this data set has {here}: '
                    'use the data, protocol and seed of its training, or posts that it was '
                    'trained on would be tested'
                )


def fit_vocabulary(model: nn.Module, dataset: BaseDataset) -> None:
    """Set the vocabulary of a text model to the most frequent words of a dataset, with vectors.

    Args:
        model: Has a :class:`mmcalib.models.TextDataPreprocessor` and a backbone with `set_words`.
        dataset: Its samples have a ``text``.
    """
    preprocessor = model.data_preprocessor
    if not isinstance(preprocessor, TextDataPreprocessor):
        raise TypeError(
            'VocabularyHook needs model.data_preprocessor=dict(type="TextDataPreprocessor"), got '
            f'{type(preprocessor).__name__}'
        )
    texts = (dataset.get_data_info(index)['text'] for index in range(len(dataset)))
    words = most_frequent(texts, preprocessor.num_words)
    preprocessor.set_words(words)
    model.backbone.set_words(words)
    print_log(
        f'Vocabulary: the {len(words)} most frequent words of {len(dataset)} training texts.',
        logger='current',
    )
