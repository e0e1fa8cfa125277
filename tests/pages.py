"""What a browser would make of HTML, and of a widget: for tests without a browser."""

from collections import Counter
from html.parser import HTMLParser

import ipywidgets

from durakit.lab.view import CONTROL_NAMES


class Page(HTMLParser):
    """The tags, attributes and words of some HTML.

    ``tags``: how often each occurs. ``opened``: each tag with its attributes, in order.
    ``attributes``: the names of all of them. ``alts``, ``roles``: the values of these. ``words``:
    the text between the tags. ``open``: tags that were never closed. ``unbalanced``: closing tags
    that close another than the last.
    """

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.words = Counter(), set(), ""
        self.opened, self.alts, self.roles = [], [], []
        self.open, self.unbalanced = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        """Note a tag; a void one is never closed."""
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Note a tag that closes itself."""
        self.tags[tag] += 1
        self.opened.append((tag, dict(attrs)))
        self.attributes |= {name for name, _ in attrs}
        self.alts += [value for name, value in attrs if name == "alt"]
        self.roles += [value for name, value in attrs if name == "role"]

    def handle_endtag(self, tag):
        """Note one that closes another than the last."""
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        """Collect the words."""
        self.words += data


def parts(widget):
    """A widget and all that is in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from parts(child)


def status(view):
    """The words of a view's status line."""
    return Page(view.status.value).words


def pages(widget):
    """Every piece of HTML that a view shows, but for our own constant."""
    return [
        part.value
        for part in parts(widget)
        if isinstance(part, ipywidgets.HTML) and part.value != CONTROL_NAMES
    ]


def shown(widget):
    """The words of a whole view."""
    return "\n".join(Page(page).words for page in pages(widget))
