"""Figures of tested runs: what tools/visualize.py draws of their files, and how it names them."""

import re

import pytest
from drawings import draw_runs, statistics, words
from records import CE
from run_folders import write_segmentor_test
from shifted_records import write_shifted_tests

from mmcalib.reports.figures import from_files as figures
from mmcalib.visualization import to_rgb

LS = dict(type='LabelSmoothingLoss')


def test_visualize_writes_each_format(runs, tmp_path, run):
    options = ['--overlay', '--zoom', '80', '100', '--num-bins', '25', '--names', 'one', 'two']
    for out, *arguments in (
        ('a/b.pdf', 'reliability', *runs, *options),
        ('c.svg', 'reliability', runs[0], '--equal-mass', '--scale', 'logit'),
        ('i.png', 'maps', *runs, '--images', 'image 1'),
    ):
        run('visualize.py', *arguments, '--out', out)
        assert (tmp_path / out).stat().st_size > 1000


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['reliability', 'none'], 'there is no none/calibration.npz: .*tools/test.py writes it'),
        (['maps', 'none'], 'there is no none/confidence_maps.npz: .*ConfidenceMapHook'),
        (['robustness', 'no'], 'there is no no: name the work dir of .*tools/test_robustness.py'),
        (['robustness', 'none'], 'there is no test below none: name the work dir'),
        (['reliability', 'ce', '--names', 'a', 'b'], '1 runs require as many names'),
        (['maps', 'ce', '--images', 'image 9'], "no image 'image 9' .*there are image 1, image 2"),
        (['risk', 'ce', '--zoom', '8', '9'], r'risk \[-h\].* --zoom 8 9, of the kind reliability'),
        (['robustness', 'no', '--image', 'x'], '--image x, of the kind maps or worst'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_visualize_missing_or_wrong_input_refused(arguments, message, runs, tmp_path, run):
    (tmp_path / 'none').mkdir()
    output = run('visualize.py', *arguments, '--out', 'x.png', code=2)
    assert re.search(message, ' '.join(output.split()))
    assert not (tmp_path / 'x.png').exists()


def test_visualize_maps_shared_images_and_worst_of_each(runs):
    for kind, expected in (('maps', {'CE': 1, 'LS': 1}), ('worst', {'CE': 1, 'LS': 0})):
        labels = [axes.get_xlabel() for axes in draw_runs(kind, runs).axes]
        captions = [text.split(':')[0] for text in labels if ': ECE' in text]
        assert captions == [f'{name}, image {index}' for name, index in expected.items()]
    write_segmentor_test(runs[0], 3, name='confidence_maps_val.npz')
    with pytest.raises(ValueError, match='no image in common'):
        draw_runs('maps', [runs[1], runs[0] / 'confidence_maps_val.npz'])


def test_run_names_are_losses_seeds_or_paths(runs, tmp_path):
    assert figures.run_names([runs[0] / 'calibration.npz', runs[1]]) == ['CE', 'LS']
    four_runs = [
        *runs,
        write_segmentor_test(tmp_path / 'ce1', loss=CE, seed=1),
        write_segmentor_test(tmp_path / 'ls0', loss=LS),
    ]
    names = figures.run_names(four_runs)
    assert names == ['CE, seed=0', 'LS, path=ls', 'CE, seed=1', 'LS, path=ls0']
    assert figures.run_names(runs, ['a', 'b']) == ['a', 'b']
    write_shifted_tests(tmp_path / 'shift', 'LS α=0.1', corruptions=['fog'])
    (tested,) = (tmp_path / 'shift').glob('*/fog_1')
    assert figures.run_names([tested]) == ['LS α=0.1']
    assert 'CE, seed=1' in words(draw_runs('reliability', four_runs))


def test_run_names_long_paths_shortened(tmp_path):
    def named(*paths):
        return figures.run_names([tmp_path.joinpath(path) for path in paths])

    folders = [f'{"experiments/of_a_year/" * 3}{name}/a_network/seed0' for name in 'abcdef']
    assert named(*folders) == [*'abcdef']
    assert named(f'{folders[0]}/calibration.npz') == [f'{tmp_path}/{folders[0]}/calibration.npz']
    assert named('a', 'a/temperature', 'b/a') == ['a', 'a/temperature', 'b/a']
    assert named('a/a', 'a') == ['a/a', 'a'] and named('a/b/a', 'a/a') == ['b/a', 'a']
    for folder in folders:
        statistics(ECE=3.0, AECE=2.0).save(tmp_path / folder / 'calibration.npz')
    figure = draw_runs('reliability', [tmp_path / folder for folder in folders], overlay=True)
    to_rgb(figure)
    assert figure.legends[0].get_window_extent().height < figure.axes[0].bbox.height
