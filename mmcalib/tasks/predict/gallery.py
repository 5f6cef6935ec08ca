"""A page of the images in a folder of predictions, those to look at first on top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from urllib.parse import quote

from mmcalib.reports.page import TEMPLATES
from mmcalib.work_dir import whole_file

GALLERY = 'gallery.html'
ROWS, PICTURES = 'predictions.jsonl', 'pictures'
FEW = 5  # objects that are named below an image
DOUBTFUL = 0.5
PAGE = "{% extends 'page.html' %}{% block body %}{{ body | safe }}{% endblock %}"


def write_gallery(folder: str | Path) -> Path:
    """Write ``gallery.html`` into a folder of predictions, and return its path.

    It opens without a server, and shows the pictures that lie in the folder. Images come in the
    order of how well they are expected to be predicted, the worst first: by their expected accuracy
    where a validation gives one, else by their mean confidence. Above each are the largest objects
    that are rather wrong than right.

    Raises:
        FileNotFoundError: If the folder has no predictions.
    """
    folder = Path(folder)
    if not (folder / ROWS).is_file():
        raise FileNotFoundError(f'{folder} has no {ROWS}: it is not a folder of predictions')
    with (folder / ROWS).open(encoding='utf-8') as file:
        rows = [json.loads(line) for line in file]
    measured = all(row['expected_accuracy'] is not None for row in rows)
    key = 'expected_accuracy' if measured else 'confidence'
    rows.sort(key=lambda row: row[key])
    words = key.replace('_', ' ')
    intro = f'{len(rows):,} images, lowest {words} first.'
    objects = [found for row in rows for found in row['objects'] or ()]
    if objects:
        calibrated = objects[0]['found'] is not None
        meaning = 'its probability of an IoU above 0.5' if calibrated else 'its expected IoU'
        intro += f' In brackets: the number of an object, and {meaning}.'
    parts = [f'<p>{intro}</p>']
    parts += [_figure(row, words, row[key]) for row in rows]
    page = TEMPLATES.from_string(PAGE)
    text = page.render(title='Predictions to look at', body='\n'.join(parts))
    with whole_file(folder / GALLERY) as path:
        # What is no text in a file's name is written as an escape.
        path.write_text(text, encoding='utf-8', errors='backslashreplace')
    return folder / GALLERY


def _figure(row: Mapping, words: str, value: float) -> str:
    name = escape(Path(row['image']).name)
    lines = [f'<b>{name}</b>: {words} {100 * value:.1f} %', *map(escape, _remarks(row))]
    link = quote(f'{PICTURES}/{row["files"]}.png', errors='surrogateescape')
    return (
        f'<figure><figcaption>{"<br>".join(lines)}</figcaption>'
        f'<img alt="{name}" loading="lazy" src="{link}"></figure>'
    )


def _remarks(row: Mapping) -> list[str]:
    """Return what to look at in an image."""
    if row['label'] is not None:
        return [f'{row["name"]}' + ('' if row['kept'] else ', not above the threshold')]
    if not row['objects']:
        return ['no object was found']
    calibrated = row['objects'][0]['found'] is not None
    score = 'found' if calibrated else 'expected_iou'
    text = 'probably have an IoU' if calibrated else 'have an expected IoU'
    objects = sorted(row['objects'], key=lambda found: -found['pixels'])
    doubtful = [found for found in objects if found[score] < DOUBTFUL]
    count = f'{len(objects)} object{"s" * (len(objects) != 1)}'
    if not doubtful:
        least = min(objects, key=lambda found: found[score])
        return [f'{count}, the least trusted: {_named(least, score)}']
    named = ', '.join(_named(found, score) for found in doubtful[:FEW])
    return [f'{len(doubtful)} of {count} {text} below {DOUBTFUL:g}, the largest: {named}']


def _named(found: Mapping, score: str) -> str:
    return f'{found["name"]} (no. {found["object"]}, {100 * found[score]:.0f} %)'
