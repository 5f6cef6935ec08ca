"""Make links of pages that work on GitHub work on the site too.

Pages link files beside ``docs/``. On the site the README is the first page, CONTRIBUTING and
CHANGELOG are pages of ``project/``, and a gallery script is the page that it becomes. Any other
file is a download. A folder, which a site cannot show, is its name.
"""

import os
import re
from pathlib import Path

LINK = re.compile(r'(?<!!)\[(?P<text>[^][]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)')
FENCE = re.compile(r'^( *)(```+|~~~+).*?^\1\2 *$', re.MULTILINE | re.DOTALL)
PAGES = {
    'README.md': 'docs/index.md',
    'CONTRIBUTING.md': 'docs/project/contributing.md',
    'CHANGELOG.md': 'docs/project/changelog.md',
}


def site_links(text: str, folder: Path, page: Path, docs: Path) -> str:
    """Return the Markdown ``text`` with links that Sphinx follows.

    Args:
        text: Markdown, in which fenced code stays as it is.
        folder: The folder that relative links of the text start from.
        page: The page that shows the text, which includes it from ``folder`` or lies there.
        docs: The folder of the pages.
    """

    def site_link(link: re.Match) -> str:
        target = link['target']
        if ':' in target:
            return link[0]
        path = Path(os.path.normpath(folder / target))
        anchor = link['anchor'] or ''
        if path.parent == docs / 'gallery':
            path = docs / 'auto_gallery' / f'{path.stem}.rst'
        elif path.is_dir():
            return link['text']
        elif not path.is_relative_to(docs):
            name = path.relative_to(docs.parent).as_posix()
            if name not in PAGES:
                return f'[{link["text"]}](<path:{os.path.relpath(path, page.parent)}>)'
            path = docs.parent / PAGES[name]
            anchor = ''
        return f'[{link["text"]}]({os.path.relpath(path, page.parent)}{anchor})'

    parts = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(site_link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return ''.join([*parts, LINK.sub(site_link, text[end:])])


def setup(app) -> dict:
    def rewrite_page(app, name: str, content: list[str]) -> None:
        path = Path(app.env.doc2path(name))
        if path.suffix == '.md':
            content[0] = site_links(content[0], path.parent, path, Path(app.srcdir))

    def rewrite_include(app, path: Path, name: str, content: list[str]) -> None:
        if path.suffix == '.md':
            folder = Path(os.path.normpath(app.srcdir / path)).parent
            page = Path(app.env.doc2path(app.env.docname))
            content[0] = site_links(content[0], folder, page, Path(app.srcdir))

    app.connect('source-read', rewrite_page)
    app.connect('include-read', rewrite_include)
    return {'parallel_read_safe': True}
