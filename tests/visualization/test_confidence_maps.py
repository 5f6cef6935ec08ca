"""Confidence maps: the pixels and captions of each panel, and which images are drawn."""

from dataclasses import replace

import numpy as np
from drawings import captions, check_nothing_is_cut, panels, view

from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps
from mmcalib.visualization.confidence_maps import IGNORED_COLOUR, RIGHT_COLOUR, WRONG_COLOUR

CLASSES = ['sky', 'road', 'car']
PALETTE = [[0, 0, 0], [0, 114, 178], [230, 159, 0]]


def draw(one):
    return draw_confidence_maps({'': ConfidenceMaps([one], [], CLASSES, PALETTE)})


def test_confidence_maps_panels_show_pixels():
    one = view(size=(20, 20))
    figure = draw(one)
    image, label, predicted, conf, errors = panels(figure)
    np.testing.assert_array_equal(image, one.image)
    np.testing.assert_array_equal(label[one.valid], np.array(PALETTE)[one.label[one.valid]])
    assert (label[~one.valid] == IGNORED_COLOUR).all()
    np.testing.assert_array_equal(predicted, np.array(PALETTE)[one.predicted])
    right = one.valid & (one.label == one.predicted)
    assert (errors[right] == RIGHT_COLOUR).all() and (errors[~one.valid] == IGNORED_COLOUR).all()
    assert (errors[one.valid & ~right] == WRONG_COLOUR).all()
    order = np.argsort(one.conf, axis=None)
    brightness = conf.reshape(-1, 3).sum(axis=1)[order].astype(int)
    assert brightness[0] > brightness[len(order) // 2] > brightness[-1]  # dark where sure
    count, correct, conf_sum = one.table
    accuracy = 100 * correct.sum() / 500
    confidence = 100 * conf_sum.sum() / 500
    ece = 100 * abs(correct - conf_sum).sum() / 500
    assert captions(figure) == [
        f'image 0: ECE {ece:.2f} %, accuracy {accuracy:.2f} %, mean confidence {confidence:.2f} %, '
        '500 pixels'
    ]
    (bars,) = (b for axes in figure.axes for b in axes.containers if b.get_label() == 'accuracy')
    filled = count > 0
    heights = [bar.get_height() for bar in bars]
    np.testing.assert_allclose(heights, 100 * correct[filled] / count[filled])


def test_confidence_maps_legend_has_shown_classes():
    one = view(size=(4, 4))
    one.label[1:] = 1
    one.predicted[:] = 2
    one.valid[:2] = False
    one.table[:] = 0
    figure = draw(one)
    assert np.isnan(one.error) and 'ECE nan %' in captions(figure)[0]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:5] == ['road', 'car', 'right', 'wrong', 'ignored']
    colours = [handle.get_facecolor()[0, :3] for handle in legend.legend_handles[:2]]
    np.testing.assert_allclose(colours, np.array(PALETTE[1:]) / 255)


def test_confidence_maps_same_image_not_repeated():
    other = replace(view(), label=view(seed=5).label)
    runs = {}
    first_views = {'CE': view(), 'MbLS': view(), 'LS': other}
    for number, (name, first_view) in enumerate(first_views.items()):
        own_view = view(17 + number)  # The other runs have not drawn this image.
        runs[name] = ConfidenceMaps([view(7), first_view, own_view], [view(3)], CLASSES)
    figure = draw_confidence_maps(runs)
    assert len(panels(figure)) == 5 + 3 + 5 + 5 + 3 + 3
    names = [text.split(':')[0] for text in captions(figure)]
    assert names == [f'{run}, image {i}' for i in (0, 7) for run in runs]
    worst = captions(draw_confidence_maps(runs, worst=True))
    assert [text.split(':')[0] for text in worst] == [f'{run}, image 3' for run in runs]
    runs['CE'].views.insert(0, view(7, name='another image'))
    assert len(captions(draw_confidence_maps(runs))) == 6
    (chosen,) = captions(draw_confidence_maps({'CE': runs['CE']}, images=['image 7']))
    assert chosen.startswith('image 7: ')


def test_confidence_maps_captions_inside_and_off_panels():
    sizes = [(1, 1), (40, 40), (30, 200), (300, 40), (512, 100)]
    maps = ConfidenceMaps([view(n, size=size) for n, size in enumerate(sizes)], [], CLASSES)
    figure = draw_confidence_maps({f'a run /{"of_a_path/" * 30}': maps, 'other': maps})
    check_nothing_is_cut(figure)
    shown = [axes.bbox for axes in figure.axes if axes.axison]
    texts = [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    for text in texts:
        assert figure.bbox.x0 <= text.x0 and text.x1 <= figure.bbox.x1
        assert not any(text.overlaps(box.padded(-1)) for box in shown)
    assert figure.get_figheight() < 3 * len(texts) and figure.get_figwidth() < 12


def test_confidence_maps_saved_equals_loaded(tmp_path):
    path = tmp_path / 'maps.npz'
    maps = ConfidenceMaps([view(0), view(7, size=(3, 4))], [view(9, seed=1)], CLASSES, PALETTE)
    maps.save(path)
    loaded = ConfidenceMaps.load(path)
    assert (loaded.classes, loaded.palette) == (CLASSES, PALETTE)
    actual_views = [*loaded.views, *loaded.worst]
    expected_views = [*maps.views, *maps.worst]
    for actual, expected in zip(actual_views, expected_views, strict=True):
        for key, value in vars(expected).items():
            np.testing.assert_array_equal(getattr(actual, key), value)
            assert isinstance(getattr(actual, key), type(value))
