"""A trained model on image files: the prediction for each, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, MODELS
from mmengine.structures import BaseDataElement
from torch.utils.data import DataLoader

from mmcalib.commands.predict.image_files import GREY_NOTE, check_image
from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import classes_of_head, has_several_labels, innermost_model
from mmcalib.openmmlab.sample_writing import disagreement_in
from mmcalib.openmmlab.samples import background_index, read_sample
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.objects import Objects, find_map_objects, map_confidence
from mmcalib.predictions.progress import progress
from mmcalib.runs.checkpoint import Checkpoint, class_names
from mmcalib.runs.checks import building
from mmcalib.runs.config_tree import find_pipelines, type_name, without_labels
from mmcalib.runs.runner import build_model
from mmcalib.visualization.pixels import as_rgb

LOADER_HINT = (
    'give it one that starts with LoadImageFromFile, in a config with this one as _base_; '
    'docs/howto/predict.md has one for the digits'
)
# Errors that a model raises at an image that it cannot predict.
NOT_PREDICTED = (AssertionError, RuntimeError, ValueError)


@dataclass
class Prediction:
    """The prediction of an image file, or the reason why there is none.

    Attributes:
        image: File.
        reason: Why there is no prediction, else empty.
        note: How the file was read if not as it is, such as grey pixels as colours; else empty.
        arrays: ``predicted`` and ``confidence``, ``(H, W)`` of a segmentor and ``()`` of a
            classifier; a classifier's ``probabilities`` ``(K,)``; a segmentor's ``objects``
            ``(H, W)``, the number of the object of each pixel, from 1 on, 0 for none;
            ``mutual_information`` in nats if the disagreement of a mean was asked for.
        objects: Objects of a segmentor in the order of their numbers, as ``objects.csv`` has them;
            ``found`` and ``calibrated_iou`` are None, since only `row` has what a validation adds.
        row: Scores of the image, as its file in ``scores/`` has them.
        pixels: ``(H, W, 3)`` uint8, RGB; None in the results of :func:`mmcalib.predict`.
    """

    image: Path
    reason: str = ''
    note: str = ''
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    objects: list[dict] = field(default_factory=list)
    row: dict = field(default_factory=dict)
    pixels: np.ndarray | None = None


class Predictor:
    """Model that predicts image files, by the test pipeline of its config without labels.

    Args:
        cfg: Config of either toolbox, as :func:`~mmcalib.runs.model.prepare_model` has left it.
        checkpoints: Checkpoint of each member.
        device: Device such as ``'cuda:1'``; None for a GPU if there is one.
        workers: Number of processes that read files.

    Attributes:
        classes: K names, those of the first checkpoint; numbers if it has none, or not K.
        palette: RGB colours of the classes, None if unknown.

    Raises:
        UserError: If a checkpoint does not fill its model, the model cannot be built or has several
            labels, or the pipeline loads no files.
    """

    def __init__(
        self,
        cfg: Config,
        checkpoints: Sequence[Checkpoint],
        *,
        device: str | None = None,
        workers: int = 0,
    ) -> None:
        loader = cfg.get('test_dataloader') or cfg.get('val_dataloader') or {}
        self.batch_size = loader.get('batch_size') or 1
        self.workers = workers
        load_file, *other_steps = steps_without_labels(loader.get('dataset'))
        in_scope = MODELS.switch_scope_and_registry(cfg.get('default_scope'))
        if device is None:
            device = 'cuda' if torch.cuda.is_available() else 'cpu'
        with in_scope:
            with building('the pipeline of the test data cannot be built: '):
                self._load_file = Compose([load_file])
                self._transform = Compose(other_steps)
            model = build_model(cfg, checkpoints)
            with building(f'device {device}: '):
                self.model = model.to(device)
        if has_several_labels(model):
            raise UserError('the head predicts each class by a sigmoid, and only a softmax is read')
        self.classes = checkpoints[0].classes
        self.palette = checkpoints[0].dataset_meta.get('palette')
        num_classes = classes_of_head(innermost_model(model))
        if num_classes not in (None, len(self.classes)):
            self.classes = [str(label) for label in range(num_classes)]
            self.palette = None
        else:
            check_class_order(cfg, checkpoints[0])

    def predict_files(
        self, images: Sequence[Path], *, show_progress: bool = False
    ) -> Iterator[Prediction]:
        """Yield the prediction of each file, in their order; images of one size share a batch."""
        loaded = DataLoader(
            images, batch_size=None, num_workers=self.workers, collate_fn=self._read
        )
        if show_progress:
            loaded = progress(loaded, 'Predicting')
        for shape, same_shape in groupby(loaded, key=lambda item: input_shape(item[1])):
            for batch in split_batches(same_shape, self.batch_size):
                if shape:
                    yield from self._predict(batch)
                else:  # The files cannot be read.
                    yield from (prediction for prediction, _ in batch)

    def _read(self, image: Path) -> tuple[Prediction, dict]:
        """Return a file without its prediction, and the input of the model, empty without one."""
        reason, note = check_image(image)
        if reason:
            return Prediction(image, reason), {}
        results = dict(img_path=str(image), sample_idx=0, seg_fields=[], reduce_zero_label=False)
        try:
            results = self._load_file(results)
            pixels = as_rgb(results['img'])
            is_grey = results['img'].ndim == 2 or results['img'].shape[2] == 1
            if is_grey:  # The pipeline reads grey pixels as what they are.
                note = note.replace(GREY_NOTE, '').strip('; ')
            return Prediction(image, note=note, pixels=pixels), self._transform(results)
        except Exception as error:  # A decoder or a transform may raise anything.
            return Prediction(image, f'{type(error).__name__}: {error}'), {}

    def _predict(self, batch: list[tuple[Prediction, dict]]) -> Iterator[Prediction]:
        """Yield the predictions of a batch; if it fails, predict each of its images alone."""
        inputs = [{key: item[key] for key in ('inputs', 'data_samples')} for _, item in batch]
        images = [prediction for prediction, _ in batch]
        try:
            with torch.no_grad(), full_precision():
                samples = self.model.test_step(pseudo_collate(inputs))
            results = [
                self._read_result(sample, str(prediction.image))
                for sample, prediction in zip(samples, images, strict=True)
            ]
        except NOT_PREDICTED as error:
            if len(batch) > 1:
                for item in batch:
                    yield from self._predict([item])
                return
            # A ValueError is a sentence of this package; others are named by their types.
            kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}: '
            yield Prediction(images[0].image, f'{kind}{error}')
            return
        for prediction, (arrays, objects) in zip(images, results, strict=True):
            prediction.arrays = arrays
            if objects is not None:
                prediction.objects = object_rows(objects, self.classes)
            yield prediction

    def _read_result(
        self, sample: BaseDataElement, name: str
    ) -> tuple[dict[str, np.ndarray], Objects | None]:
        """Return the arrays of a predicted sample, and the objects of a segmentor."""
        sample = sample.to_dict()
        predictions = read_sample(sample, name, labelled=False)
        predicted = predictions.predicted[0].cpu().numpy()
        if predictions.are_maps:
            background = background_index(self.classes)
            objects = find_map_objects(predictions, background=background)
            arrays = {
                'predicted': predicted,
                'confidence': map_confidence(predictions).cpu().numpy(),
                'objects': objects.number + 1,
            }
        else:
            objects = None
            probs = predictions.probs[0].float().cpu()
            arrays = {
                'predicted': predicted,
                'confidence': probs.amax().numpy(),
                'probabilities': probs.numpy(),
            }
        disagreement = disagreement_in(sample)
        if 'mutual_information' in disagreement:
            arrays['mutual_information'] = disagreement['mutual_information']
        return arrays, objects


def split_batches(
    items: Iterable[tuple[Prediction, dict]], size: int
) -> Iterator[list[tuple[Prediction, dict]]]:
    """Yield lists of at most `size` consecutive items."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def steps_without_labels(dataset: object) -> list[Mapping]:
    """Return the transforms of a dataset's config that an image without labels goes through.

    Raises:
        UserError: If the first does not load an image file.
    """
    holders = find_pipelines(dataset)
    pipeline = without_labels(holders[0]['pipeline']) if holders else []
    if not pipeline:
        raise UserError(f'the config has no test_dataloader with a pipeline: {LOADER_HINT}')
    first = type_name(pipeline[0]['type'])
    if not first.startswith('Load') or not first.endswith('FromFile'):
        raise UserError(
            f"the config's test pipeline starts with {first}, so it reads no image files: "
            f'{LOADER_HINT}'
        )
    return pipeline


def input_shape(data: Mapping) -> tuple[int, ...]:
    """Return the shape of an input of the model, those of all views in turn; empty without one."""
    inputs = data.get('inputs', ())
    views = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    shape = []
    for view in views:
        shape += view.shape
    return tuple(shape)


def check_class_order(cfg: Config, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose classes are named in another order than in the config's data.

    Predictions would have the names of other classes. Names that the data do not have are no
    matter, nor are data that are not on this machine.

    Args:
        cfg: Config with the data.
        checkpoint: Checkpoint whose names predictions have.
    """
    for split in ('train', 'val', 'test'):
        loader = cfg.get(f'{split}_dataloader') or {}
        for names in class_orders(loader.get('dataset') or {}, cfg.get('default_scope')):
            for label, (trained, name) in enumerate(zip(checkpoint.classes, names, strict=False)):
                if trained != name and trained in names:
                    raise UserError(
                        f'{checkpoint.path} names class {label} {trained!r}, which is class '
                        f'{names.index(trained)} of the {split} data of the config: predict by the '
                        'config of its training, whose names are those of its folders; or write '
                        "the names in the order of the labels into meta['dataset_meta']['classes'] "
                        'of the checkpoint'
                    )


def class_orders(dataset: Mapping, scope: str | None) -> list[list[str]]:
    """Return the names of the classes of a config's data, and of the folders that are its labels.

    No images are listed.
    """
    orders = []
    parts = [dataset.get('dataset'), *(dataset.get('datasets') or ())]
    inner_parts = [part for part in parts if isinstance(part, Mapping)]
    for part in inner_parts:
        orders += class_orders(part, scope)
    if inner_parts:
        return orders
    with suppress(Exception), DATASETS.switch_scope_and_registry(scope) as registry:
        built = registry.build({**dataset, 'pipeline': [], 'lazy_init': True})
        orders.append(class_names(built))
        if hasattr(built, '_find_samples') and not built.ann_file:  # mmpretrain's CustomDataset
            folders = [path for path in Path(built.img_prefix).iterdir() if path.is_dir()]
            orders.append(sorted(path.name for path in folders))
    return orders


def object_rows(objects: Objects, classes: Sequence[str]) -> list[dict]:
    """Return the objects as rows of ``objects.csv``, without what a validation adds."""
    rows = []
    for index in range(len(objects)):
        label = int(objects.label[index])
        pixels = int(objects.pixels[index])
        rows.append({
            'object': index + 1,
            'label': label,
            'name': classes[label],
            'pixels': pixels,
            'share': pixels / objects.number.size,
            'confidence': float(objects.confidence[index]),
            'expected_iou': float(objects.expected_iou[index]),
            'found': None,
            'calibrated_iou': None,
            'box': objects.box[index].tolist(),
        })  # fmt: skip
    return rows
