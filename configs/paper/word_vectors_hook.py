"""The hook that gives a text model the vectors of its words."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop

from mmcalib.errors import UserError


@HOOKS.register_module()
class WordVectorsHook(Hook):
    """Hook that gives a text model the vectors of its words, and refuses weights of other words.

    A loaded checkpoint must have been trained with the vocabulary of the data in use
    (``metainfo['words']``), which is that of the training posts. Otherwise its ids mean other
    words, and it may have been trained on posts that it is to be tested on.

    Raises:
        ValueError: If the checkpoint was trained with other words.
    """

    # Before hooks that copy the model, such as EMAHook.
    priority = 'VERY_HIGH'

    def before_run(self, runner) -> None:
        # A runner that only tests leaves its training loop unbuilt.
        if isinstance(runner._train_loop, BaseLoop):
            words = runner.train_dataloader.dataset.metainfo['words']
            getattr(runner.model, 'module', runner.model).backbone.set_words(words)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        trained_words = (checkpoint.get('meta', {}).get('dataset_meta') or {}).get('words')
        if not trained_words:
            return
        for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
            if not isinstance(loop, BaseLoop):  # The runner has not built it.
                continue
            words = loop.dataloader.dataset.metainfo.get('words', trained_words)
            if words != trained_words:
                raise UserError(
                    'the checkpoint was trained on other posts than those of this data set: use '
                    'the data, protocol, seed and num_words of its training, or posts that it '
                    'was trained on would be tested'
                )
