"""The training text: freely licensed books, manuals and sources out of Debian 12 packages.

Only public domain, PSF, PostgreSQL, BSD and MIT/Apache texts are taken; what each package's
``copyright`` file says is listed in ``data/README.md``.
"""

import gzip
import random
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

MIN_CHARS, MAX_CHARS = 400, 150_000
MAX_NON_ASCII = 0.01
VALIDATION_SHARE = 64  # one document in 64

ASCII_PUNCTUATION = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\u00b6": None}
)


@dataclass(frozen=True)
class Source:
    """Where some documents come from.

    Attributes
    ----------
    name : str
        How the README's table calls it.
    packages : tuple of str
        Debian packages, each as ``name=version``.
    read : callable
        Yields documents, given the folder that the packages were unpacked into.
    max_bytes : int
        Documents are drawn at random until this many bytes are reached.
    """

    name: str
    packages: tuple[str, ...]
    read: Callable[[Path], Iterator[str]]
    max_bytes: int


@dataclass(frozen=True)
class Corpus:
    """Documents, in the (seeded) random order in which they are trained on."""

    train: list[str]
    validation: list[str]


class _TextOfPage(HTMLParser):
    """Collects the readable text of a page; whitespace is kept only inside <pre>."""

    HIDDEN = frozenset({"script", "style", "nav", "head", "footer", "svg", "button", "select"})
    BLOCKS = frozenset(
        {"blockquote", "br", "dd", "div", "dl", "dt", "li", "ol", "table", "tr", "ul"}
    )
    PARAGRAPHS = frozenset({"p", "pre", "h1", "h2", "h3", "h4"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        self._verbatim += tag == "pre"
        if tag in self.PARAGRAPHS:
            self.pieces.append("\n\n")
        elif tag in self.BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data if self._verbatim else re.sub(r"\s+", " ", data))


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


def _pages(root: Path, *folders: str) -> Iterator[str]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.html")):
            parser = _TextOfPage()
            parser.feed(_read_text(path))
            yield "".join(parser.pieces)


def _files(root: Path, folder: str, pattern: str, skip: str | None = None) -> Iterator[str]:
    for path in sorted((root / folder).rglob(pattern)):
        if skip is None or not re.search(skip, str(path.relative_to(root / folder))):
            yield _read_text(path)


def _austen(root: Path) -> Iterator[str]:
    # R's lazy-load database: for each novel a length and a zlib stream of R's serialisation, in
    # which a line of text is a CHARSXP (header 00 04 00 09, a big-endian length, the bytes).
    raw = (root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    while raw:
        stream = zlib.decompressobj()
        novel = stream.decompress(raw[4:])
        raw = stream.unused_data
        lines, at = [], 0
        while (at := novel.find(b"\0\4\0\t", at)) >= 0:
            end = at + 8 + int.from_bytes(novel[at + 4 : at + 8], "big")
            lines.append(novel[at + 8 : end].decode("latin-1"))
            at = end
        paragraphs = re.split(r"\n{2,}", "\n".join(lines))
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        yield from re.split(r"\n(?=chapter )", text, flags=re.IGNORECASE)


def _bible(root: Path) -> Iterator[str]:
    command = [root / "usr/bin/bible", "-p", root / "usr/lib", "-l9999", "gen1:1-rev22:21"]
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    yield from re.split(r"\n(?=\w[\w ]* \d+\n\n)", text)


def _dictionary(name: str) -> Callable[[Path], Iterator[str]]:
    def read(root: Path) -> Iterator[str]:
        with gzip.open(root / f"usr/share/dictd/{name}.dict.dz", "rt", errors="ignore") as file:
            text = file.read()
        start = 0
        while start < len(text):  # pieces of about 6000 characters, cut at a blank line
            end = text.find("\n\n", start + 6000)
            end = len(text) if end < 0 else end
            yield text[start:end]
            start = end

    return read


_PYTHON = "3.11.2-6+deb12u9"
_RUST_BOOKS = ("book", "rust-by-example", "nomicon", "reference", "edition-guide", "rustc")
_MB = 1_000_000

SOURCES = (
    Source("austen", ("r-cran-janeaustenr=1.0.0-1",), _austen, 10 * _MB),
    Source("bible", ("bible-kjv=4.38", "bible-kjv-text=4.38"), _bible, 10 * _MB),
    Source("devils-dictionary", ("dict-devil=1.0-13.1",), _dictionary("devil"), 10 * _MB),
    Source("jargon-file", ("dict-jargon=4.4.7-3.1",), _dictionary("jargon"), 10 * _MB),
    Source(
        "sqlite-manual",
        ("sqlite3-doc=3.40.1-2+deb12u2",),
        lambda root: _pages(root, "usr/share/doc/sqlite3"),
        6 * _MB,
    ),
    Source(
        "postgresql-manual",
        ("postgresql-doc-15=15.20-0+deb12u1",),
        lambda root: _pages(root, "usr/share/doc/postgresql-doc-15"),
        6 * _MB,
    ),
    Source(
        "python-manual",
        (f"python3.11-doc={_PYTHON}",),
        lambda root: _files(root, "usr/share/doc/python3.11/html/_sources", "*.txt"),
        8 * _MB,
    ),
    Source(
        "python-library",
        (f"libpython3.11-minimal={_PYTHON}", f"libpython3.11-stdlib={_PYTHON}"),
        lambda root: _files(root, "usr/lib/python3.11", "*.py", skip=r"encodings/|pydoc_data/"),
        8 * _MB,
    ),
    Source(
        "rust-books",
        ("rust-doc=1.63.0+dfsg1-2",),
        lambda root: _pages(root, *(f"usr/share/doc/rust-doc/html/{b}" for b in _RUST_BOOKS)),
        3 * _MB,
    ),
    Source(
        "go-library",  # without tests, generated tables and the files under another licence
        ("golang-1.19-src=1.19.8-2",),
        lambda root: _files(
            root,
            "usr/share/go-1.19/src",
            "*.go",
            skip=r"_test|testdata|vendor|^cmd/|^math/|^debug/|tables|/z[a-z]+_|image/jpeg/idct",
        ),
        3 * _MB,
    ),
)


def _normalise(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\t", "    ").translate(ASCII_PUNCTUATION)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _is_usable(text: str) -> bool:
    non_ascii = sum(ord(char) > 126 for char in text)
    return MIN_CHARS <= len(text) <= MAX_CHARS and non_ascii < MAX_NON_ASCII * len(text)


def _unpack(source: Source, work: Path) -> Path:
    """Download a source's packages and unpack them into one folder."""
    root = work / "packages" / source.name
    if not root.exists():
        unfinished = root.with_suffix(".part")
        unfinished.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *source.packages], cwd=unfinished, check=True)
        for deb in sorted(unfinished.glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb.name, "."], cwd=unfinished, check=True)
        unfinished.rename(root)
    return root


def collect(work: Path, seed: int) -> Corpus:
    """Gather the documents of every source.

    Parameters
    ----------
    work : Path
        Folder for the downloaded packages; what lies there already is not downloaded again.
    seed : int
        Of the draw of the documents and of their order.
    """
    rng = random.Random(seed)
    train: list[str] = []
    validation: list[str] = []
    for source in SOURCES:
        documents = [_normalise(text) for text in source.read(_unpack(source, work))]
        documents = list(dict.fromkeys(filter(_is_usable, documents)))
        rng.shuffle(documents)
        kept, size = [], 0
        for document in documents:
            if size >= source.max_bytes:
                break
            kept.append(document)
            size += len(document.encode())
        n_validation = max(1, len(kept) // VALIDATION_SHARE)
        validation += kept[:n_validation]
        train += kept[n_validation:]
        print(f"{source.name}: {len(kept)} documents, {size / _MB:.2f} MB", flush=True)
    rng.shuffle(train)
    return Corpus(train, validation)
