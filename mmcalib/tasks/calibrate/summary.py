"""The end of a calibration for people: a table before and after, and a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mmcalib.calibration.choose import FEW_GROUPS, INDISTINCT, LEAST_GROUPS, errors_from_one
from mmcalib.calibration.effect import worse_figures
from mmcalib.calibration.fit import data_sentences
from mmcalib.metrics.names import PREFIX, metric_heading, number_text

# What the figures of a choice are for, with enough independent images.
OF_MANY = (
    'The choice is for images like these. On those of another place or camera class frequencies '
    'differ: measure there, or take --method temperature.'
)


def print_calibration(calibration: Mapping, out: str) -> None:
    """Print the effect of a calibration, and whether it was a gain.

    Args:
        calibration: What :func:`~mmcalib.tasks.calibrate.calibrate.calibrate` returned.
        out: The file that was written.
    """
    if calibration.get('candidates'):
        Console().print(candidates_table(calibration))
        print(FEW_GROUPS if calibration['groups'] < LEAST_GROUPS else OF_MANY)
    scaled = calibration['method'] != 'none'
    keys = {f'{PREFIX}{name}': name for name in calibration['fitted']['before']}
    table = Table('split', '', *map(metric_heading, keys))
    for split, result in _measured(calibration):
        for when in ('before', 'after') if scaled else ('before',):
            figures = (number_text(result[when][name], key) for key, name in keys.items())
            table.add_row(split, when, *figures)
    Console().print(table)
    if not scaled:
        print(*_data_sentences(calibration), sep='\n')
        return
    print(*calibration_sentences(calibration), sep='\n')
    beside = f' and {Path(out).with_suffix(".py")}' if calibration.get('attached') else ''
    print(f'Written: {out}{beside}')


def candidates_table(calibration: Mapping) -> Table:
    """Return the methods that were compared, with the chosen one marked."""
    candidates = calibration['candidates']
    quality = 'accuracy' if candidates[0]['miou'] is None else 'mIoU'
    count, images = calibration['groups'], calibration['dataset']['samples']
    of = 'images' if count == images else f'groups of {images:,} images'
    heads = ('', 'method', 'NLL', 'above the best', quality, 'seconds a fit')
    table = Table(*heads, title=f'Cross-validated over {count:,} {of}')
    for found in candidates:
        above = f'{found["above_best"]:.4f} ± {found["standard_error"]:.4f}'
        figures = f'{found[quality.lower()]:.2f}', f'{found["seconds"]:.1f}'
        cells = [found['problem']] if found['problem'] else [f'{found["nll"]:.4f}', above, *figures]
        chosen = '→' if found['method'] == calibration['method'] else ''
        table.add_row(chosen, found['method'], *cells)
    return table


def calibration_sentences(calibration: Mapping) -> list[str]:
    """Return sentences about the fit, the fold, and every reason to keep the original instead."""
    sentences = [_fit_sentence(calibration)]
    threshold = calibration['threshold']
    what = 'class' if threshold is None else f'side of the threshold {threshold}'
    for split, result in _measured(calibration):
        of_split = '' if split == calibration['split'] else f' on {split}'
        count = f'{result["changed"]:,} of {result["num_predictions"]:,}'
        sentences.append(f'{count} predictions{of_split} changed {what}.')
    if calibration.get('layers'):  # those of a mean are in no layer
        sentences.append(
            f'Folded into {" and ".join(calibration["layers"])}: its probabilities equal the '
            f'scaled ones within {calibration["difference"]:.1e}.'
        )
    elif calibration.get('attached'):
        sentences.append(
            f'Attached behind the model, because {calibration["attached"]}. Test and run it with '
            'the config beside the checkpoint.'
        )
    return [*sentences, *_data_sentences(calibration), *no_gain(calibration)]


def _data_sentences(calibration: Mapping) -> list[str]:
    """Return what speaks against the data of a calibration."""
    sentences = [f'Warning: {reason}.' for reason in calibration['forced']]
    if calibration['limit']:
        sentences.append(
            f'A SMOKE RUN with --limit {calibration["limit"]}: its figures mean little.'
        )
    if calibration['groups'] == 1:
        sentences.append(
            'All images are of one group, so nothing tells how the scaling holds on others.'
        )
    elif calibration['groups'] < LEAST_GROUPS:
        sentences.append(
            f'Few images or groups ({calibration["groups"]}) tell little of others, by more than '
            'the standard error says: take more.'
        )
    accuracy = calibration['fitted']['before']['accuracy']
    return [
        *sentences,
        *data_sentences(calibration['information'], calibration['unlabelled'], accuracy),
    ]


def no_gain(calibration: Mapping) -> list[str]:
    """Return the signs that a calibration is no gain: a temperature of 1, or worse figures."""
    found = []
    if calibration['method'] == 'temperature':
        temperature = calibration['parameters']['temperature']
        error = calibration.get('standard_error', 0.0)
        if temperature == 1:
            found.append('No gain: a temperature of 1 changes nothing.')
        elif error > 0 and (distance := errors_from_one(temperature, error)) <= INDISTINCT:
            found.append(
                'No gain expected: a temperature of 1, which changes nothing, is only '
                f'{distance:.1f} standard errors away. The original may be as good.'
            )
    for split, result in _measured(calibration):
        if worse := worse_figures(result['before'], result['after']):
            found.append(f'Worse than before on {split}: {worse}.')
    return found


def _measured(calibration: Mapping) -> Iterator[tuple[str, Mapping]]:
    yield calibration['split'], calibration['fitted']
    if calibration['tested'] is not None and calibration['split'] != 'test':
        yield 'test', calibration['tested']


def _fit_sentence(calibration: Mapping) -> str:
    split, groups, folds = (calibration[key] for key in ('split', 'groups', 'folds'))
    text = f'Scaling by {calibration["method"]}'
    if calibration['method'] == 'temperature':
        text = f'Temperature {calibration["parameters"]["temperature"]:.4g}'
    if 'standard_error' in calibration:
        of = 'images' if groups == calibration['dataset']['samples'] else 'groups of images'
        text += f' ± {calibration["standard_error"]:.2g} (standard error over {groups:,} {of}'
        draw = calibration['sampling_error']
        text += f', ± {draw:.2g} of it from the draw)' if draw else ')'
    end = f'The figures of {split} after the fit come from the images it was fitted on.'
    if folds:
        end = (
            'Before and after are cross-fitted: each image is scored by a scaling fitted on the '
            f'other {folds - 1} of {folds} folds of the images.'
        )
    return (
        f'{text}, fitted on {calibration["num_fitted"]:,} of {calibration["num_predictions"]:,} '
        f'predictions on {split}. {end}'
    )
