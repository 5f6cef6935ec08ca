"""Keep the options of commands whole: a browser may end a line behind the hyphens of ``--test``."""

import re

OPTION = re.compile(r'(?<![\w-])--?[a-z][\w-]*')
TEXT_IN_CODE = re.compile(r'(<(?:code|pre)\b[^>]*>)(.*?)(</(?:code|pre)>)', re.DOTALL)
TAG = re.compile(r'(<[^>]*>)')


def mark_options(body: str) -> str:
    """Return the HTML of a page, each option in code inside a span that site.css keeps whole."""
    return TEXT_IN_CODE.sub(_mark_code, body)


def _mark_code(code: re.Match) -> str:
    start, content, end = code.groups()
    parts = TAG.split(content)
    for index in range(0, len(parts), 2):  # Tags lie at the odd positions.
        parts[index] = OPTION.sub(r'<span class="command-option">\g<0></span>', parts[index])
    return start + ''.join(parts) + end


def setup(app) -> dict:
    def mark_page(app, page: str, template: str, context: dict, doctree) -> None:
        if 'body' in context:
            context['body'] = mark_options(context['body'])

    app.connect('html-page-context', mark_page)
    return {'parallel_read_safe': True}
