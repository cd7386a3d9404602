"""Brute force for the statistics kernel, and the tensors that its tests try."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FLOAT8 = [
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = SIGNED + UNSIGNED
DTYPES = [*FLOATS, *FLOAT8, *COMPLEX, *INTEGERS, torch.bool]


def is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def is_double(dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.complex128)


def elements_of(tensor: torch.Tensor) -> np.ndarray:
    """All elements, as long doubles; absolute values of complex ones. What is repeated, is repeated."""
    tensor = tensor.detach()
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj()).double().numpy()
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            return np.hypot(parts[..., 0], parts[..., 1]).astype(np.longdouble).ravel()
    if is_integer(tensor.dtype):
        return tensor.numpy().astype(np.longdouble).ravel()
    with np.errstate(invalid="ignore"):  # signaling NaN
        return tensor.resolve_neg().double().numpy().astype(np.longdouble).ravel()


def expected_of(tensor: torch.Tensor) -> tuple[float, ...]:
    """Norm, max, min, mean, NaN, infinities, zeros and count."""
    elements = elements_of(tensor)
    nans = int(np.isnan(elements).sum())
    counts = (nans, int(np.isinf(elements).sum()), int((elements == 0).sum()), elements.size)
    if nans:
        return (math.nan,) * 4 + counts
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        four = (np.sqrt((elements * elements).sum()), elements.max(), elements.min(), elements.mean())
        return tuple(float(value) for value in four) + counts


def assert_expected(found: Iterable[float], tensor: torch.Tensor, epsilon: float | None = None) -> None:
    """Extremes and counts are exact; norm and mean are right up to `epsilon`, relative to the elements' size."""
    if epsilon is None:
        epsilon = 1e-12 if is_double(tensor.dtype) or is_integer(tensor.dtype) else 2.0**-24 * (1 + 1e-6)
    # Where numbers have lost bits to the end of the range.
    least = 2.0**-1074 if is_double(tensor.dtype) else 2.0**-149
    norm, largest, smallest, mean, *counts = found
    expected = expected_of(tensor)
    assert counts == list(expected[4:])
    if tensor.is_complex():
        assert largest == pytest.approx(expected[1], rel=epsilon, abs=least, nan_ok=True)
        assert smallest == pytest.approx(expected[2], rel=epsilon, abs=least, nan_ok=True)
    else:
        assert largest == expected[1] or (math.isnan(largest) and math.isnan(expected[1]))
        assert smallest == expected[2] or (math.isnan(smallest) and math.isnan(expected[2]))
    assert norm == pytest.approx(expected[0], rel=epsilon, abs=least, nan_ok=True)
    # The rounding of a mean is as large as what was added up, not as the mean.
    with np.errstate(over="ignore", under="ignore"):
        size = float(np.sqrt(np.square(elements_of(tensor)).mean()))
    tolerance = epsilon * size + least if math.isfinite(size) else 0
    assert mean == pytest.approx(expected[3], rel=0, abs=tolerance, nan_ok=True)


def expected_std(tensor: torch.Tensor) -> float:
    """As torch.std has it by default, of what elements_of() gives."""
    elements = elements_of(tensor)
    if elements.size == 1 or not np.isfinite(elements).all():
        return math.nan
    with np.errstate(over="ignore", under="ignore"):
        return float(elements.std(ddof=1))


def assert_expected_std(found: float | None, tensor: torch.Tensor, epsilon: float | None = None) -> None:
    """Right up to `epsilon` of itself, however large the mean is."""
    if epsilon is None:
        epsilon = 1e-11 if is_double(tensor.dtype) or is_integer(tensor.dtype) else 2.0**-24 * (1 + 1e-6)
    least = 2.0**-1074 if is_double(tensor.dtype) else 2.0**-149
    assert found == pytest.approx(expected_std(tensor), rel=epsilon, abs=least, nan_ok=True)


def random_tensor(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Ordinary numbers that the type holds, one in ten of them 0."""
    random = np.random.default_rng(seed)
    numbers = random.standard_normal(count) * 20
    numbers[random.random(count) < 0.1] = 0
    if dtype == torch.bool:
        return torch.from_numpy(numbers > 0)
    if dtype in UNSIGNED or dtype == torch.float8_e8m0fnu:
        numbers = np.abs(numbers)
    if dtype.is_complex:
        imaginary = random.standard_normal(count) * (numbers != 0)
        return torch.complex(torch.from_numpy(numbers), torch.from_numpy(imaginary)).to(dtype)
    return torch.from_numpy(numbers).to(dtype)
