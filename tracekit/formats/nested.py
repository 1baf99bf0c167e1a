"""Nested lists of whole numbers as JSON writes them, as arrays.

In: text, ``[[[7, 1], [0, 5]], …]``. Out: an array of as many axes. JSON's own reader makes a Python
object of each number, which takes ten times the memory and many times the time.
"""

import numpy as np

from tracekit.kernels import kernel

MOST_AXES = 3
_LARGEST = (1 << 31) - 1
_FAULTS = {
    1: "something else than nested lists of whole numbers",
    2: "lists of different lengths or depths",
    3: "a number that no expert has",
    4: "a list without an end",
}


def nested_numbers(text: bytes) -> np.ndarray:
    """Return nested lists of whole numbers as an array, int32.

    Parameters
    ----------
    text : bytes
        From its first bracket to its last; at most three levels. An empty list has shape (0,).

    Raises
    ------
    ValueError
        It is no such lists, they are not all of one length, or a number is too large.
    """
    if len(text) < 64 and text.translate(None, b" \t\r\n") == b"[]":
        return np.empty(0, np.int32)
    values = np.empty(text.count(b",") + 1, np.int32)
    lengths = np.full(MOST_AXES + 1, -1)
    fault, n_values = _parse(np.frombuffer(text, np.uint8), values, lengths)
    if fault:
        raise ValueError(_FAULTS[fault])
    return values[:n_values].reshape(lengths[lengths >= 0])


@kernel
def _parse(text: np.ndarray, values: np.ndarray, lengths: np.ndarray) -> tuple[int, int]:
    """Fill `values`, and the lengths of the lists by their depth from 1; return fault and count."""
    counts = np.zeros(lengths.size, np.int64)
    depth, levels, n_values = 0, 0, 0
    # Whether a value stands before this place, after which a comma or a bracket is due.
    follows, in_number, is_over = False, False, False
    number, sign, n_digits = np.int64(0), np.int64(1), 0
    for byte in text:
        if 48 <= byte <= 57:
            if not in_number:
                if follows or depth == 0:
                    return 1, 0
                in_number, number, sign, n_digits = True, np.int64(0), np.int64(1), 0
            if n_digits > 0 and number == 0:
                return 1, 0
            number = number * 10 + byte - 48
            n_digits += 1
            if number > _LARGEST:
                return 3, 0
            continue
        if in_number:
            if n_digits == 0:
                return 1, 0
            if levels == 0:
                levels = depth
            elif depth != levels:
                return 2, 0
            values[n_values] = sign * number
            n_values += 1
            counts[depth] += 1
            follows, in_number = True, False
        if byte == 32 or byte == 10 or byte == 13 or byte == 9:
            continue
        if byte == 44:  # a comma
            if not follows or depth == 0:
                return 1, 0
            follows = False
        elif byte == 93:  # a closing bracket
            if not follows or depth == 0:
                return 1, 0
            if lengths[depth] < 0:
                lengths[depth] = counts[depth]
            elif lengths[depth] != counts[depth]:
                return 2, 0
            depth -= 1
            counts[depth] += 1
            is_over = depth == 0
        elif byte == 91:  # an opening bracket
            if follows or is_over:
                return 1, 0
            depth += 1
            if depth >= lengths.size or (levels > 0 and depth > levels):
                return 2, 0
            counts[depth] = 0
        elif byte == 45:  # a minus
            if follows or depth == 0:
                return 1, 0
            in_number, number, sign, n_digits = True, np.int64(0), np.int64(-1), 0
        else:
            return 1, 0
    if in_number or not is_over:
        return 4, 0
    return 0, n_values
