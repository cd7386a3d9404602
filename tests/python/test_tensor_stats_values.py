"""The statistics kernel against brute force in NumPy, and against what msProbe computes."""

import itertools
import math
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from tensor_stats_reference import (  # noqa: E402
    COMPLEX,
    DTYPES,
    FLOAT8,
    FLOATS,
    INTEGERS,
    SIGNED,
    assert_expected,
    assert_expected_std,
    is_double,
    is_integer,
    random_tensor,
)
from trendprobe import _tensor_stats as tensor_stats  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:.*quantized tensor creation")
bounded = settings(derandomize=True, deadline=None, max_examples=400, database=None)


def bits_of(statistics: Any) -> bytes:
    return struct.pack("<4d4q", *statistics)


def tensor_of_bits(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any bit pattern: all magnitudes, many kinds of NaN."""
    pattern = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if dtype == torch.bool:
        pattern &= 1
    return torch.from_numpy(pattern).view(dtype) if count else torch.empty(0, dtype=dtype)


def special_values(dtype: torch.dtype) -> list[Any]:
    if is_integer(dtype):
        if dtype == torch.bool:
            return [False, True]
        limits = torch.iinfo(dtype)
        return [0, 1, limits.max, limits.min, limits.max - 1]
    limits = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.5, limits.max, limits.min, limits.tiny, limits.smallest_normal / 2, math.nan]
    if dtype not in FLOAT8 or dtype == getattr(torch, "float8_e5m2", None):
        values += [math.inf, -math.inf]
    if dtype.is_complex:
        largest = limits.max / 2  # the absolute value of two of these is within the range
        parts = [0.0, -0.0, 3.0, largest, -largest, limits.tiny, limits.smallest_normal / 2, math.nan, math.inf]
        return [complex(real, imaginary) for real, imaginary in itertools.product(parts, parts)]
    return values


# Views

VIEWS = ["permute", "slice", "step", "select", "expand", "unsqueeze", "diagonal", "unfold"]


@st.composite
def views(draw: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Up to four views of one another, as a training makes them."""
    for _ in range(draw(st.integers(0, 4))):
        dim = draw(st.integers(0, tensor.dim() - 1)) if tensor.dim() else None
        kind = draw(st.sampled_from(VIEWS))
        if kind == "expand":
            tensor = tensor.unsqueeze(draw(st.integers(0, tensor.dim())))
            size = draw(st.integers(1, 5))
            tensor = tensor.expand([size if n == 1 else n for n in tensor.shape])
        elif kind == "unsqueeze":
            tensor = tensor.unsqueeze(draw(st.integers(0, tensor.dim())))
        elif dim is None:
            continue
        elif kind == "permute":
            tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
        elif kind == "slice":
            start = draw(st.integers(0, tensor.shape[dim]))
            tensor = tensor.narrow(dim, start, draw(st.integers(0, tensor.shape[dim] - start)))
        elif kind == "step":
            index: list[Any] = [slice(None)] * tensor.dim()
            index[dim] = slice(draw(st.integers(0, 3)), None, draw(st.integers(1, 4)))
            tensor = tensor[tuple(index)]
        elif kind == "select" and tensor.shape[dim]:
            tensor = tensor.select(dim, draw(st.integers(0, tensor.shape[dim] - 1)))
        elif kind == "diagonal" and tensor.dim() > 1 and tensor.numel():
            tensor = tensor.diagonal(0, 0, tensor.dim() - 1)
        elif kind == "unfold" and tensor.shape[dim] > 2:
            tensor = tensor.unfold(dim, 2, 1)
        if tensor.numel() > 20_000:
            break
    return tensor


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 12), max_size=4) | st.lists(st.integers(1, 300), max_size=2))
    count = math.prod(shape)
    offset = draw(st.integers(0, 3))
    seed = draw(st.integers(0, 1000))
    kind = draw(st.sampled_from(["bits", "ordinary", "special"]))
    if kind == "bits":
        tensor = tensor_of_bits(dtype, count + offset, seed)
    else:
        tensor = random_tensor(dtype, count + offset, seed)
        if kind == "special":
            values = special_values(dtype)
            for place in draw(st.lists(st.integers(0, max(count + offset - 1, 0)), max_size=6)):
                if place < tensor.numel():
                    tensor[place] = torch.tensor(draw(st.sampled_from(values)), dtype=dtype)
    return draw(views(tensor[offset:].view(shape)))


@bounded
@given(tensors())
def test_any_tensor(tensor: torch.Tensor) -> None:
    statistics = tensor_stats.measure(tensor)
    if tensor.numel() == 0:
        assert statistics is None
    else:
        assert_expected(statistics, tensor)


@bounded
@given(tensors())
def test_standard_deviation_of_any_tensor(tensor: torch.Tensor) -> None:
    statistics = tensor_stats.measure(tensor, True)
    if tensor.numel() == 0:
        assert statistics is None
        return
    assert_expected_std(statistics.std, tensor)
    without = tensor_stats.measure(tensor)
    assert without.std is None
    assert bits_of(without) == bits_of(statistics)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, torch.int32, torch.uint8], ids=str)
def test_standard_deviation_of_large_tensors(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 150 * 2001).view(150, 2001)
    for shown in (tensor, tensor.T, tensor[:, 1::2], tensor[:1].expand(7, 2001), tensor[0, :1].expand(9, 1)):
        assert_expected_std(tensor_stats.measure(shown, True).std, shown)


@pytest.mark.parametrize(("dtype", "mean"), [(torch.float32, 1e6), (torch.float64, 1e12), (torch.float64, -1e300)])
def test_standard_deviation_of_differences_far_below_the_mean(dtype: torch.dtype, mean: float) -> None:
    """A few of the last bits of each element are all that differs."""
    differences = torch.from_numpy(np.random.default_rng(1).integers(0, 16, 300_000)).double()
    step = mean * (2.0**-23 if dtype == torch.float32 else 2.0**-40)
    tensor = (mean + differences * step).to(dtype)
    assert 0 < len(tensor.unique()) <= 40
    found = tensor_stats.measure(tensor, True).std
    assert found == pytest.approx(float((tensor.double() - mean).div(abs(step)).std()) * abs(step), rel=1e-6)
    assert tensor_stats.measure(torch.full((100_000,), mean, dtype=dtype), True).std == 0


def test_standard_deviation_agrees_with_torch() -> None:
    for dtype in FLOATS:
        for count in (2, 100, 70_000):
            tensor = random_tensor(dtype, count, seed=count)
            theirs = tensor.double().std().item()
            assert tensor_stats.measure(tensor, True).std == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_tensors(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 150 * 2001).view(150, 2001)
    for shown in (tensor, tensor.T, tensor[:, :2000], tensor[:, 1::2], tensor.view(50, 3, 2001).permute(1, 2, 0)):
        assert_expected(tensor_stats.measure(shown), shown)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_channels_last(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 4 * 6 * 10 * 10).view(4, 6, 10, 10).to(memory_format=torch.channels_last)
    assert not tensor.is_contiguous()
    assert_expected(tensor_stats.measure(tensor), tensor)
    assert_expected(tensor_stats.measure(tensor[:, 1:3]), tensor[:, 1:3])


def test_expanded_beyond_any_memory() -> None:
    for measure in (tensor_stats.measure, tensor_stats.measure_on_device):
        statistics = measure(torch.tensor([1.0, 0.0]).expand(2**40, 2))
        assert list(statistics) == [2.0**20, 1, 0, 0.5, 0, 0, 2**40, 2**41]


def test_expanded_squares_beyond_float64() -> None:
    statistics = tensor_stats.measure(torch.full((1,), 1e153, dtype=torch.float64).expand(100, 100))
    assert statistics.norm == pytest.approx(1e155, rel=1e-12)


def test_negated_and_conjugated_views() -> None:
    tensor = random_tensor(torch.complex64, 100)
    for shown in (tensor.conj().imag, tensor.conj().imag[3:50:2], tensor.conj(), tensor.conj().resolve_conj()):
        assert_expected(tensor_stats.measure(shown), shown)
        assert_expected(tensor_stats.measure_on_device(shown).tolist(), shown, 1e-6)
    statistics = tensor_stats.measure(torch.complex(torch.zeros(2), torch.tensor([0.0, math.inf])).conj().imag)
    assert list(statistics) == [math.inf, 0, -math.inf, -math.inf, 0, 1, 1, 2]
    assert math.copysign(1, statistics.max) == 1


# Elements


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_alone_and_together(dtype: torch.dtype) -> None:
    values = special_values(dtype)
    pairs = list(itertools.product(values, values)) if len(values) < 12 else list(itertools.pairwise(values))
    for chosen in [(value,) for value in values] + pairs:
        for others in (0, 40):
            tensor = torch.tensor([*chosen, *[1] * others], dtype=dtype)
            statistics = tensor_stats.measure(tensor)
            assert_expected(statistics, tensor)
            # Neither extreme is -0: which zero comes first must not matter.
            assert all(math.copysign(1, value) == 1 for value in statistics[1:3] if value == 0)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_nan_makes_all_four_nan(dtype: torch.dtype) -> None:
    for others in ([], [1.0], [math.inf, -math.inf], [0.0] * 100):
        statistics = tensor_stats.measure(torch.tensor([*others, math.nan], dtype=dtype))
        assert all(map(math.isnan, statistics[:4]))
        assert statistics.nans == 1


@pytest.mark.parametrize("dtype", [*FLOAT8, torch.int8, torch.uint8], ids=str)
def test_every_one_byte_element(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    for element in (*every, every[:100], every):
        assert_expected(tensor_stats.measure(element), element)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_two_byte_float(dtype: torch.dtype) -> None:
    every = torch.arange(65536).to(torch.uint16).view(dtype)
    assert_expected(tensor_stats.measure(every), every)
    for part in every.view(-1, 64):
        assert_expected(tensor_stats.measure(part), part)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_beyond_the_range(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for mean, elements in ((largest, [largest] * 64), (0, [largest, largest, -largest, -largest] * 10)):
        tensor = torch.tensor(elements, dtype=dtype)
        statistics = tensor_stats.measure(tensor)
        assert statistics.mean == pytest.approx(mean, rel=1e-6)
        assert statistics.infs == 0
        if not is_double(dtype):
            assert statistics.norm == pytest.approx(largest * math.sqrt(tensor.numel()), rel=1e-6)


@bounded
@given(st.lists(st.floats(width=64), min_size=1, max_size=40))
def test_any_float64(elements: list[float]) -> None:
    tensor = torch.tensor(elements, dtype=torch.float64)
    assert_expected(tensor_stats.measure(tensor), tensor)


@bounded
@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_float32(elements: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(elements, dtype=dtype)
    assert_expected(tensor_stats.measure(tensor), tensor)


# Threads


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_with_any_number_of_threads(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 500_000).view(500, 1000)
    # Where the kernel changes its ways: 32,768 and 49,152.
    parts = [tensor.view(-1)[:count] for count in (32_768, 32_769, 49_152, 49_153, 65_536, 65_537)]
    for shown in (tensor, tensor.T, tensor[:, ::3], *parts):
        found = set()
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            statistics = tensor_stats.measure(shown, True)
            found.add((bits_of(statistics), struct.pack("<d", statistics.std)))
            assert torch.get_num_threads() == count
        assert len(found) == 1


# msProbe


@pytest.fixture(scope="module")
def msprobe() -> Any:
    """The object that computes msProbe's statistics of a tensor."""
    processors = pytest.importorskip("msprobe.core.dump.data_dump.data_processor.pytorch_processor")
    processor = object.__new__(processors.PytorchDataProcessor)
    processor.tensor_handler = processors.TensorHandler()
    processor.config = SimpleNamespace(summary_mode="statistics")
    return processor


def assert_agree(found: float, theirs: Any, accuracy: float, size: float) -> None:
    assert found == pytest.approx(float(theirs), rel=accuracy, abs=accuracy * size, nan_ok=True)


# msProbe computes in the tensor's own type: a bfloat16 has 8 significant bits, a float16 has 11.
@pytest.mark.parametrize(
    ("dtype", "accuracy"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)], ids=str
)
@pytest.mark.parametrize("special", [None, math.nan, math.inf, -math.inf])
def test_agrees_with_msprobe(msprobe: Any, dtype: torch.dtype, accuracy: float, special: float | None) -> None:
    for shape in ((1,), (7,), (16, 16), (64, 100), (20_000,)):
        tensor = random_tensor(dtype, math.prod(shape), seed=5).view(shape)
        if special is not None:
            tensor.view(-1)[-1] = special
        for shown in (tensor, tensor[1:], tensor.t()) if tensor.dim() > 1 else (tensor,):
            ours = tensor_stats.measure(shown)
            theirs = msprobe.get_stat_info(shown)
            for found, other in ((ours.max, theirs.max), (ours.min, theirs.min)):
                assert_agree(found, other, 0, 0)
            assert_agree(ours.norm, theirs.norm, accuracy, 0)
            size = ours.norm / math.sqrt(ours.count)
            assert_agree(ours.mean, theirs.mean, accuracy, size if math.isfinite(size) else 0)


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8, torch.float64, torch.bool, torch.complex64], ids=str)
def test_agrees_with_msprobe_on_extremes(msprobe: Any, dtype: torch.dtype) -> None:
    for count in (1, 300):
        tensor = random_tensor(dtype, count, seed=6)
        ours = tensor_stats.measure(tensor)
        theirs = msprobe.get_stat_info(tensor)
        assert ours.max == pytest.approx(float(theirs.max), rel=1e-6)
        assert ours.min == pytest.approx(float(theirs.min), rel=1e-6)


def test_every_type_of_torch_is_accounted_for() -> None:
    """A new type of torch's must be decided on: measured, or not."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert set(DTYPES) <= found
    for dtype in found - set(DTYPES):
        try:
            tensor = torch.empty(4, dtype=dtype)
        except (RuntimeError, NotImplementedError):
            continue
        assert tensor_stats.measure(tensor) is None
        assert tensor_stats.measure_on_device(tensor) is None
    assert len(INTEGERS) == 8
