import pytest
from mmengine.registry import TRANSFORMS


def test_a_segmentation_is_predicted_at_the_size_of_the_input():
    results = {'ori_shape': (60, 80), 'img_shape': (48, 64), 'img': None}
    packed = TRANSFORMS.build(dict(type='AtInputSize'))(results)
    assert packed == {'ori_shape': (48, 64), 'img_shape': (48, 64), 'img': None}


@pytest.mark.parametrize('label', [3, None])
def test_a_text_keeps_its_label_and_where_it_is_from(label):
    sample = {'text': 'to be', 'path': 'posts/7', 'sample_idx': 5}
    packed = TRANSFORMS.build(dict(type='PackText'))(
        sample if label is None else {**sample, 'gt_label': label}
    )
    data_sample = packed['data_samples']
    assert packed['inputs'] == 'to be'
    assert (data_sample.path, data_sample.sample_idx) == ('posts/7', 5)
    assert ('gt_label' in data_sample) is (label is not None)
    assert label is None or data_sample.gt_label.tolist() == [label]


def test_classes_that_were_not_trained_get_a_label():
    given = {0: 0, 1: 255, 2: 1, 3: 255}
    transform = TRANSFORMS.build(dict(type='LabelUntrainedClasses', ood_index=254))
    results = transform({'label_map': given})
    assert results == {'label_map': {0: 0, 1: 254, 2: 1, 3: 254}}
    assert given == {0: 0, 1: 255, 2: 1, 3: 255}
    for sample, message in [
        ({'label_map': None}, 'has all classes of the data set'),
        ({'label_map': given, 'gt_seg_map': None}, 'must stand before LoadAnnotations'),
        ({'label_map': {0: 254, 1: 255}}, '254 is the label of a trained class; take one above 25'),
    ]:
        with pytest.raises(ValueError, match=message):
            transform(sample)
    with pytest.raises(ValueError, match='below 255, which is ignored, got 255'):
        TRANSFORMS.build(dict(type='LabelUntrainedClasses', ood_index=255))
