import pytest

from mmcalib.transforms import AtInputSize, LabelUntrainedClasses


def test_a_segmentation_is_predicted_at_the_size_of_the_input():
    results = {'ori_shape': (60, 80), 'img_shape': (48, 64), 'img': None}
    packed = AtInputSize()(results)
    assert packed == {'ori_shape': (48, 64), 'img_shape': (48, 64), 'img': None}


def test_classes_that_were_not_trained_get_a_label():
    given = {0: 0, 1: 255, 2: 1, 3: 255}
    transform = LabelUntrainedClasses(ood_index=254)
    results = transform({'label_map': given})
    assert results == {'label_map': {0: 0, 1: 254, 2: 1, 3: 254}}
    assert given == {0: 0, 1: 255, 2: 1, 3: 255}
    for label_map, loaded in ((None, {}), (given, {'gt_seg_map': None}), ({0: 254, 1: 255}, {})):
        with pytest.raises(ValueError, match=r'before LoadAnnotations, .* ood_index=254 be new'):
            transform({'label_map': label_map, **loaded})
    with pytest.raises(ValueError, match='below 255, which is ignored: 255'):
        LabelUntrainedClasses(ood_index=255)
