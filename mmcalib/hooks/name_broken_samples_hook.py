"""Names the file of a sample that cannot be loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from mmengine.dataset import Compose
from mmengine.hooks import Hook
from mmengine.runner import Runner

# Where the toolboxes' samples say what is to be read.
FILES = ('img_path', 'seg_map_path')


class SampleError(RuntimeError):
    """A sample cannot be loaded."""

    @property
    def reason(self) -> str:
        """What is wrong, without the traceback that a worker process puts around it."""
        return str(self).rpartition(f'{type(self).__name__}: ')[2].strip()


class NamingPipeline(Compose):
    """A dataset's transforms, whose errors name the sample.

    Raises:
        SampleError: If one of them fails.
    """

    def __init__(self, pipeline: Compose) -> None:
        super().__init__(pipeline.transforms)

    def __call__(self, data: dict) -> dict | None:
        files = sample_files(data)
        name = ', '.join(files.values()) or data.get('path') or f'sample {data.get("sample_idx")}'
        try:
            return super().__call__(data)
        except Exception as error:
            empty = [problem for problem in map(file_problem, files.values()) if problem]
            reason = ', '.join(empty) or f'{type(error).__name__}: {error}'
            raise SampleError(f'cannot load {name}: {reason}') from error


class BrokenSamples(Hook):
    """Has errors while loading data name the file, as OpenCV's of an empty image does not."""

    def before_train(self, runner: Runner) -> None:
        name_samples(runner.train_dataloader.dataset)

    def before_val(self, runner: Runner) -> None:
        name_samples(runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        name_samples(runner.test_dataloader.dataset)


def name_samples(dataset: object) -> None:
    """Have the pipelines of a dataset, and of those that it wraps, name what they cannot load."""
    for part in wrapped(dataset):
        # Pipelines of other classes may have methods that others call.
        if type(getattr(part, 'pipeline', None)) is Compose:
            part.pipeline = NamingPipeline(part.pipeline)


def wrapped(dataset: object) -> Iterator[object]:
    """Yield a dataset, and those inside wrappers such as ConcatDataset."""
    yield dataset
    held = getattr(dataset, '__dict__', {})  # not what __getattr__ finds further in
    for part in [held.get('dataset'), held.get('_dataset'), *held.get('datasets', ())]:
        if part is not None:
            yield from wrapped(part)


def sample_files(data: Mapping) -> dict[str, str]:
    """Return the local files that a sample is read from, by their keys."""
    files = {key: data.get(key) for key in FILES}
    return {k: path for k, path in files.items() if isinstance(path, str) and '://' not in path}


def file_problem(path: str) -> str | None:
    """Return what keeps a file from being read, None if nothing does that a look can tell."""
    if not os.path.isfile(path):
        return f'there is no file {path}'
    return None if os.path.getsize(path) else f'{path} is empty (0 bytes)'
