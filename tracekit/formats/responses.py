"""What the formats of servers' answers share: files of JSON responses, each with one or more requests.

In: the files that a user saved: one response, a JSON array of them, or one a line. Out: a source. Which
keys a server writes, a derived format says.
"""

import base64
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tracekit.formats.format import Format
from tracekit.formats.given import Given
from tracekit.formats.json_objects import Object, Objects, may_hold
from tracekit.formats.options import ImportOptions
from tracekit.formats.requests import Request, source_of
from tracekit.formats.source import Source
from tracekit.trace import TraceError


class Responses(Format):
    """A format of JSON responses: derive, set the attributes, write `requests`.

    Attributes
    ----------
    top : tuple of str
        A response has one of these keys.
    has, has_not : tuple of str
        Keys that stand anywhere in a file, and such that do not.
    lists : tuple of str
        Keys of nested lists of experts.
    ask : str
        How the server is asked for the experts, as the end of a sentence.
    """

    is_told_late = True
    top: ClassVar[tuple[str, ...]]
    has: ClassVar[tuple[str, ...]]
    has_not: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]]
    ask: ClassVar[str]

    def recognises(self, given: Given) -> bool:
        """Say whether every file holds objects with the keys of this server."""
        return bool(given.files) and all(
            # A batch that OpenAI's clients saved has the response under this key.
            may_hold(file, (*self.top, "response"))
            and file.mentions(*(_quoted(key) for key in self.has))
            and not any(file.mentions(_quoted(key)) for key in self.has_not)
            for file in given.files
        )

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the responses; each request is a turn."""
        return source_of(given, lambda source: self._all(given, source, options), options)

    @abstractmethod
    def requests(
        self, response: Object, body: Mapping[str, Any], given: Given, options: ImportOptions
    ) -> Iterator[Request]:
        """Yield the requests of a response whose experts it has.

        Parameters
        ----------
        response : Object
        body : mapping
            What the server wrote.
        given : Given
            For sentences.
        options : ImportOptions

        Raises
        ------
        TraceError
            What it says does not agree.
        UsageError
            An option is missing.
        """

    def _all(self, given: Given, source: Source, options: ImportOptions) -> Iterator[Request]:
        n_responses = n_without = 0
        for file in given.files:
            objects = Objects(file.path, self.lists)
            for response in objects:
                n_responses += 1
                found = False
                for request in self.requests(response, _body(response.value), given, options):
                    found = True
                    yield request
                n_without += not found
            if objects.cut is not None:
                source.cut(
                    f"{file.path} is incomplete: {objects.cut}, and is read up to the response "
                    "before."
                )
        if n_without == n_responses:
            raise TraceError(
                f"{given.name}: none of its {n_responses} responses holds {self.lists[-1]}; "
                f"{self.ask}."
            )
        if n_without:
            source.warnings.append(
                f"{given.name}: {n_without} of {n_responses} responses hold no {self.lists[-1]}, and "
                "are left out."
            )


def _quoted(key: str) -> bytes:
    return f'"{key}"'.encode()


def _body(value: dict[str, Any]) -> Mapping[str, Any]:
    answer = value.get("response")
    body = answer.get("body") if isinstance(answer, dict) else None
    return body if isinstance(body, dict) else value


def parts(place: str, body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list in a response; an absent one is empty.

    Raises
    ------
    TraceError
        It is no list of objects.
    """
    values = body.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise TraceError(f"{place}: {key} is no list of objects; copy or record it again.")
    return values


def part(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object in a response; what is none is taken as empty."""
    value = body.get(key)
    return value if isinstance(value, dict) else {}


def decoded(place: str, key: str, text: str) -> bytes:
    """Return the bytes of a base64 text.

    Raises
    ------
    TraceError
        It is none.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise TraceError(
            f"{place}: {key} is no whole base64 text ({error}); copy or record it again."
        ) from error


def model_name(body: Mapping[str, Any]) -> str | None:
    """Return the name of the model that a response gives."""
    name = body.get("model")
    return name if isinstance(name, str) else None
