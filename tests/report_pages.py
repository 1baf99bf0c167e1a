"""Reports as a browser would see them, for tests that read one without a browser."""

import base64
import json
import zlib
from html.parser import HTMLParser

from tracekit.report import build_report


def plain(text):
    """Return `text` with one plain space wherever it has any."""
    return " ".join(text.split())


class Page(HTMLParser):
    """Elements, their attributes and their text, as a browser would see them."""

    VOID = frozenset({"meta", "img", "input", "br", "hr"})

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": ""}
        self.elements.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        if self.open and self.open[-1]["tag"] == tag:
            self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def by_id(self, name):
        return next(e for e in self.elements if e["attrs"].get("id") == name)

    def config(self):
        return json.loads(self.by_id("matrix-config")["text"])

    def blob(self, name):
        return zlib.decompress(base64.b64decode(self.by_id(name)["text"]))

    def says(self, sentence):
        return any(plain(sentence) in plain(e["text"]) for e in self.elements)


def report(trace, pictures=False, **options):
    """Build a page; without pictures and advice where a test does not look at them: they take longest."""
    return Page(
        build_report(trace, pictures=None if pictures else {}, **{"advice": False, **options})
    )
