"""The error for a user's mistake, and the name that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# Names that 0.3.0 was the last to have, and what to do; for one release. Types are capitalised, and
# stand before a point and their option.
GONE = {
    'CPCLoss': 'use MarginLabelSmoothingLoss',
    'TextDataPreprocessor': 'leave it out, Newsgroups20 gives ids',
    'PackText': "use PackInputs with input_key='ids'",
    'VocabularyHook': 'use WordVectorsHook',
    'DisagreementMetric': "use ImageScoreMetric(scores=['mutual_information'])",
    'expected_dice': 'use soft_dice',
    'variance': 'use mutual_information',
    'venn-abers': 'use platt or beta',
    'boundary-temperatures': 'use class-temperatures',
    'local': 'use class-conditional',
    '--no-pin-memory': 'use --cfg-options train_dataloader.pin_memory=False',
    '--no-persistent-workers': 'use --cfg-options train_dataloader.persistent_workers=False',
    '--image': 'leave it out, the sheet of one image is gone',
    '--severity': 'leave it out, the sheet of one image is gone',
    '--all': 'use --samples',
    '--one-at-a-time': 'leave it out, or predict with fewer checkpoints at a time',
    '--interval': 'leave it out: every image is drawn',
    '--wait-time': 'leave it out',
    '--out-item': 'leave it out: --out has the predictions, results.json the metrics',
    'LoadMembersHook': 'leave it out, and call mmcalib.runs.model.load',
    '--holdout': 'leave it out, since the figures are cross-fitted',
    'ClasswiseAECE': 'use mmcalib.metrics.classwise_adaptive_calibration_error',
    'TACE': 'use mmcalib.metrics.classwise_adaptive_calibration_error',
    'convention': 'leave it out, and call the other package for its number',
    'AdaFocalHook': 'use LearnFromValidationHook',
    'CALSHook': 'use LearnFromValidationHook',
    'LossScheduleHook.mode': 'use values={epoch: value}',
    'LossScheduleHook.factor': 'use values={epoch: value}',
    'LossScheduleHook.interval': 'use values={epoch: value}',
    'LossScheduleHook.cap': 'use values={epoch: value}',
    'LogitDistanceHook.module': 'leave it out, the loss of the main head is watched',
    **{
        f'ReliabilityDiagramHook.{name}': 'use tools/visualize.py after the test'
        for name in ('num_bins', 'equal_mass', 'zoom', 'risk_coverage', 'boundary_curve', 'name')
    },
}


class UserError(ValueError):
    """A mistake in a config, a checkpoint, a file or the data that the user can mend.

    Its message has problem, value and remedy.
    """

    @property
    def reason(self) -> str:
        """The message without the traceback that a worker process puts around it."""
        return str(self).rpartition(f'{type(self).__name__}: ')[2].strip()


def nearest(name: object, known: Iterable[object], *, likeness: float = 0.7) -> str | None:
    """Return the known name that is most like another one, None if none is like it.

    Args:
        name: The one that does not exist; what is not a text is like none.
        known: Those that do.
        likeness: The least that counts, from 0 to 1.
    """
    if not isinstance(name, str):
        return None
    by_lower = {each.lower(): each for each in known if isinstance(each, str)}
    found = get_close_matches(name.lower(), by_lower, 1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def suggestion(name: object, known: Iterable[object], *, of: str = '') -> str:
    """Return ``; did you mean X?``, the end of an error, or nothing where no name is near.

    Of a name that an earlier version had, what to use in its place. An option is `of` a type.
    """
    gone = GONE.get(f'{of}.{name}', GONE.get(name))
    if gone:
        return f'; {name} is gone since 0.3.0: {gone}'
    found = nearest(name, known, likeness=0.6)  # two letters of ECE swapped
    return f'; did you mean {found}?' if found else ''


def did_you_mean(name: str, known: Iterable[str], *, of: str = '') -> str:
    """Return :func:`suggestion`, or all known names where none is near."""
    known = list(known)
    return suggestion(name, known, of=of) or f'; there are {", ".join(sorted(known))}'
