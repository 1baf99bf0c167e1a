"""Ways to damage texts and files, drawn at random: bytes, fields, lines, numbers."""

import random
import re

from mutations import mutate

NUMBERS = (
    "0", "1", "-1", "2", "7", "255", "256", "65535", "65536", "2147483647", "2147483648", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "9" * 20, "9" * 400, "9" * 5000,
    "1e3", "1e999", "1e-999", "0.5", "-0.0", "1.0", ".5", "5.", "+1", "01", "0x10", "0b1", "0o7", "1_000",
    "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "None", "true", "", " ", " 1", "1 ", "1,1", "\u0661",
    "1\0", "1e5000", "0x" + "f" * 5000,
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\x1b[2J", "\u202e", "\n", "\r", "\t", "'", '"', "=1+1", "a" * 300, "\ud800", "é", "…",
    "../../x", "/dev/zero", "/dev/stdin", "-", "--", "lru", ":", "a:b", ".", "..", "%s%n", "{0}", "$x$", "[", "{",
)  # fmt: skip


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    return mutate(data, rng)


def damaged_numbers(text: str, rng: random.Random) -> str:
    """Replace a number, or one of its digits."""
    found = list(re.finditer(r"\d+(\.\d+)?", text))
    if not found:
        return text
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        number = rng.choice(found)
        if number.end() > len(text) or not text[number.start() : number.end()]:
            continue
        if rng.random() < 0.5:
            at = rng.randrange(number.start(), number.end())
            text = text[:at] + rng.choice("0123456789") + text[at + 1 :]
        else:
            text = text[: number.start()] + rng.choice(NUMBERS) + text[number.end() :]
            found = list(re.finditer(r"\d+(\.\d+)?", text)) or found
    return text


def damaged_lines(lines: list[str], rng: random.Random) -> list[str]:
    """Remove, repeat, exchange, move or cut lines."""
    lines = list(lines)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if not lines:
            return lines
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(other, lines[at])
        elif kind == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            low, high = sorted((at, other))
            del lines[low : low + min(high - low, 8)]
        elif kind == 4:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        else:
            lines[at:at] = [rng.choice(("", " ", "#", "# a=b", ",,,,,,,,", "x"))]
    return lines


def damaged_fields(line: str, rng: random.Random) -> str:
    """Replace, remove, repeat or exchange fields of a line with commas."""
    fields = line.split(",")
    at, other = rng.randrange(len(fields)), rng.randrange(len(fields))
    kind = rng.randrange(5)
    if kind < 2:
        fields[at] = rng.choice(NUMBERS)
    elif kind == 2:
        del fields[at]
    elif kind == 3:
        fields.insert(other, fields[at])
    else:
        fields[at], fields[other] = fields[other], fields[at]
    return ",".join(fields)
