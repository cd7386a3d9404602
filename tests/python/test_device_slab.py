"""What `DeviceSlab` asks of a device: tried in main memory, with torch's profiler as the witness.

Operators of our own are hidden from the modes of the training, so a dispatch mode of a test would see none of them.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from trendprobe._tensor_stats import DeviceSlab, measure, measure_on_device  # noqa: E402

# Each of these waits for the device, or brings something from it.
WAITING = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal", "aten::cpu"}
TENSORS = [
    torch.arange(12.0).view(3, 4),
    torch.tensor(-3.5),
    torch.full((5,), math.nan),
    torch.tensor([math.inf, 1.0]),
    torch.arange(-4, 9),
    torch.ones(4, dtype=torch.bfloat16),
    torch.ones(4, 4, dtype=torch.float64)[:, ::2],
    torch.tensor([True, False, True]),
]


def events_of(function: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """What the function returns, and the operators that torch runs meanwhile, whoever calls them."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        result = function()
    return result, list(profiler.events())


def test_rows_are_the_statistics() -> None:
    slab = DeviceSlab()
    rows = [slab.add(tensor) for tensor in TENSORS]
    assert rows == list(range(len(TENSORS)))
    fetched = slab.take()
    for row, tensor in zip(rows, TENSORS):
        expected = measure(tensor)
        assert expected is not None
        assert fetched.statistics(row) == pytest.approx(list(expected), nan_ok=True, rel=1e-6)
    assert slab.take() is None


def test_a_step_begins_anew() -> None:
    slab = DeviceSlab()
    fetched = []
    for step in range(3):
        assert slab.add(torch.full((2,), float(step))) == 0
        fetched.append(slab.take())
    assert [rows.statistics(0)[3] for rows in fetched] == [0, 1, 2]


def test_what_has_no_statistics_has_no_row() -> None:
    slab = DeviceSlab()
    for nothing in (torch.empty(0), torch.empty(3, device="meta"), torch.eye(2).to_sparse(), None, 3):
        assert slab.add(nothing) is None
    assert slab.take() is None
    rows = DeviceSlab()
    rows.add(torch.ones(1))
    assert all(math.isnan(value) for value in rows.take().statistics(7))


def test_nothing_waits_and_one_copy_ends_the_step() -> None:
    slab = DeviceSlab()
    _, added = events_of(lambda: [slab.add(tensor) for tensor in TENSORS])
    assert "aten::linalg_vector_norm" in {event.name for event in added}  # the witness is awake
    assert not {event.name for event in added} & WAITING
    fetched, taken = events_of(slab.take)
    names = [event.name for event in taken]
    assert names.count("aten::copy_") == 1
    assert not set(names) & WAITING
    assert fetched.statistics(0)[1] == 11


def test_unseen_by_the_modes_of_the_training() -> None:
    seen: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    slab = DeviceSlab()
    with Log():
        slab.add(torch.ones(3))
        seen.clear()
        slab.add(TENSORS[0])
        slab.take()
    assert seen == []


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_an_operator_that_fails_costs_one_row() -> None:
    library = torch.library.Library("aten", "IMPL")
    fails = True

    def norm(*_: Any, **__: Any) -> Any:
        if fails:
            raise torch.OutOfMemoryError("no memory")
        return torch.tensor(0.0)

    try:
        library.impl("linalg_vector_norm", norm, "CPU", allow_override=True)
        slab = DeviceSlab()
        assert measure_on_device(torch.ones(3)) is None
        assert slab.add(torch.ones(3)) is None
        fails = False
        assert slab.add(torch.ones(3)) == 0
    finally:
        library._destroy()
    assert slab.take().statistics(0)[1] == 1


def test_threads_add_to_one_step() -> None:
    slab = DeviceSlab()
    rows: dict[int, int] = {}

    def add(first: int) -> None:
        for number in range(first, first + 50):
            row = slab.add(torch.full((3,), float(number)))
            assert row is not None
            rows[number] = row

    threads = [threading.Thread(target=add, args=(50 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fetched = slab.take()
    assert sorted(rows.values()) == list(range(200))
    assert all(fetched.statistics(row)[3] == number for number, row in rows.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_nothing_synchronises() -> None:
    tensors = [tensor.cuda() for tensor in TENSORS]
    side = torch.cuda.Stream()
    slab = DeviceSlab()
    torch.cuda.set_sync_debug_mode("error")
    try:
        slab.add(tensors[0])
        slab.take()
        rows = [slab.add(tensor) for tensor in tensors]
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            late = slab.add(tensors[0] * 2)
        fetched = slab.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for row, tensor in zip(rows, TENSORS):
        assert fetched.statistics(row) == pytest.approx(list(measure(tensor)), nan_ok=True, rel=1e-5)
    assert fetched.statistics(late)[1] == 22
