"""Evaluations in words."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.reports.differences_in_words import in_words

# What :func:`evaluation_text` leaves out, since it is the same in all runs of a table.
DETAILS = ('data_options', 'pipeline', 'inference', 'ignore_index')


def evaluation_text(evaluation: Mapping) -> str:
    """Return the test set and the options of the calibration metric."""
    data = evaluation.get('dataset', {})
    names = [str(value) for key, value in data.items() if key != 'samples']
    parts = [f'{data.get("samples", 0):,} samples of {" ".join(names)}']
    if 'protocol' in evaluation:
        options = [f'protocol {evaluation["protocol"]}', f'{evaluation.get("num_bins")} bins']
        if evaluation.get('convention'):
            options.append(evaluation['convention'])
        parts += options
        for name, others in evaluation.get('other_metrics', {}).items():
            unlike = [f'{k} {v}' for k, v in others.items() if evaluation.get(k) != v]
            parts.append(f'but {name} with {", ".join(unlike)}'.replace('_', ' '))
    elif 'unseen' not in data:
        parts.append('no calibration metric')
    return ', '.join([*parts, *(['test-time augmentation'] if evaluation.get('tta') else [])])


def other_evaluation_text(evaluation: Mapping, reference: Mapping | None) -> str:
    """Return an evaluation in words, with the details in which it differs from a reference."""
    text = evaluation_text(evaluation)
    if reference is None:
        return text
    both = [{key: each[key] for key in DETAILS if key in each} for each in (evaluation, reference)]
    return ', '.join([text, *in_words(both)[0][0]])
