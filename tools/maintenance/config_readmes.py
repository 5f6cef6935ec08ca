"""Pages of a folder of configs: the table in its README, the models in its metafile.

``write_config_readmes.py`` writes both out of the configs, ``docs/results`` and the paper's
published figures; a test holds them together. The prose around them is written by hand.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import mmengine
from quoted_numbers import measured_text, with_measured

from mmcalib.metrics.keys import AECE, ECE, HEADLINE, MIOU, QUALITIES, TOP1, metric_heading
from mmcalib.record import loss_label
from mmcalib.reports.paper_numbers import published_experiment, published_values

# By what the name of a config ends with, and starts with.
DATA = {
    'cifar10': 'CIFAR-10',
    'cifar10_finetune': 'A fifth of CIFAR-10',
    'cifar10_short': 'A fifth of CIFAR-10',
    'cub': 'CUB-200-2011',
    'cub_heldout': 'CUB-200-2011, held-out validation',
    'digit_scenes': 'Digit scenes',
    'digits': 'Noisy digits',
    '20news': '20 Newsgroups',
    'image_folder': 'Folders of images',
    'people_animals': 'VOC 2012 people and animals',
    'people_animals_long': 'VOC 2012 people and animals, 40 epochs',
    'tinyimagenet': 'Tiny-ImageNet',
    'tinyimagenet_finetune': 'Folders of Tiny-ImageNet',
    'voc': 'PASCAL VOC 2012',
    'voc_heldout': 'PASCAL VOC 2012, held-out validation',
}
NETWORKS = {
    'deeplabv3_r34': 'DeepLabV3, ResNet-34',
    'deeplabv3_r50': 'DeepLabV3, ResNet-50',
    'deeplabv3plus_efflite0': 'DeepLabV3+, EfficientNet-Lite0',
    'efflite0': 'EfficientNet-Lite0',
    'gpool_cnn': 'Global-pooling CNN',
    'resnet14': 'ResNet-14',
    'resnet50': 'ResNet-50',
    'resnet101': 'ResNet-101',
    'vit': 'ViT-B/16',
}
SMALL_NETWORKS = {'digits': 'Small ResNet', 'digit_scenes': 'Small U-Net'}
TASKS = {'mmpretrain': 'Image Classification', 'mmseg': 'Semantic Segmentation'}
METRICS = {TOP1: 'Top 1 Accuracy', MIOU: 'mIoU', ECE: 'ECE', AECE: 'AECE'}  # in metafiles
# Measured after a shorter training than the config's, as docs/results/newsgroups.md reports.
SHORTENED = ('gpool_cnn_20news',)
WITHOUT_MARGIN = '_m0'


class Experiment(NamedTuple):
    """A config of a folder.

    Attributes:
        name: Of its file, without the ending.
        toolbox: ``'mmpretrain'`` or ``'mmseg'``.
        loss: Type and parameters.
    """

    name: str
    toolbox: str
    loss: Mapping

    @property
    def data_and_network(self) -> str:
        """The name of data and network, which the configs of all losses share."""
        return self.name.removesuffix(WITHOUT_MARGIN)


def in_words(experiment: Experiment) -> tuple[str, str]:
    """Return the data and the network of a config.

    Raises:
        ValueError: If its name has one that is not known here.
    """
    name = experiment.data_and_network
    if name in SMALL_NETWORKS:
        return DATA[name], SMALL_NETWORKS[name]
    for data in DATA:
        network = name.removesuffix(f'_{data}')
        if network in NETWORKS and name == f'{network}_{data}':
            return DATA[data], NETWORKS[network]
    raise ValueError(f'{name}: add its data and network to tools/maintenance/config_readmes.py')


def with_results(page: str, experiments: Sequence[Experiment], measured: Mapping) -> str:
    """Return a README with its first table as it is to be: a row for each config.

    A README without one is all written by hand, and stays.

    Args:
        page: Markdown.
        experiments: The configs of its folder, by name.
        measured: Of :func:`~quoted_numbers.read_measured`.

    Raises:
        ValueError: If a config's name is not known.
    """
    lines = page.split('\n')
    start = next((i for i, line in enumerate(lines) if line.startswith('|')), None)
    if start is None:
        return page
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith('|'))
    figures = ['top-1 or mIoU (%)', *(metric_heading(key) for key in (ECE, AECE))]
    headings = [
        'config',
        'data',
        'network',
        'loss',
        *figures,
        *(f'the paper: {f}' for f in figures),
    ]
    table = [f'| {" | ".join(headings)} |', '|---|---|---|---|' + '--:|' * 6]
    for experiment in experiments:
        table += _rows(experiment, experiments, measured)
    return with_measured('\n'.join([*lines[:start], *table, *lines[end:]]), measured)


def with_models(
    metafile: str, folder: str, experiments: Sequence[Experiment], measured: Mapping
) -> str:
    """Return a metafile with its models as they are to be, and the metrics measured here.

    Args:
        metafile: YAML, with the collection that the models belong to.
        folder: Of the configs.
        experiments: The configs, by name.
        measured: As for :func:`with_results`.

    Raises:
        ValueError: If a config's name is not known.
    """
    content = mmengine.load(io.StringIO(metafile), file_format='yaml')
    (collection,) = content['Collections']
    collection['README'] = f'configs/{folder}/README.md'
    content['Models'] = []
    for experiment in experiments:
        data, network = in_words(experiment)
        result = {'Task': TASKS[experiment.toolbox], 'Dataset': data}
        row = measured.get(experiment.data_and_network, {}).get(loss_label(experiment.loss))
        if row and experiment.data_and_network not in SHORTENED:
            texts = {key: measured_text(row, key) for key in HEADLINE}
            result['Metrics'] = {
                METRICS[key]: float(text.split()[0]) for key, text in texts.items() if text
            }
        content['Models'].append(
            {
                'Name': f'{folder}_{experiment.name}',
                'In Collection': collection['Name'],
                'Metadata': {'Architecture': [network]},
                'Config': f'configs/{folder}/{experiment.name}.py',
                'Results': [result],
            }
        )
    return mmengine.dump(
        content, file_format='yaml', sort_keys=False, allow_unicode=True, width=100
    )


def _rows(
    experiment: Experiment, experiments: Sequence[Experiment], measured: Mapping
) -> Iterator[str]:
    """Yield the row of a config, and those measured with parameters that no config has."""
    name, label = experiment.data_and_network, loss_label(experiment.loss)
    found = measured.get(name, {})
    entry = published_experiment(name)
    paper = published_values(entry, experiment.loss) if entry else None
    link = f'[`{experiment.name}.py`]({experiment.name}.py)'
    yield _row(name, [link, *in_words(experiment), label], found, paper[1] if paper else {})
    if experiment.name != name:
        return
    configured = {loss_label(e.loss) for e in experiments if e.data_and_network == name}
    for other in found:
        if other not in configured and other.split()[0] == label.split()[0]:
            yield _row(name, ['', *in_words(experiment), other], found, {})


def _row(name: str, cells: list[str], found: Mapping, paper: Mapping) -> str:
    """Return a row, whose measured numbers are still to be filled in by the source it names."""
    numbers = ['–'] * 3
    if cells[-1] in found:
        mark = ' ¹' if name in SHORTENED else ''
        numbers = ['0.00'] * 3
        cells = [*cells[:-1], f'{cells[-1]}{mark} <!-- {name}: {cells[-1]} -->']
    quality = next((paper[key] for key in QUALITIES if key in paper), None)
    for value in (quality, paper.get(ECE), paper.get(AECE)):
        numbers.append('–' if value is None else f'{value:.2f}')
    return f'| {" | ".join([*cells, *numbers])} |'
