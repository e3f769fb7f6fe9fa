"""A histogram of rates or times, in buckets that are 2 to 3 % wide, and its short form on disk."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf

import msgspec

# A bucket is the highest bits of a 32-bit float: its exponent, and five bits below, so there are 32
# between a value and its double. Floats are in the order of their bits.
_BITS, _UPPER = 18, int(sys.byteorder == "little")
_FLOAT, _WORD = struct.Struct("=f"), struct.Struct("=I")


def buckets(values: array[float]) -> bytes:
    """Return the buckets of 32-bit floats of 0 or more, as 16-bit numbers.

    The kind of work of which a loop in Python would cost more than all the rest.
    """
    upper = memoryview(values).cast("B").cast("H")[_UPPER::2].tobytes()
    shift = _BITS - 16
    mask = int.from_bytes((0xFFFF >> shift).to_bytes(2, sys.byteorder) * len(values), sys.byteorder)
    found = (int.from_bytes(upper, sys.byteorder) >> shift) & mask
    return found.to_bytes(len(upper), sys.byteorder)


def _bucket(value: float) -> int:
    (word,) = _WORD.unpack(_FLOAT.pack(value))
    return int(word) >> _BITS


#: From here on, a bucket is of no number.
INFINITE = _bucket(inf)
# From a microsecond to a billion operations a second. There is one bucket below, and one above.
_LEAST, _LAST = _bucket(2.0**-20), _bucket(2.0**30) - _bucket(2.0**-20)
# A key is a bucket's place after _LEAST, and in its lowest bits how many buckets it is wide, as a
# power of two.
_WIDTH_BITS = 4
_WIDTH = (1 << _WIDTH_BITS) - 1
_LIST = msgspec.msgpack.Decoder(list[int])


class Histogram:
    """How many values were in which bucket."""

    __slots__ = ("_added", "_merged")

    def __init__(self) -> None:
        self._added: Counter[int] = Counter()  # by bucket
        self._merged: dict[int, int] = {}  # by key

    def add(self, found: Iterable[int]) -> None:
        """Count values by their buckets. What isn't a number isn't counted."""
        self._added.update(found)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another one."""
        counts = self._merged
        for key, count in other._counts().items():
            counts[key] = counts.get(key, 0) + count

    def _counts(self) -> Mapping[int, int]:
        """Return all counts by key."""
        if not self._added:
            return self._merged
        counts = dict(self._merged)
        for bucket, count in self._added.items():
            if bucket < INFINITE:
                key = min(max(bucket - _LEAST, 0), _LAST) << _WIDTH_BITS
                counts[key] = counts.get(key, 0) + count
        return counts

    @property
    def total(self) -> int:
        """How many values it has."""
        return sum(self._counts().values())

    def pack(self, most_bytes: int) -> bytes:
        """Return its short form, for which buckets are joined until it is so short.

        The more buckets have values, the wider they become, so none has a large part of all.
        """
        short, counts = b"", self._counts()
        for width in range(max((key & _WIDTH for key in counts), default=0), _WIDTH + 1):
            found: Counter[int] = Counter()
            for key, count in counts.items():
                found[key >> _WIDTH_BITS >> width] += count
            if 2 * len(found) >= most_bytes and width < _WIDTH:
                continue
            packed = [width]
            for before, place in pairwise([0, *sorted(found)]):
                packed += (place - before, found[place])
            short = msgspec.msgpack.encode(packed)
            if len(short) <= most_bytes:
                break
        return short

    @classmethod
    def unpack(cls, short: bytes) -> Histogram:
        """Return the histogram of a short form. Raises ValueError if it isn't one."""
        width, *rest = _LIST.decode(short) or [-1]  # msgspec's errors are ValueErrors
        gaps, counts = rest[::2], rest[1::2]
        if not 0 <= width <= _WIDTH or min(rest, default=0) < 0 or sum(gaps) > _LAST >> width:
            raise ValueError("not a histogram")
        histogram = cls()
        histogram._merged = {
            (place << width << _WIDTH_BITS) | width: count
            for place, count in zip(accumulate(gaps), counts, strict=True)
        }
        return histogram

    def part_above(self, value: float) -> float:
        """Return which part of the values is above this one, 0 to 1; 0 if there are none.

        The values of a bucket count as spread over it evenly.
        """
        above, counts = 0.0, self._counts()
        for key, count in counts.items():
            low, high = _bounds(key)
            above += count * min(1.0, max(0.0, (high - value) / (high - low)))
        return above / sum(counts.values()) if above else 0.0

    def quantiles(self, parts: Sequence[float]) -> list[float]:
        """Return the values that these parts of all don't exceed; 0 for each if there are none."""
        fine: defaultdict[int, float] = defaultdict(float)
        for key, count in self._counts().items():
            wide = 1 << (key & _WIDTH)
            for place in range(wide):
                fine[(key >> _WIDTH_BITS) + place] += count / wide
        places = sorted(fine)
        sums = [0.0, *accumulate(fine[place] for place in places)]
        return [_quantile(part * sums[-1], places, sums) for part in parts]


def _quantile(count: float, places: Sequence[int], sums: Sequence[float]) -> float:
    """Return the value up to which there are so many values.

    sums: how many there are before each place, and before the end.
    """
    at = min(max(bisect_left(sums, count), 1), len(places))
    if not places or places[at - 1] == 0:
        return 0.0
    low, high = _bounds(places[at - 1] << _WIDTH_BITS)
    part = (count - sums[at - 1]) / (sums[at] - sums[at - 1])
    return low + min(1.0, max(0.0, part)) * (high - low)


def _bounds(key: int) -> tuple[float, float]:
    place = key >> _WIDTH_BITS
    return _value(place), _value(place + (1 << (key & _WIDTH)))


def _value(place: int) -> float:
    """Return the least value of a bucket."""
    if place == 0:
        return 0.0
    (value,) = _FLOAT.unpack(_WORD.pack(place + _LEAST << _BITS))
    return float(value)
