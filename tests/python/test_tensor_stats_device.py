"""What `measure_on_device` asks of a device: tried in main memory, with torch's profiler as the witness."""

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tensor_stats_reference import (  # noqa: E402
    DTYPES,
    assert_expected,
    assert_expected_std,
    expected_of,
    is_double,
    random_tensor,
)
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from trendprobe import _tensor_stats as tensor_stats  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
# Each of these waits for the device, or brings something from it.
WAITING = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique",
    "aten::equal",
    "aten::allclose",
}
# As in torch_tensor_stats.cpp.
BLOCK = 1 << 22


def events_of(function: Callable[[], Any]) -> list[Any]:
    """The operators that torch runs, whoever calls them. The first run of a profiler may add its own."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    return list(profiler.events())


class OperatorLog(TorchDispatchMode):
    """Sees the operators that a mode of the training would see."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_statistics_as_measure(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 3000).view(50, 60)
    for shown in (tensor, tensor.T, tensor[3:, ::7], tensor[0, 0], tensor[:, :1].expand(50, 9)):
        result = tensor_stats.measure_on_device(shown)
        assert result.dtype == torch.float64
        assert result.shape == (8,)
        assert_expected(result.tolist(), shown, 1e-12 if is_double(dtype) else 2e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_blocks(dtype: torch.dtype) -> None:
    few = random_tensor(dtype, 5, seed=2)
    repeats = BLOCK // 4
    norm, largest, smallest, mean, _, _, zeros, count = expected_of(few)
    expected = [norm * math.sqrt(repeats), largest, smallest, mean, 0, 0, zeros * repeats, count * repeats]
    many = few.repeat(repeats)
    for tensor in (many, many.view(5, -1).T, few.expand(repeats, 5), few.view(5, 1, 1).expand(5, 4, repeats // 4)):
        # On a CPU, torch adds the float32 of a block into few sums of float32.
        assert tensor_stats.measure_on_device(tensor).tolist() == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_standard_deviation(dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 3000).view(50, 60)
    for shown in (tensor, tensor.T, tensor[3:, ::7], tensor[0, 0], tensor[:, :1].expand(50, 9)):
        *others, found = tensor_stats.measure_on_device(shown, True).tolist()
        assert_expected(others, shown, 1e-12 if is_double(dtype) else 2e-6)
        assert_expected_std(found, shown, 1e-12 if is_double(dtype) else 2e-6)
    for value in (0.1, 100 / 3):
        same = torch.full((1000,), value).to(dtype)
        assert tensor_stats.measure_on_device(same, True)[-1].item() <= 1e-7 * abs(value)
    special = torch.tensor([1.0, math.inf, 2.0])
    assert math.isnan(tensor_stats.measure_on_device(special, True).tolist()[-1])


def test_standard_deviation_of_several_blocks() -> None:
    """Each block has a mean of its own, and together they are far from 0."""
    tensor = torch.empty(2 * BLOCK + 5, dtype=torch.float64)
    tensor[:BLOCK] = 1e9
    tensor[BLOCK:] = 1e9 + 3
    for shown in (tensor, tensor[:, None].expand(-1, 3)):
        expected = 1.5 * math.sqrt(shown.numel() / (shown.numel() - 1))
        assert tensor_stats.measure_on_device(shown, True)[-1].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 4])
def test_finds_what_is_not_finite_in_every_block(place: int, special: float) -> None:
    tensor = torch.ones(2 * BLOCK + 5, dtype=torch.bfloat16)
    tensor[place] = special
    norm, largest, smallest, mean, nans, infs, zeros, count = tensor_stats.measure_on_device(tensor).tolist()
    assert (nans, infs, zeros, count) == (math.isnan(special), math.isinf(special), 0, tensor.numel())
    expected = [abs(special), max(special, 1), min(special, 1), special]
    if math.isnan(special):
        expected = [math.nan] * 4
    assert [norm, largest, smallest, mean] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("count", [1, 1000, 2 * BLOCK + 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_waits_for_nothing(dtype: torch.dtype, count: int) -> None:
    tensor = torch.zeros(count, dtype=dtype)
    events = events_of(lambda: tensor_stats.measure_on_device(tensor, True))
    names = {event.name for event in events}
    assert "aten::linalg_vector_norm" in names  # the witness is awake
    assert not names & WAITING


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_is_bounded_however_large_the_tensor(dtype: torch.dtype) -> None:
    for tensor in (torch.zeros(3 * BLOCK + 1, dtype=dtype), torch.zeros(1, dtype=dtype).expand(3, BLOCK)):
        events = events_of(lambda tensor=tensor: tensor_stats.measure_on_device(tensor))
        sizes = [event.self_cpu_memory_usage for event in events]
        assert 0 < max(sizes) <= 8 * BLOCK


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_no_copy_of_floating_point_numbers(dtype: torch.dtype) -> None:
    tensor = torch.zeros(100_000, dtype=dtype)
    events = events_of(lambda: tensor_stats.measure_on_device(tensor))
    # abs() is isinf()'s; a sum of truth values and, on a CPU, one of 16-bit numbers converts them.
    for event in events:
        if event.name not in ("aten::abs", "aten::empty_strided", "[memory]"):
            assert event.self_cpu_memory_usage <= tensor.numel() + 4096, event.name


def test_unseen_by_the_modes_of_the_training() -> None:
    tensor = torch.ones(5)
    with OperatorLog() as log:
        result = tensor_stats.measure_on_device(tensor)
        assert log.names == []
        torch.neg(tensor)
    assert log.names == ["aten.neg.default"]
    assert result.tolist() == pytest.approx([math.sqrt(5), 1, 1, 1, 0, 0, 0, 5])


def test_a_step_ends_with_one_copy() -> None:
    dump_writer = pytest.importorskip("trendprobe.pytorch_dump_writer")
    measurements = []
    for index in range(20):
        measurement = dump_writer.TensorMeasurement(torch.zeros(1), True)
        measurement.measured = tensor_stats.measure_on_device(torch.full((4,), float(index)), True)
        measurements.append(measurement)
    with OperatorLog() as log:
        dump_writer.PytorchDataWriter.fetch(object(), measurements)
    # Main memory to main memory is no copy, so one stack and nothing for each tensor is what is left.
    assert set(log.names) <= {"aten.stack.default", "aten.cat.default", "aten.unsqueeze.default"}
    assert len([name for name in log.names if name != "aten.unsqueeze.default"]) == 1
    assert [m.values(("mean", "std", "nans")) for m in measurements] == [(index, 0, 0) for index in range(20)]
