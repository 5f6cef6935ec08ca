"""Scraper for figures of gallery scripts that pyplot does not know, such as those of mmcalib."""

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def scrape(block, block_vars: dict, gallery_conf: dict) -> str:
    """Save the figures that a block has given a name, and return reST that shows them."""
    variables = block_vars['example_globals'].values()
    figures = [value for value in variables if isinstance(value, Figure)]
    saved = block_vars.setdefault('own_figures', set())
    paths = []
    for figure in figures:
        is_pyplots = hasattr(figure, 'number')  # Another scraper saves these.
        if not is_pyplots and id(figure) not in saved:
            saved.add(id(figure))
            path = next(block_vars['image_path_iterator'])
            figure.savefig(path, dpi=100)
            paths.append(path)
    return figure_rst(paths, gallery_conf['src_dir'])


def _get_sg_image_scraper():
    return scrape
