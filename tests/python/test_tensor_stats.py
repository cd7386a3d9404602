"""The statistics kernel against NumPy and against torch's own operators."""

import math

import pytest

torch = pytest.importorskip("torch")
from trendprobe import _tensor_stats as tensor_stats  # noqa: E402


def test_ordinary_tensor() -> None:
    tensor = torch.tensor([[3.0, -4.0], [0.0, 12.0]])
    assert tensor_stats.measure(tensor) == (13.0, 12.0, -4.0, 2.75, 0, 0, 1, 4)


def test_nan_makes_all_four_nan() -> None:
    statistics = tensor_stats.measure(torch.tensor([1.0, math.nan, math.inf, 0.0]))
    assert all(map(math.isnan, statistics[:4]))
    assert statistics[4:] == (1, 1, 1, 4)
