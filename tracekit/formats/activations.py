"""Lists of activations as JSON writes them: objects of layer, token_idx, expert_idx and gate_weight.

In: the text of a list. Out: an array for each key, or nothing if the text is not as json.dumps writes
it; then Arrow reads it. Arrow makes a text of each number first, which takes six times as long.
"""

import numpy as np

from tracekit.kernels import kernel

KEYS = ("layer", "token_idx", "expert_idx", "gate_weight")
_NAMES = np.zeros((len(KEYS), max(map(len, KEYS))), np.uint8)
for _at, _key in enumerate(KEYS):
    _NAMES[_at, : len(_key)] = list(_key.encode())
_LENGTHS = np.array([len(key) for key in KEYS])
_WEIGHT = KEYS.index("gate_weight")
_LARGEST = (1 << 31) - 1
_MOST_DIGITS = 18
# Powers of ten that a float has exactly.
_TENS = np.array([10.0**n for n in range(23)])
# A float64 whose last bits are near these lies near the middle of two float32: which of them is
# nearer, its own error may decide.
_TAIL, _MIDDLE, _NEAR = (1 << 29) - 1, 1 << 28, 16
# Smaller numbers have fewer bits as float32.
_LEAST = 1e-30
# No object with the three whole numbers is shorter.
_LEAST_BYTES = len('{"layer":1,"token_idx":1,"expert_idx":1}')


def activations(text: bytes | memoryview) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Return the whole numbers and the weights of a list of activations.

    Parameters
    ----------
    text : bytes or memoryview
        From after its opening bracket; it may go on after the closing one.

    Returns
    -------
    whole : int32 [3, n]
        Layers, tokens and experts.
    weights : float32 [n]
        NaN: none.
    end : int
        Where the closing bracket stands in the text.
    None
        It has another form, or a number that this does not read to the last bit.
    """
    most = len(text) // _LEAST_BYTES + 1
    whole = np.empty((_WEIGHT, most), np.int32)
    weights = np.empty(most)
    n, end = _parse(np.frombuffer(text, np.uint8), _NAMES, _LENGTHS, _TENS, whole, weights)
    if n == 0:
        return None
    whole, weights = whole[:, :n].copy(), weights[:n].copy()  # their ends were never touched
    tail = weights.view(np.int64) & _TAIL
    near = np.abs(tail - _MIDDLE) <= _NEAR
    small = (weights != 0) & (np.abs(weights) < _LEAST)
    if (near | small).any():
        return None
    return whole, weights.astype(np.float32), end


# `at` goes through the text; each part leaves it behind what it has read, or returns.
@kernel
def _parse(
    text: np.ndarray,
    names: np.ndarray,
    lengths: np.ndarray,
    tens: np.ndarray,
    whole: np.ndarray,
    weights: np.ndarray,
) -> tuple[int, int]:
    """Fill `whole` and `weights`; return how many there are, and where the closing bracket stands.

    No rows: the text is not objects of numbers, all keys in each.
    """
    end = text.size
    n_keys = lengths.size
    row, at = 0, 0
    while True:
        while at < end and text[at] == 32:
            at += 1
        if at == end:
            return 0, at
        if text[at] == 93:  # the closing bracket
            return row, at
        if row > 0:
            if text[at] != 44:  # a comma
                return 0, at
            at += 1
            while at < end and text[at] == 32:
                at += 1
        if at == end or text[at] != 123 or row == weights.size:  # an opening brace
            return 0, at
        at += 1
        weights[row] = np.nan
        seen = 0
        while True:
            while at < end and text[at] == 32:
                at += 1
            if at == end or text[at] != 34:  # a quotation mark
                return 0, at
            at += 1
            start = at
            while at < end and text[at] != 34:
                if text[at] == 92 or text[at] < 32:  # a backslash
                    return 0, at
                at += 1
            which = -1
            for each in range(n_keys):
                if at - start == lengths[each]:
                    is_same = True
                    for letter in range(at - start):
                        is_same &= text[start + letter] == names[each, letter]
                    if is_same:
                        which = each
            at += 1
            if at >= end or text[at] != 58:  # a colon
                return 0, at
            at += 1
            while at < end and text[at] == 32:
                at += 1
            # A number: sign, digits, a point and digits, an exponent.
            negative = at < end and text[at] == 45
            if negative:
                at += 1
            mantissa, n_digits, shift = np.int64(0), 0, 0
            first = at
            while at < end and 48 <= text[at] <= 57:
                mantissa = mantissa * 10 + (text[at] - 48)
                n_digits += 1
                at += 1
                if n_digits > _MOST_DIGITS:
                    return 0, at
            if n_digits == 0 or (n_digits > 1 and text[first] == 48):
                return 0, at
            is_whole = not negative
            if at < end and text[at] == 46:  # a point
                is_whole = False
                at += 1
                first = at
                while at < end and 48 <= text[at] <= 57:
                    mantissa = mantissa * 10 + (text[at] - 48)
                    n_digits += mantissa > 0
                    shift -= 1
                    at += 1
                    if n_digits > _MOST_DIGITS:
                        return 0, at
                if at == first:
                    return 0, at
            if at < end and (text[at] == 101 or text[at] == 69):  # e, E
                is_whole = False
                at += 1
                less = at < end and text[at] == 45
                if at < end and (text[at] == 45 or text[at] == 43):
                    at += 1
                first, exponent = at, 0
                while at < end and 48 <= text[at] <= 57 and exponent < 1000:
                    exponent = exponent * 10 + (text[at] - 48)
                    at += 1
                if at == first:
                    return 0, at
                shift += -exponent if less else exponent
            if which >= 0:
                if seen & (1 << which):
                    return 0, at
                seen |= 1 << which
                if which == _WEIGHT:
                    if not -44 <= shift <= 22:
                        return 0, at
                    value = np.float64(mantissa)
                    if shift > 0:
                        value *= tens[shift]
                    elif shift >= -22:
                        value /= tens[-shift]
                    else:
                        value = value / tens[22] / tens[-shift - 22]
                    weights[row] = -value if negative else value
                else:
                    if not is_whole or mantissa > _LARGEST:
                        return 0, at
                    whole[which, row] = mantissa
            while at < end and text[at] == 32:
                at += 1
            if at < end and text[at] == 44:
                at += 1
                continue
            break
        if at == end or text[at] != 125 or seen & 7 != 7:  # a closing brace
            return 0, at
        at += 1
        row += 1
