"""Models of both toolboxes, scaled by a layer or behind the model."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from tiny_models import (
    classifier,
    draw_predictions,
    fcn_head,
    images,
    mmseg_head,
    scenes,
    segmentor,
)
from torch import nn

from mmcalib.calibration.before_after import measure_effect
from mmcalib.calibration.cross_fit import Scalings, fit_scaler
from mmcalib.calibration.find_layer import fold_layers
from mmcalib.openmmlab.calibrated_model import attach
from mmcalib.openmmlab.runner_source import RunnerSource, predictor
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached import scaling_module


@MODELS.register_module(force=True)
class MaskClassifier(nn.Module):
    """Scores as Mask2Former's: probabilities of queries' classes times those of their masks."""

    num_classes = 4
    out_channels = 4
    align_corners = False

    def __init__(self):
        super().__init__()
        self.masks = nn.Conv2d(8, 6, 1)
        self.classes = nn.Parameter(torch.randn(6, 5))

    def predict(self, inputs, *_):
        queries = self.classes.softmax(dim=1)[:, :-1]
        return torch.einsum('qk,nqhw->nkhw', queries, self.masks(inputs[0]).sigmoid())


@dataclass(frozen=True)
class Case:
    """A model, and the layers that are found in it.

    Attributes:
        head: Config of the head.
        layers: Layers that absorb one scale of all logits; none if the scaling is attached.
        layers_per_class: Layers that absorb scales and shifts of the classes; None for the same.
        form: Form of the features of a classifier; None for a segmentor.
        options: Other options of a segmentor.
        change: Function that changes the model; None for none.
    """

    head: dict
    layers: list
    layers_per_class: list | None = None
    form: str | None = None
    options: dict = field(default_factory=dict)
    change: object = None

    def make(self):
        """Return the model and a loader."""
        if self.form is not None:
            model = classifier(self.head, self.form)
            loader = images()
        else:
            model = segmentor(copy.deepcopy(self.head), **copy.deepcopy(self.options))
            loader = scenes(num_classes=self.num_classes)
        if self.change is not None:
            self.change(model)
        return model, loader

    @property
    def num_classes(self):
        return self.head.get('num_classes', 4) if isinstance(self.head, dict) else 4


def image_case(layers, layers_per_class=None, *, form='vector', change=None, **options):
    """Return the case of a classifier, linear but for the options of its head."""
    head = dict(type='LinearClsHead', num_classes=5, in_channels=8) | options
    return Case(head, layers, layers_per_class, form=form, change=change)


def scene_case(layers, layers_per_class=None, *, head=None, change=None, **options):
    """Return the case of a segmentor, with an FCN head unless another is given."""
    return Case(head or fcn_head(), layers, layers_per_class, options=options, change=change)


def add_tanh(model):
    model.head.forward = lambda feats: torch.tanh(model.head.fc(feats[-1]))


def add_weight_norm(model):
    nn.utils.parametrizations.weight_norm(model.head.fc)


def remove_bias(model):
    model.head.fc.bias = None


def group_channels(model):
    model.decode_head.conv_seg = nn.Conv2d(8, 4, 1, groups=2)


VIT = 'VisionTransformerClsHead'
CONV = 'decode_head.conv_seg'
TWO_MAPS = dict(in_channels=[8, 8], in_index=[0, 1])
TRANSFORMER = dict(num_layers=1, num_heads=1, embed_dims=8, norm_cfg=dict(type='LN'))
CASES = {
    'linear': image_case(['head.fc']),
    'vit_one_layer': image_case(['head.layers.head'], type=VIT),
    # The hidden layer is as wide as there are classes.
    'vit_two_layers': image_case(['head.layers.head'], type=VIT, hidden_dim=5),
    'stacked': image_case(
        ['head.layers.2.fc'], type='StackedLinearClsHead', mid_channels=[5, 5]
    ),
    # Shifts of both layers would add up.
    'sum_of_two_layers': image_case(
        ['head.trans_cls_head', 'head.conv_cls_head'], [],
        type='ConformerHead', form='tokens', in_channels=[8, 8],
    ),
    'mean_of_two_layers': image_case(
        ['head.layers.head_dist', 'head.layers.head'], type='DeiTClsHead', form='tokens'
    ),
    'tanh': image_case([], change=add_tanh),
    'weight_norm': image_case([], change=add_weight_norm),
    'without_bias': image_case(['head.fc'], [], change=remove_bias),
    # No class sees the features of all, and none can take away the mean of all.
    'grouped': scene_case([CONV], [], change=group_channels),
    'fcn': scene_case([CONV]),
    'auxiliary_heads': scene_case(
        [CONV], auxiliary_head=[fcn_head(channels=4, in_index=0)] * 2
    ),
    'aligned_corners': scene_case([CONV], head=fcn_head(align_corners=True)),
    'binary': scene_case([CONV], head=fcn_head(2, out_channels=1, threshold=0.3)),
    'cascade': scene_case(
        ['decode_head.1.conv_seg'],
        head=[fcn_head(), mmseg_head('mmseg.OCRHead', ocr_channels=4)],
        type='mmseg.CascadeEncoderDecoder', num_stages=2,
    ),
    # The last layer to run, of as many outputs, says which classes are in the image.
    'context_encoding': scene_case(
        [CONV], head=mmseg_head('mmseg.EncHead', num_codes=4, **TWO_MAPS)
    ),
    # Three layers of as many outputs run, of which one predicts.
    'dual_attention': scene_case([CONV], head=mmseg_head('mmseg.DAHead', pam_channels=4)),
    # Its factors start from random ones at each prediction.
    'random_bases': scene_case(
        [CONV],
        head=mmseg_head(
            'mmseg.LightHamHead', ham_channels=8, ham_kwargs=dict(MD_R=4), **TWO_MAPS
        ),
    ),
    'slide': scene_case(
        [CONV], test_cfg=dict(mode='slide', crop_size=(8, 8), stride=(5, 5))
    ),
    'mask_transformer': scene_case(
        [], head=mmseg_head('mmseg.SegmenterMaskTransformerHead', **TRANSFORMER)
    ),
    'mask_classifier': scene_case([], head=dict(type='MaskClassifier')),
}  # fmt: skip
# The other cases are tried with the methods that a layer can absorb alone.
CASES_OF_ALL_METHODS = ('linear', 'binary', 'mask_transformer', 'mask_classifier')


def case_method_pairs():
    """Return the pairs of a case and a method that suits its head."""
    pairs = []
    for name in CASES:
        head = 'sigmoid' if name == 'binary' else 'softmax'
        for method, scaler_class in SCALERS.items():
            is_tried = scaler_class.affine or name in CASES_OF_ALL_METHODS
            if is_tried and head in scaler_class.heads:
                pairs.append((name, method))
    return pairs


def measure(model, loader, scaler, source):
    """Return the metrics before and after a scaling, which lowers the NLL."""
    batches = source.read(model, '')
    effect = measure_effect(batches, Scalings([scaler]), threshold=source.threshold)
    assert effect.after['NLL'] < effect.before['NLL']
    return effect


def predict_all(model, loader, from_scores):
    """Return the data samples of all images, and their logits."""
    samples = []
    logits = []
    with predictor(model, from_scores=from_scores) as predict:
        for batch in loader:
            predicted = copy.deepcopy(predict(batch))
            samples += predicted.samples
            logits += predicted.logits
    return samples, logits


def predicted_classes(sample):
    classes = sample.get('pred_label', sample.get('pred_sem_seg'))
    return classes if torch.is_tensor(classes) else classes.data


def count_changed(sample, calibrated_sample):
    """Return the number of valid predictions whose class is another."""
    is_changed = predicted_classes(sample) != predicted_classes(calibrated_sample)
    mask = sample.get('gt_sem_seg')
    if mask is not None:
        is_changed = is_changed[mask.data != 255]
    return int(is_changed.sum())


def make_calibrated(model, placement, scaler):
    """Return a copy of a model with a scaling at its place."""
    calibrated = copy.deepcopy(model)
    if not placement.layers:
        return copy.deepcopy(attach(calibrated, scaling_module(scaler)))
    folded = fold_layers(model, placement.layers, scaler)
    assert {key.rpartition('.')[0] for key in folded} == set(placement.layers)
    calibrated.load_state_dict(folded, strict=False)
    return calibrated


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize(('name', 'method'), case_method_pairs())
def test_calibrated_model_predicts_scaled_probabilities(name, method):
    """The given model stays as it is."""
    case = CASES[name]
    scaler = SCALERS[method]()
    model, loader = case.make()
    model.train()
    before = copy.deepcopy(model.state_dict())
    source = RunnerSource(model, loader)
    placement = source.expected_placement(model, scaler)
    expected_layers = case.layers if scaler.affine else []
    if scaler.affine and scaler.per_class and case.layers_per_class is not None:
        expected_layers = case.layers_per_class
    assert placement.layers == expected_layers
    if scaler.affine and not expected_layers:
        assert 'no linear layer' in placement.reason
    source.use_placement(placement)
    draw = draw_predictions(model, loader, from_scores=source.from_scores)
    scaler.fit(draw.logits, draw.labels, draw.rows.images)
    calibrated = make_calibrated(model, placement, scaler)
    assert isinstance(calibrated, type(model))
    samples, logits = predict_all(model, loader, source.from_scores)
    calibrated_samples, calibrated_logits = predict_all(calibrated, loader, source.from_scores)
    num_changed = 0
    for index, (sample, calibrated_sample) in enumerate(
        zip(samples, calibrated_samples, strict=True)
    ):
        actual = scaler.probabilities(calibrated_logits[index][None])
        expected = scaler.predict_proba(logits[index][None]).to(actual)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        if name == 'binary':
            is_foreground = predicted_classes(calibrated_sample).bool()
            assert torch.equal(is_foreground, actual[0, 1:] > 0.3)
        elif scaler.keeps_argmax:
            assert count_changed(sample, calibrated_sample) == 0
        if name == 'mask_classifier':
            scores = sample.seg_logits.data
            torch.testing.assert_close(logits[index].softmax(dim=0), scores / scores.sum(dim=0))
        num_changed += count_changed(sample, calibrated_sample)
    effect = measure(model, loader, scaler, source)
    assert effect.num_predictions == draw.population
    assert effect.changed == num_changed
    if method == 'temperature':
        # A temperature moves probabilities towards 0.5, and so across another threshold.
        assert (num_changed > 0) == (name == 'binary')
    assert model.training
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert 'postprocess_result' not in vars(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_attach_keeps_logits_and_losses():
    model, loader = CASES['linear'].make()
    batch = loader[0]
    scaler = SCALERS['temperature'].from_parameters({'temperature': 3.0})
    calibrated = attach(copy.deepcopy(model), scaling_module(scaler))
    inputs = batch['inputs']
    with torch.no_grad():
        logits = model(inputs, mode='tensor')
        calibrated_logits = calibrated(inputs, mode='tensor')
        loss = model(inputs, batch['data_samples'], mode='loss')['loss']
        calibrated_loss = calibrated(inputs, batch['data_samples'], mode='loss')['loss']
    assert torch.equal(logits, calibrated_logits)
    assert torch.equal(loss, calibrated_loss)
    torch.testing.assert_close(calibrated.calibration(logits), logits / 3)


def draw_labels(logits, loader, *, with_scores):
    """Draw labels, write them into the samples of a loader, and return them, ``(N, L)``.

    With scores of labels, the second label of each image is ignored.
    """
    torch.manual_seed(3)
    probs = (logits / 4).sigmoid()
    labels = (torch.rand(probs.shape) < probs).long()
    for sample, image_labels in zip(loader.dataset, labels, strict=True):
        sample.set_gt_label(image_labels.nonzero()[:, 0])
        if with_scores:
            image_labels[1] = -1
            sample.set_gt_score(image_labels.float())
    return labels


def probabilities_of_loop(method, logits, labels):
    """Return the probabilities of a scaling of each label; of one without labels, of all others."""
    columns = []
    for index in range(logits.shape[1]):
        label_logits = logits[:, index, None]
        if (labels[:, index] < 0).all():
            is_other = torch.arange(logits.shape[1]) != index
            fit_logits = logits[:, is_other].reshape(-1, 1)
            fit_labels = labels[:, is_other].flatten()
        else:
            fit_logits = label_logits
            fit_labels = labels[:, index]
        scaler = SCALERS[method]().fit(fit_logits, fit_labels)
        ends = scaler.predict_proba(torch.stack([label_logits.min(), label_logits.max()])[:, None])
        if ends[1, 1] <= ends[0, 1]:  # It reverses the order, so the label takes that of all.
            scaler = SCALERS[method]().fit(logits.reshape(-1, 1), labels.flatten())
        columns.append(scaler.predict_proba(label_logits)[:, 1])
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize('with_scores', [True, False])
@pytest.mark.parametrize('method', ['temperature', 'platt', 'isotonic'])
def test_several_labels_calibrated_model_equals_scaler_of_each(method, with_scores):
    init_default_scope('mmpretrain')
    model = classifier(dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8, thr=0.4))
    loader = images(n=80)
    with torch.no_grad():
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in loader])
    labels = draw_labels(logits, loader, with_scores=with_scores)
    source = RunnerSource(model, loader)
    placement = source.expected_placement(model, SCALERS[method]())
    assert placement.layers == (['head.fc'] if SCALERS[method].affine else [])
    source.use_placement(placement)
    draw = draw_predictions(model, loader, from_scores=source.from_scores)
    torch.testing.assert_close(draw.logits, logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(draw.labels, labels)
    scaler = fit_scaler(SCALERS[method](), draw.rows)
    effect = measure(model, loader, scaler, source)
    assert effect.num_predictions == int((labels >= 0).sum())
    calibrated = make_calibrated(model, placement, scaler)
    samples = []
    for batch in loader:
        samples += calibrated.val_step(batch)
    actual = torch.stack([sample.pred_score for sample in samples])
    expected = probabilities_of_loop(method, logits, labels).to(actual)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    for sample in samples:
        expected_labels = (sample.pred_score >= 0.4).nonzero()[:, 0]
        assert sample.pred_label.tolist() == expected_labels.tolist()
