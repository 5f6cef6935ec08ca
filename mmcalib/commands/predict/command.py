"""The command ``predict`` and :func:`mmcalib.predict`: images without labels, in order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mmengine.dist import all_gather_object, get_dist_info
from PIL import Image

from mmcalib.cli.predict import PredictFolderOptions, PredictOptions
from mmcalib.commands.predict.evidence import Evidence, check_options, read_evidence
from mmcalib.commands.predict.folder import SETTINGS, PredictionFolder
from mmcalib.commands.predict.image_files import find_images
from mmcalib.commands.predict.picture import draw_classification, draw_segmentation
from mmcalib.commands.predict.predictor import Prediction, Predictor, steps_without_labels
from mmcalib.commands.predict.rows import (
    gallery_page,
    image_row,
    legend_texts,
    picture_captions,
    summarize_rows,
    summary_lines,
)
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.members import split_members
from mmcalib.runs.config import load_config
from mmcalib.runs.model import prepare_model, read_networks
from mmcalib.runs.processes import join_processes, leave_processes
from mmcalib.runs.record import identity

INCOMPLETE = 3  # Exit status if some of the files have no prediction.
File = str | os.PathLike
Files = File | Sequence[File]


@dataclass(frozen=True)
class Predictions:
    """Predictions of several images.

    Attributes:
        rows: Scores of each image, as its file in ``scores/`` has them.
        unreadable: Files without a prediction, each with its reason.
        summary: Scores of all images together, as ``summary.json`` has them.
        images: Predictions with their arrays, in the order in which the files were named.
        classes: K names.
    """

    rows: list[dict]
    unreadable: list[Prediction]
    summary: dict
    images: list[Prediction]
    classes: list[str]


def predict(
    config: File, checkpoint: Files, images: Files, *, show_progress: bool = False, **options
) -> Predictions:
    """Predict image files with their confidences, and what to expect of them.

    All arrays stay in memory; ``tools/predict.py`` writes them to files, one image after the other.

    Args:
        config: Config file, of mmcalib, mmpretrain or mmseg.
        checkpoint: Its checkpoint; or several, of which some may have a config of their own as
            ``CONFIG.py:CHECKPOINT``, for the mean of their probabilities.
        images: Files, folders, patterns or lists, as
            :func:`~mmcalib.commands.predict.image_files.find_images` takes them.
        show_progress: Whether to show a bar on stderr.
        options: Options of :class:`~mmcalib.cli.predict.PredictOptions`.

    Raises:
        FileNotFoundError: If the config or the checkpoint does not exist.
        TypeError: If there is no such option.
        ValueError: If options, checkpoints or the validation do not fit together; if none of the
            images can be predicted.
    """
    members = split_members(os.fspath(config), as_paths(checkpoint))
    options = PredictOptions(members=tuple(members), images=as_paths(images), **options)
    check_options(options)
    files = find_images(options.images)
    predictor, evidence, _ = prepare_prediction(options)
    predicted: list[Prediction] = []
    unreadable: list[Prediction] = []
    for prediction in predict_rows(predictor, files, evidence, show_progress=show_progress):
        prediction.pixels = None
        if prediction.reason:
            unreadable.append(prediction)
        else:
            predicted.append(prediction)
    rows = [prediction.row for prediction in predicted]
    check_any_predicted(rows, unreadable)
    return Predictions(
        rows=rows,
        unreadable=unreadable,
        summary=summarize_rows(rows, evidence, unreadable),
        images=predicted,
        classes=predictor.classes,
    )


def predict_folder(options: PredictFolderOptions) -> None:
    """Predict image files into a folder, going on where an earlier call has stopped.

    Of several processes each takes some of the files; the first one opens and closes the folder.

    Raises:
        OSError: If the disk is full; the next call goes on here.
        UserError: If the folder cannot be written, options, checkpoints, the validation or earlier
            predictions do not fit, or no file can be predicted.
    """
    join_processes(options.launcher)
    check_writable(Path(options.out, SETTINGS))
    check_options(options)
    files = find_images(options.images)
    predictor, evidence, settings = prepare_prediction(options)
    folder = PredictionFolder(options.out, arrays=options.arrays, pictures=options.pictures)
    rank, num_processes = get_dist_info()
    unfinished: list[dict] = []
    if rank == 0:
        folder.open(settings, overwrite=options.overwrite)
        unfinished = folder.find_unfinished(files)
    unfinished = all_gather_object(unfinished)[0]
    items = {item['image']: item for item in unfinished[rank::num_processes]}
    unreadable: list[Prediction] = []
    paths = [Path(image) for image in items]
    for prediction in predict_rows(predictor, paths, evidence, show_progress=True):
        if prediction.reason:
            unreadable.append(prediction)
            continue
        picture = None
        if options.pictures:
            picture = draw_picture(prediction, evidence, predictor)
        folder.write(prediction.row, prediction.arrays, picture, items[str(prediction.image)])
    unreadable_by_rank = all_gather_object(unreadable)
    if rank > 0:
        leave_processes()
        return
    unreadable = list(chain.from_iterable(unreadable_by_rank))
    lines = close_folder(folder, files, evidence, unreadable, num_unfinished=len(unfinished))
    print('\n'.join(lines))
    print(f'{options.out}: {", ".join(sorted(os.listdir(options.out)))}')
    leave_processes(INCOMPLETE if unreadable else 0)


def close_folder(
    folder: PredictionFolder,
    files: Sequence[Path],
    evidence: Evidence,
    unreadable: list[Prediction],
    *,
    num_unfinished: int,
) -> list[str]:
    """Write the tables and the page of all images, and return what the command prints.

    Args:
        folder: Folder with the scores of each image.
        files: Files that this call names.
        evidence: Threshold and validation.
        unreadable: Files without a prediction.
        num_unfinished: Number of the files that earlier calls had not finished.
    """
    order = {os.path.abspath(file): index for index, file in enumerate(files)}
    rows = folder.read_rows()
    rows.sort(key=lambda row: order.get(row['path'], -1))
    unreadable.sort(key=lambda prediction: order[os.path.abspath(prediction.image)])
    check_any_predicted(rows, unreadable)
    summary = summarize_rows(rows, evidence, unreadable)
    folder.close(rows, summary, gallery=gallery_page(rows) if folder.pictures else '')
    num_predicted_now = num_unfinished - len(unreadable)
    return summary_lines(
        summary,
        rows,
        num_earlier=len(rows) - num_predicted_now,
        num_unnamed=sum(row['path'] not in order for row in rows),
    )


def prepare_prediction(options: PredictOptions) -> tuple[Predictor, Evidence, dict]:
    """Return what predicts, what is known of it, and the settings that predictions depend on."""
    cfg = load_config(options.members[0].config, options.cfg_options)
    split = 'test' if cfg.get('test_dataloader') else 'val'
    # A pipeline that reads no files is refused before the checkpoints are read.
    steps_without_labels((cfg.get(f'{split}_dataloader') or {}).get('dataset'))
    networks = read_networks(
        cfg, options.members, lambda path: load_config(path, options.cfg_options)
    )
    model = prepare_model(cfg, networks, options, [split], disagreement=options.disagreement)
    predictor = Predictor(cfg, model.checkpoints, device=options.device, workers=options.workers)
    evidence = read_evidence(options, model.description)
    settings = {
        **identity(model.description),
        'disagreement': options.disagreement,
        'threshold': evidence.threshold,
        'validation': evidence.digest,
        'probability': None if evidence.accuracy is None else options.probability,
    }
    return predictor, evidence, settings


def predict_rows(
    predictor: Predictor, files: Sequence[Path], evidence: Evidence, *, show_progress: bool
) -> Iterator[Prediction]:
    """Yield the prediction of each file with its row, in their order."""
    for prediction in predictor.predict_files(files, show_progress=show_progress):
        if not prediction.reason:
            prediction.row = image_row(prediction, evidence, predictor.classes)
        yield prediction


def draw_picture(prediction: Prediction, evidence: Evidence, predictor: Predictor) -> Image.Image:
    """Return the picture of a prediction, with its scores in words."""
    arrays = prediction.arrays
    captions = picture_captions(prediction.row, evidence.threshold)
    if 'probabilities' in arrays:
        return draw_classification(
            prediction.pixels,
            arrays['probabilities'],
            classes=predictor.classes,
            captions=captions,
        )
    return draw_segmentation(
        prediction.pixels,
        arrays['predicted'],
        arrays['confidence'],
        threshold=evidence.threshold,
        classes=predictor.classes,
        palette=predictor.palette,
        captions=captions,
        objects=arrays['objects'],
        scores=legend_texts(prediction.row['objects']),
    )


def check_any_predicted(rows: Sequence[dict], unreadable: Sequence[Prediction]) -> None:
    """Refuse a summary of no image."""
    if unreadable and not rows:
        first = unreadable[0]
        raise UserError(
            f'none of the {len(unreadable)} files can be predicted; {first.image}: {first.reason}'
        )


def as_paths(paths: Files) -> list[str]:
    """Return one path or several as a list of texts."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    return [os.fspath(path) for path in paths]
