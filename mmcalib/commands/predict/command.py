"""Predictions for images without labels, in Python and into a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmengine.dist import all_gather_object, get_dist_info

from mmcalib.cli.arguments import MeanOptions
from mmcalib.cli.files import split_members
from mmcalib.commands.predict.evidence import statistics_of
from mmcalib.commands.predict.folder import ARRAYS, PICTURES, SETTINGS, PredictionFolder
from mmcalib.commands.predict.image_files import find_images
from mmcalib.commands.predict.predictor import Prediction, Predictor, unlabelled_steps
from mmcalib.commands.predict.scores import FolderScores, Scorer
from mmcalib.commands.predict.words import Report, gallery_of
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.options import check_share
from mmcalib.runs.config import load_config
from mmcalib.runs.model import prepare_model, read_networks
from mmcalib.runs.record import identity

File = str | os.PathLike
Files = File | Sequence[File]


@dataclass(frozen=True)
class Predictions:
    """The result of :func:`predict`.

    Attributes:
        images: In the order in which they were named.
        unreadable: The files without a prediction, each with its reason.
        scores: Of all images together.
        classes: K names.
    """

    images: list[Prediction]
    unreadable: list[Prediction]
    scores: FolderScores
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
        options: See :func:`prepare`.

    Raises:
        FileNotFoundError: If the config or the checkpoint is not there.
        TypeError: For an option that there is not.
        ValueError: For what does not fit together; if none of the images can be predicted.
    """
    predictor, scorer, files, _ = prepare(config, checkpoint, images, **options)
    found: list[Prediction] = []
    unreadable: list[Prediction] = []
    for image in predictor(files, scorer, show_progress=show_progress):
        image.pixels = None
        (found if image.scores else unreadable).append(image)
    _check_any(found, unreadable)
    scores = scorer.folder([vars(image.scores) for image in found])
    return Predictions(found, unreadable, scores, predictor.classes)


def prepare(
    config: File,
    checkpoint: Files,
    images: Files,
    *,
    validation: str | os.PathLike | None = None,
    risk: float | None = None,
    probability: float = 0.95,
    threshold: float | None = None,
    device: str | None = None,
    workers: int = 0,
    cfg_options: dict | None = None,
    disagreement: bool = False,
    **of_mean,
) -> tuple[Predictor, Scorer, list[Path], dict]:
    """Return what predicts, what scores, the files, and what predictions depend on.

    Or raise the errors of :func:`predict`, before the first prediction.

    Args:
        config, checkpoint, images: As of :func:`predict`.
        validation: The work dir of a test with labels of the same model or mean, for expected
            accuracies.
        risk: What share of what the threshold keeps may be wrong, which sets the threshold; needs a
            validation.
        probability: Of the bound on the risk, and of the intervals.
        threshold: Of the share that is kept, 0.9 if neither this nor a risk is given.
        device: A GPU if there is one.
        workers: Processes that read files.
        cfg_options: Dotted keys and the values that replace those of the config.
        disagreement: Whether images get their mutual information.
        of_mean: Options of :class:`~mmcalib.cli.arguments.MeanOptions`.
    """
    if risk is not None and validation is None:
        raise UserError('a risk requires a validation: give the work dir of a test with labels')
    check_share('probability', probability)
    files = find_images(_texts(images))
    members = split_members(os.fspath(config), _texts(checkpoint))
    cfg = load_config(members[0][0], cfg_options)
    split = 'test' if cfg.get('test_dataloader') else 'val'
    unlabelled_steps((cfg.get(f'{split}_dataloader') or {}).get('dataset'))
    networks = read_networks(cfg, members, lambda path: load_config(path, cfg_options))
    mean = MeanOptions(members=members, **of_mean)
    model = prepare_model(cfg, networks, mean, [split], disagreement=disagreement)
    predictor = Predictor(cfg, model.checkpoints, device=device, workers=workers)
    evidence = validation and statistics_of(validation, model.description)
    options = dict(validation=evidence, risk=risk, probability=probability)
    scorer = Scorer(predictor.classes, threshold=threshold, **options)
    return predictor, scorer, files, model.description


def predict_to_folder(
    config: File,
    checkpoint: Files,
    images: Files,
    out: File,
    *,
    arrays: bool = True,
    pictures: bool = True,
    overwrite: bool = False,
    **options,
) -> Report | None:
    """Predict image files into a folder, going on where an earlier call has stopped.

    Of several processes each takes some of the files, and the first one gets the report.

    Args:
        config, checkpoint, images: As of :func:`predict`.
        out: The folder.
        arrays: Whether to write an ``.npz`` file for each image.
        pictures: Whether to write a ``.png`` file for each, and a page of them.
        overwrite: Begin anew in a folder that has predictions, whose files go.
        options: See :func:`prepare`.

    Raises:
        OSError: If nothing can be written there, or no longer; the next call goes on here.
        ValueError: For what does not fit together; if no file can be predicted.
    """
    check_writable(Path(out, SETTINGS))
    predictor, scorer, files, model = prepare(config, checkpoint, images, **options)
    kinds = {ARRAYS: arrays, PICTURES: pictures}
    folder = PredictionFolder(out, [kind for kind, wanted in kinds.items() if wanted])
    rank, processes = get_dist_info()
    left: list[dict] = []
    if rank == 0:
        settings = {**identity(model), 'disagreement': options.get('disagreement', False)}
        folder.open({**settings, **scorer.settings}, overwrite=overwrite)
        left = folder.left(files)
    left = all_gather_object(left)[0]
    places = {place['image']: place for place in left[rank::processes]}
    unreadable: list[Prediction] = []
    for found in predictor(list(map(Path, places)), scorer, show_progress=True):
        if found.scores:
            folder.write(found, places[str(found.image)], scorer, predictor.palette)
        else:
            unreadable.append(found)
    unreadable = [item for some in all_gather_object(unreadable) for item in some]
    if rank:
        return None
    order = {os.path.abspath(image): number for number, image in enumerate(files)}
    rows = sorted(folder.rows(), key=lambda row: order.get(row['path'], -1))
    unreadable.sort(key=lambda item: order[os.path.abspath(item.image)])
    _check_any(rows, unreadable)
    before = len(rows) - (len(left) - len(unreadable))
    others = sum(row['path'] not in order for row in rows)
    report = Report(scorer.folder(rows), rows, unreadable, before, others)
    folder.close(report, page=gallery_of(rows) if pictures else '')
    return report


def _check_any(found: Sequence, unreadable: Sequence[Prediction]) -> None:
    """Raise a UserError if no image has been predicted."""
    if unreadable and not found:
        first, count = unreadable[0], len(unreadable)
        raise UserError(
            f'none of the {count} files can be predicted; {first.image}: {first.reason}'
        )


def _texts(named: Files) -> list[str]:
    """Return paths as texts, of one or of several."""
    return [os.fspath(p) for p in ([named] if isinstance(named, (str, os.PathLike)) else named)]
