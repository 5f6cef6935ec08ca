"""The facts of a training in its checkpoints, and no resume of another training."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmcalib.checks import UserError
from mmcalib.record import differences
from mmcalib.runs.checkpoint import check_classes, checkpoint_of, classes_of, fill
from mmcalib.runs.model import FACTS, facts_of


class RunFactsHook(Hook):
    """Writes loss and training into checkpoints, and refuses to resume those of another one.

    Args:
        facts: Of :func:`~mmcalib.runs.model.facts_in`.

    Raises:
        UserError: For a resume under another loss or model, whose result would stand in the row of
            the new one; with weights that do not fill the model; on other classes.
    """

    def __init__(self, facts: dict) -> None:
        self.facts = facts

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if not runner._resume:
            return
        meta, path = checkpoint.get('meta') or {}, runner._load_from
        earlier = facts_of(meta)
        if earlier:
            was, now = (
                {'loss': each['loss'], 'model': each['training']['model']}
                for each in (earlier, self.facts)
            )
            if wrong := next(differences(was, now), None):
                raise UserError(
                    f'{path} is from another training, {wrong}: resume it with its own config, or '
                    'start anew in another --work-dir, from its weights if you like '
                    f'(--cfg-options load_from={path})'
                )
            # A training that is resumed still started from what it first started from.
            if 'load_from' in earlier['training']:
                self.facts['training']['load_from'] = earlier['training']['load_from']
        here = classes_of(getattr(runner.train_dataloader.dataset, 'metainfo', None))
        check_classes(classes_of(meta.get('dataset_meta')), here, f'{path} and the train set')
        model = getattr(runner.model, 'module', runner.model)
        fill(model, checkpoint_of(checkpoint, str(path)), resumed=True)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'][FACTS] = self.facts
