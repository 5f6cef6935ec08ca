"""Finds the best checkpoint again after a work dir was copied or moved."""

from __future__ import annotations

from pathlib import Path

from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmcalib.hooks.accuracy_floor_hook import CANDIDATES


class MovedCheckpoints(Hook):
    """Replaces the absolute paths that a resumed checkpoint names by those in the run's own folder.

    Otherwise the training would compare with, and remove, files of the folder it was copied from.
    """

    def before_train(self, runner: Runner) -> None:
        """Before ``CheckpointHook`` reads them."""
        hub = runner.message_hub
        for hook in runner.hooks:
            if not isinstance(hook, CheckpointHook):
                continue
            folder = Path(hook.out_dir or runner.work_dir)
            if hook.out_dir and hook.out_dir != runner.work_dir:
                folder /= Path(runner.work_dir).name
            for key, value in list(hub.runtime_info.items()):
                if key.startswith('best_ckpt') and value:
                    hub.update_info(key, str(folder / Path(value).name))
                elif key == CANDIDATES:
                    own = [
                        {**each, 'path': str(folder / Path(each['path']).name)} for each in value
                    ]
                    hub.update_info(key, own)
