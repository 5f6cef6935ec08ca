"""Figures of gallery scripts that are no figures of pyplot, as those of mmcalib."""

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def scrape(block, block_vars: dict, gallery_conf: dict) -> str:
    """Save the figures that a block has made under a name, and return reST that shows them."""
    found = block_vars['example_globals']
    figures = [value for value in found.values() if isinstance(value, Figure)]
    seen = block_vars.setdefault('own_figures', set())
    paths = []
    for figure in figures:
        if not hasattr(figure, 'number') and id(figure) not in seen:  # pyplot numbers its own
            seen.add(id(figure))
            path = next(block_vars['image_path_iterator'])
            figure.savefig(path, dpi=100)
            paths.append(path)
    return figure_rst(paths, gallery_conf['src_dir'])


def _get_sg_image_scraper():
    return scrape
