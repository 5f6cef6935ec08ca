"""Pages of HTML that need no other file and no network: ``base.html``, which each extends."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

PATH_SEPARATORS = re.compile('([/_-])')


def page_templates(folder: Path) -> Environment:
    """Return the environment of the templates in a folder, which may extend ``base.html``."""
    loader = FileSystemLoader([folder, Path(__file__).parent])
    templates = Environment(loader=loader, autoescape=True, trim_blocks=True)
    templates.filters['breakable'] = _break_at_separators
    return templates


def _break_at_separators(text: str) -> Markup:
    """Return HTML of a text that may take a new line behind each separator of a path."""
    return Markup(PATH_SEPARATORS.sub(r'\1<wbr>', str(escape(text))))
