"""The record of a test as a row of a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from mmcalib.record import is_ensemble, read_record
from mmcalib.reports.model_labels import model_label


@dataclass
class ReportedRun:
    """A tested run, with the parts of its record."""

    path: str
    experiment: str
    metrics: dict[str, float]
    seed: int | None = None
    loss: dict | None = None
    losses: list[dict] = field(default_factory=list)
    trained: dict | None = None
    calibration: dict | None = None
    model: dict | None = None
    limit: int | None = None
    training: dict = field(default_factory=dict)
    evaluation: dict = field(default_factory=dict)
    date: str = ''
    score: str | None = None  # by which unseen classes were told from the others
    file: str | None = None  # of weights, where a folder has several of a loss and seed
    split: str = 'test'

    @property
    def config(self) -> dict:
        """The trained config without the loss."""
        return self.trained['config'] if self.trained else {}

    @property
    def is_ensemble(self) -> bool:
        """Whether it stands for more than a network that predicts an image once."""
        return self.model is not None and is_ensemble(self.model)

    @property
    def is_shifted(self) -> bool:
        """Whether it stands for tests on shifted data."""
        return 'shift' in self.evaluation.get('dataset', {})

    @property
    def length(self) -> str:
        """The planned length of the training."""
        for key in ('epochs', 'iterations'):
            if self.training.get(key):
                return f'{self.training[key]} {key}'
        return 'unknown length'

    @property
    def label(self) -> str:
        """The loss, the steps after the training, and the differences from other runs of both."""
        name = model_label(
            self.loss,
            self.calibration,
            self.model,
            experiment=self.experiment,
            losses=self.losses,
        )
        name = f'{name} by {self.score}' if self.score else name
        return f'{name}, {self.file}' if self.file else name


def read_results(path: Path) -> ReportedRun:
    """Read a results.json.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is cut off or another file.
    """
    record = read_record(path)
    known = ReportedRun.__dataclass_fields__.keys() & record.keys()
    # A confusion matrix, say, is no figure.
    metrics = {key: value for key, value in record['metrics'].items() if isinstance(value, Real)}
    run = {key: record[key] for key in known}
    return ReportedRun(**{**run, 'path': str(path.parent), 'metrics': metrics})
