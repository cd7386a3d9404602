"""How a value tells a number from NaN, infinity and "missing" by its bits (docs/format.md, "Values")."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = [
    "CUT_MAGNITUDE",
    "INFINITE_MAGNITUDE",
    "MISSING_FLOAT32",
    "MISSING_FLOAT64",
    "decode_row_values",
    "describe_value",
    "fits_float32",
    "is_missing",
    "missing_array",
]

MISSING_FLOAT32: Final = np.uint32(0x7FC04D56)
MISSING_FLOAT64: Final = np.uint64(0x7FF809AAC0000000)
NAN_FLOAT64: Final = np.uint64(0x7FF8000000000000)

# msProbe's rows cut larger values to this and write an infinity as the other.
CUT_MAGNITUDE: Final = 1e9
INFINITE_MAGNITUDE: Final = 1e9 + 1

FloatArray = np.ndarray  # of float32 or float64, little-endian


def missing_array(shape: tuple[int, ...], dtype: Any) -> FloatArray:
    """Make an array of missing values."""
    if np.dtype(dtype).itemsize == 4:
        return np.full(shape, MISSING_FLOAT32, dtype="<u4").view("<f4")
    return np.full(shape, MISSING_FLOAT64, dtype="<u8").view("<f8")


def is_missing(values: FloatArray) -> np.ndarray:
    """Find where an array of either width holds the missing value."""
    if values.dtype.itemsize == 4:
        return np.asarray(values.view("<u4") == MISSING_FLOAT32)
    return np.asarray(values.view("<u8") == MISSING_FLOAT64)


def fits_float32(values: FloatArray) -> bool:
    """Return True if float32 holds every value but for its own rounding, as docs/format.md defines it."""
    finite = values[np.isfinite(values)]
    magnitude = np.abs(finite)
    if (magnitude > np.finfo(np.float32).max).any():
        return False
    inexact = finite.astype(np.float32).astype(np.float64) != finite
    tiny = magnitude < np.finfo(np.float32).tiny
    large_integer = (magnitude >= 2.0**24) & (np.rint(finite) == finite)
    return not bool((inexact & (tiny | large_integer)).any())


def decode_row_values(column: list[Any], null_is_missing: bool) -> FloatArray:
    """Decode values of `trend_data`: stand-ins for infinity become infinities, NULL becomes NaN or missing.

    Args:
        column: What SQLite returned: floats, None; in a foreign file also texts or bytes, which count as NaN.
        null_is_missing: NULL is "missing" where every NaN is known from elsewhere, otherwise NaN.

    """
    try:
        values = np.array(column, dtype="<f8")
    except (TypeError, ValueError, OverflowError):
        values = np.array([_number(value) for value in column], dtype="<f8")
    values[values == INFINITE_MAGNITUDE] = np.inf
    values[values == -INFINITE_MAGNITUDE] = -np.inf
    bits = values.view("<u8")
    bits[np.isnan(values)] = MISSING_FLOAT64 if null_is_missing else NAN_FLOAT64
    return values


def describe_value(value: np.generic) -> float | str:
    """Describe one value for JSON, which has no words for the states: a number, or `NaN`, `+inf`, `-inf`, `missing`."""
    array = np.array([value])
    if is_missing(array)[0]:
        return "missing"
    number = float(value)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "+inf" if number > 0 else "-inf"
    return number


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")
