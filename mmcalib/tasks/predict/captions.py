"""The words below the picture of a predicted image."""

from __future__ import annotations

import math
import re
from pathlib import Path

from mmcalib.tasks.predict.prediction_scores import ImageScores

# What ends a line or is no text, and yet may be in a file's name.
UNPRINTABLE = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


def captions_of(scores: ImageScores, threshold: float) -> list[str]:
    """Return the lines below the picture of an image."""
    where, sure = printable(Path(scores.image).name), f'{100 * scores.confidence:.1f} %'
    if scores.label is None:
        kept = f'{100 * scores.kept:.1f} % of the pixels above {threshold:.6g}'
        lines = [f'{where}: mean confidence {sure}, {kept}']
    else:
        side = 'above' if scores.kept else 'not above'
        lines = [f'{where}: {scores.name}, {sure}, {side} {threshold:.6g}']
    if not math.isnan(scores.expected_accuracy):
        lines.append(f'expected accuracy {100 * scores.expected_accuracy:.1f} %')
        low, high = (100 * end for end in scores.accuracy_interval)
        if not math.isnan(low):
            lines[-1] += f', between {low:.1f} and {high:.1f} %'
    if scores.note:
        lines.append(f'the file: {scores.note}')
    return lines


def printable(text: str) -> str:
    """Return a text in a line of its own: what cannot be printed, as in a file's name, escaped."""
    return UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)
