"""Configuration of the site: ``sphinx-build -W -b html docs docs/_build/html`` builds it."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / '_ext')]
# The build documents the sources beside these pages, also in the tools that it calls.
os.environ['PYTHONPATH'] = os.pathsep.join([str(DOCS.parent), os.environ.get('PYTHONPATH', '')])

import mmcalib  # noqa: E402

project = 'mmcalib'
author = 'The contributors of mmcalib'
copyright = author
version = release = mmcalib.__version__

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.autosummary',
    'sphinx.ext.doctest',
    'sphinx.ext.napoleon',
    'sphinx.ext.viewcode',
    'sphinx_copybutton',
    'sphinx_design',
    'sphinx_gallery.gen_gallery',
    'sphinx-mathjax-offline',  # Formulas are drawn without a network.
    'repository_links',
    'unbroken_options',
]
# The gallery's notebooks are downloads.
exclude_patterns = ['_build', '_ext', '_templates', 'gallery', 'auto_gallery/*.ipynb']

# -- Markdown: heading anchors and tables as on GitHub
myst_enable_extensions = ['colon_fence', 'dollarmath', 'deflist']
myst_heading_anchors = 4

# -- Notebooks are run anew
nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True

# -- API
autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_typehints = 'none'  # The signature has them.
autodoc_member_order = 'bysource'
autodoc_default_options = {
    'members': True,
    'show-inheritance': True,
    # scikit-learn gives its estimators these methods, whose docstrings link its own glossary.
    'exclude-members': 'set_fit_request, set_predict_proba_request, set_transform_request',
}
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # Otherwise the members of a named tuple are documented twice.
doctest_global_setup = """
import os, tempfile
import numpy as np, torch
from mmcalib import confidence_maps, image_calibration_diagram, reliability_diagram
from mmcalib.losses import *
from mmcalib.metrics import *
from mmcalib.posthoc import *
os.chdir(tempfile.mkdtemp())  # for the files that examples write
"""

# -- Links to other projects: `sphinx-build -t intersphinx`, since their inventories are downloaded
if tags.has('intersphinx'):  # noqa: F821
    extensions.append('sphinx.ext.intersphinx')
    intersphinx_mapping = {
        'python': ('https://docs.python.org/3', None),
        'numpy': ('https://numpy.org/doc/stable', None),
        'torch': ('https://pytorch.org/docs/stable', None),
        'mmengine': ('https://mmengine.readthedocs.io/en/latest', None),
    }

# -- Gallery
sphinx_gallery_conf = {
    'examples_dirs': 'gallery',
    'gallery_dirs': 'auto_gallery',
    'filename_pattern': r'/plot_',
    'download_all_examples': False,
    'show_memory': False,
    'show_signature': False,
    'abort_on_example_error': True,
    'image_scrapers': ('matplotlib', 'own_figures'),
}
copybutton_prompt_text = r'>>> |\.\.\. |\$ '
copybutton_prompt_is_regexp = True
copybutton_exclude = '.linenos, .gp, .go'

# -- Looks
html_theme = 'pydata_sphinx_theme'
html_title = f'mmcalib {release}'
html_static_path = ['_static']
html_css_files = ['site.css']
html_search_scorer = str(DOCS / '_ext/search_scorer.js')
html_show_sourcelink = False
# These pages are no part of a section, whose pages the sidebar would list.
html_sidebars = {name: [] for name in ('start/*', 'choose/*', 'project/*', 'faq', 'tutorial')}
html_theme_options = {
    'navbar_end': ['theme-switcher', 'navbar-icon-links'],
    'header_links_before_dropdown': 11,
    'footer_start': ['copyright'],
    'footer_end': [],
    'navigation_with_keys': False,
}
