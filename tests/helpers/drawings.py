"""Bins, statistics and views with random content for figures, and checks of drawn figures."""

import numpy as np
import torch

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.bins import bin_index, bin_table
from mmcalib.metrics.metric_text import ECE
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.reports.figures import from_files as figures
from mmcalib.visualization import ConfidenceView, to_rgb


def table(num_bins=10, n=500, seed=0):
    torch.manual_seed(seed)
    conf = torch.rand(n).sqrt()
    correct = torch.rand(n) < conf**2
    return bin_table(bin_index(conf, num_bins), conf, correct, num_bins)


def statistics(cells=None, *, protocol='pooled', num_bins=10, **tables):
    """Return the statistics of an evaluation with these bins of confidences."""
    cells = table(num_bins) if cells is None else cells
    metrics = {}
    other_tables = {}
    for name, value in tables.items():
        if name.isupper():
            metrics[name] = value
        else:
            other_tables[name] = value
    narrow_bins = cells[:, cells[0] > 0]
    return CalibrationStatistics(metrics, protocol, num_bins, narrow_bins, **other_tables)


def measured_statistics(samples):
    """Return the statistics that a CalibrationMetric keeps of data samples."""
    metric = CalibrationMetric(['ECE', 'AECE'])
    metric.process(None, samples)
    metric.evaluate(len(samples))
    return metric.statistics


def view(index=0, size=(12, 20), num_classes=3, seed=0, name='image'):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, num_classes, size).astype(np.int16)
    label[0] = 255
    return ConfidenceView(
        index=index,
        name=f'{name} {index}',
        image=rng.integers(0, 256, (*size, 3)).astype(np.uint8),
        label=label,
        predicted=rng.integers(0, num_classes, size).astype(np.int16),
        conf=rng.random(size).astype(np.float16),
        valid=label != 255,
        table=table(seed=seed).numpy(),
    )


def sweep(values=(0.0, 0.05, 0.1), tested=(0.05,), quality='mIoU', parameter='alpha', **changes):
    """Return the content of a sweep.json: mIoU 60 and ECE 3 plus the value, on test data 5 more."""

    def metrics(value, shift=0):
        return [{quality: 60 + value + shift, ECE: 3 + value + shift}]

    rows = []
    for value in values:
        test = metrics(value, shift=5) if value in tested else []
        rows.append(dict(value=value, val=metrics(value), test=test, chosen=value in tested[:1]))
    return dict(experiment='ls/x', loss='LS', parameter=parameter, rows=rows) | changes


def words(figure):
    """Return all texts of a figure and of its axes."""
    from matplotlib.text import Text

    return ' '.join(text.get_text() for text in figure.findobj(Text))


def panels(figure):
    """Return the pixels of each confidence map, of axes that have some and are no colour bar."""
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    return [pixels for pixels in images if pixels.ndim == 3]


def captions(figure):
    return [axes.get_xlabel() for axes in figure.axes if ': ' in axes.get_xlabel()]


def check_nothing_is_cut(figure):
    """Check that legend, titles and labels of a figure lie in it."""
    to_rgb(figure)
    outer = figure.bbox.padded(1)
    texts = []
    for legend in figure.legends:
        texts += legend.get_texts()
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
    for text in texts:
        if text.get_text():
            box = text.get_window_extent()
            assert outer.x0 <= box.x0 and box.x1 <= outer.x1, text
            assert outer.y0 <= box.y0 and box.y1 <= outer.y1, text


def draw_runs(kind, paths, **options):
    """Draw a figure of runs as tools/visualize.py does."""
    return figures.figure_from_files(kind, paths, **options)
