"""Pickles of plain values, read by running only the opcodes that build lists, dicts, texts and numbers.

In: the bytes of a pickle, and the few names that it may call. Out: the value. A pickle is a program
that Python's own reader runs; this one has no opcode that imports a module, makes an instance or sets
an attribute. A name that is not among the few is refused before anything is done with it.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.trace import TraceError
from tracekit.trace.build import shown

# A value of a trace is flat: a record a pass, a number a token. These are hundred times as much.
MOST_BYTES = 64 << 20
MOST_CONTAINERS = 2 << 20
_MOST_NAME_BYTES = 200
_MOST_LONG_BYTES = 64
_UNORDERED = (IndexError, KeyError, TypeError, ValueError, EOFError, OverflowError, MemoryError)


@dataclass(frozen=True)
class Name:
    """A name of the list that a pickle may use.

    Attributes
    ----------
    text : str
    call : callable or None
        What a call of it does here; None: it cannot be called.
    """

    text: str
    call: Callable[..., Any] | None = None


class Pickle:
    """Runs one pickle.

    Parameters
    ----------
    name : str
        What sentences call it.
    data : bytes
    names : mapping of (module, name) to Name
        All that it may name.
    persistent : callable
        Maps the tuple of a persistent id to a value; a ValueError says what is wrong with it.
    """

    def __init__(
        self,
        name: str,
        data: bytes,
        names: Mapping[tuple[str, str], Name],
        persistent: Callable[[Any], Any],
    ):
        self._name = name
        self._data = data
        self._names = names
        self._persistent = persistent
        self._at = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._n_containers = 0

    def load(self) -> Any:
        """Return the value of the pickle.

        Raises
        ------
        TraceError
            It asks for a name that is not on the list, which is named; or it is damaged or too large.
        """
        if len(self._data) > MOST_BYTES:
            raise TraceError(
                f"{self._name} has {len(self._data)} bytes beside its tensors, more than the "
                f"{MOST_BYTES} of any trace; save tensors of numbers in place of lists."
            )
        try:
            return self._run()
        except _UNORDERED as error:
            fault = str(error).splitlines()[0][:100].rstrip(".") if str(error) else "out of order"
            raise TraceError(
                f"{self._name} is damaged or was not written by torch.save ({fault} at byte "
                f"{self._at}); copy or save it again."
            ) from error

    def _run(self) -> Any:
        data, steps = self._data, _STEPS
        while True:
            code = data[self._at]
            self._at += 1
            if code == _STOP:
                return self._stack.pop()
            step = steps.get(code)
            if step is None:
                raise ValueError(f"opcode {code:#04x}, which torch.save does not write for tensors")
            step(self)

    # ---- what the opcodes do ---------------------------------------------------------------

    def _take(self, n_bytes: int) -> bytes:
        end = self._at + n_bytes
        if end > len(self._data):
            raise EOFError("it is cut")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self, form: str) -> int:
        value: int
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return value

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + _MOST_NAME_BYTES)
        if end < 0:
            raise EOFError("a name without an end")
        line = self._data[self._at : end]
        self._at = end + 1
        return line.decode()

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _container(self, value: Any) -> None:
        self._n_containers += 1
        if self._n_containers > MOST_CONTAINERS:
            raise ValueError(f"it has more than {MOST_CONTAINERS} lists, as no trace has")
        self._stack.append(value)

    def _text(self, form: str) -> None:
        self._push(self._take(self._number(form)).decode("utf-8", "surrogatepass"))

    def _old_text(self, form: str) -> None:
        self._push(self._take(self._number(form)).decode("latin-1"))

    def _long(self, form: str) -> None:
        n_bytes = self._number(form)
        if not 0 <= n_bytes <= _MOST_LONG_BYTES:
            raise ValueError(f"a number of {n_bytes} bytes")
        self._push(int.from_bytes(self._take(n_bytes), "little", signed=True))

    def _float(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0])

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        marked = self._stack
        self._stack = self._below.pop()
        return marked

    def _tuple(self, n_items: int | None) -> None:
        if n_items is None:
            items = self._marked()
        else:
            items = self._stack[len(self._stack) - n_items :]
            if len(items) != n_items:
                raise IndexError("a tuple of what is not there")
            del self._stack[len(self._stack) - n_items :]
        self._container(tuple(items))

    def _list(self) -> None:
        self._container(self._marked())

    def _dict(self) -> None:
        items = self._marked()
        self._container({})
        self._put(self._stack[-1], items)

    def _append(self, items: Sequence[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError("values are appended to what is no list")
        target.extend(items)

    def _append_one(self) -> None:
        self._append([self._stack.pop()])

    def _set(self, items: Sequence[Any]) -> None:
        self._put(self._stack[-1], items)

    def _set_one(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _put(self, target: Any, items: Sequence[Any]) -> None:
        if type(target) is not dict or len(items) % 2:
            raise TypeError("items are set in what is no dict")
        for key in items[::2]:
            # Others would be compared and hashed by what they hold.
            if type(key) not in (str, int, float, bool, type(None)):
                raise TypeError(f"a key of the type {type(key).__name__}")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _get(self, form: str) -> None:
        self._push(self._memo[self._number(form)])

    def _store(self, form: str | None) -> None:
        index = len(self._memo) if form is None else self._number(form)
        self._memo[index] = self._stack[-1]

    def _global(self) -> None:
        module, name = self._line(), self._line()
        self._push_name(module, name)

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name that is no text")
        self._push_name(module, name)

    def _push_name(self, module: str, name: str) -> None:
        found = self._names.get((module, name))
        if found is None:
            raise TraceError(
                f"{self._name} asks for {shown(f'{module}.{name}')}, which no file of tensors needs, "
                "so nothing of it is run; save only tensors, lists, dicts, texts and numbers."
            )
        self._push(found)

    def _instance(self) -> None:
        """Refuse the old opcode that names a class and makes an instance of it."""
        self._global()
        raise ValueError("an instance of a class")

    def _call(self) -> None:
        arguments, name = self._stack.pop(), self._stack.pop()
        if not isinstance(name, Name) or name.call is None or type(arguments) is not tuple:
            called = name.text if isinstance(name, Name) else type(name).__name__
            raise ValueError(f"a call of {called}")
        self._container(name.call(*arguments))

    def _build(self) -> None:
        """Leave out attributes: an OrderedDict of torch has some, and none is of a trace."""
        self._stack.pop()

    def _persist(self) -> None:
        self._push(self._persistent(self._stack.pop()))


_STOP = ord(".")
_STEPS: Mapping[int, Callable[[Pickle], object]] = {
    0x80: lambda p: p._take(1),  # protocol
    0x95: lambda p: p._take(8),  # frame
    ord("("): Pickle._mark,
    ord("0"): lambda p: p._stack.pop(),
    ord("2"): lambda p: p._push(p._stack[-1]),
    ord("N"): lambda p: p._push(None),
    0x88: lambda p: p._push(True),
    0x89: lambda p: p._push(False),
    ord("K"): lambda p: p._push(p._number("<B")),
    ord("M"): lambda p: p._push(p._number("<H")),
    ord("J"): lambda p: p._push(p._number("<i")),
    0x8A: lambda p: p._long("<B"),
    0x8B: lambda p: p._long("<i"),
    ord("G"): Pickle._float,
    ord("X"): lambda p: p._text("<I"),
    0x8C: lambda p: p._text("<B"),
    0x8D: lambda p: p._text("<Q"),
    ord("U"): lambda p: p._old_text("<B"),
    ord("T"): lambda p: p._old_text("<I"),
    ord("C"): lambda p: p._push(p._take(p._number("<B"))),
    ord("B"): lambda p: p._push(p._take(p._number("<I"))),
    ord("]"): lambda p: p._container([]),
    ord("}"): lambda p: p._container({}),
    ord(")"): lambda p: p._push(()),
    ord("t"): lambda p: p._tuple(None),
    0x85: lambda p: p._tuple(1),
    0x86: lambda p: p._tuple(2),
    0x87: lambda p: p._tuple(3),
    ord("l"): Pickle._list,
    ord("d"): Pickle._dict,
    ord("a"): Pickle._append_one,
    ord("e"): lambda p: p._append(p._marked()),
    ord("s"): Pickle._set_one,
    ord("u"): lambda p: p._set(p._marked()),
    ord("h"): lambda p: p._get("<B"),
    ord("j"): lambda p: p._get("<I"),
    ord("q"): lambda p: p._store("<B"),
    ord("r"): lambda p: p._store("<I"),
    0x94: lambda p: p._store(None),
    ord("c"): Pickle._global,
    0x93: Pickle._stack_global,
    ord("i"): Pickle._instance,
    ord("R"): Pickle._call,
    ord("b"): Pickle._build,
    ord("Q"): Pickle._persist,
}
