"""Measuring changes nothing in the training that is measured, wherever in it the measuring is done."""

import ctypes
import gc
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tensor_stats_reference import random_tensor  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from trendprobe import _tensor_stats as tensor_stats  # noqa: E402

both = pytest.mark.parametrize(
    "measure", [tensor_stats.measure, tensor_stats.measure_on_device], ids=["measure", "measure_on_device"]
)
SIZES = [5, 300_000]  # the latter in several threads


def state_of_torch() -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
    ]


def state_of_tensor(tensor: torch.Tensor) -> list[Any]:
    return [
        None if tensor.is_inference() else tensor._version,
        tensor.requires_grad,
        tensor.grad_fn,
        tensor.is_leaf,
        tensor.grad if tensor.is_leaf else None,
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor._backward_hooks,
        tensor.detach().tolist(),
    ]


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "set_multithreading_enabled": lambda: torch.autograd.set_multithreading_enabled(False),
    "device": lambda: torch.device("meta"),
}


@both
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("size", SIZES)
def test_leaves_torch_and_the_tensor_as_they_were(measure: Any, context: str, size: int) -> None:
    leaf = torch.linspace(-1, 2, size).requires_grad_()
    for tensor in (leaf, leaf * 2, leaf.detach(), leaf[1:].view(1, -1).T):
        expected = list(measure(tensor))
        with CONTEXTS[context]():
            before = state_of_torch(), state_of_tensor(tensor)
            result = measure(tensor)
            assert (state_of_torch(), state_of_tensor(tensor)) == before
            assert [float(each) for each in result] == expected
    if measure is tensor_stats.measure_on_device:
        assert not result.requires_grad


@both
def test_keeps_the_default_type(measure: Any) -> None:
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(dtype)
            result = measure(torch.ones(4, dtype=torch.float32))
            assert [float(each) for each in result] == [2, 1, 1, 1, 0, 0, 0, 4]
            assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)


class Refuses(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} was called")


@both
def test_unseen_by_modes_and_hooks_of_the_training(measure: Any) -> None:
    tensor = torch.ones(4, requires_grad=True)

    def refuse(_: Any) -> Any:
        raise AssertionError("something was saved for backward")

    with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), Refuses():
        result = measure(tensor)
    assert [float(each) for each in result] == [2, 1, 1, 1, 0, 0, 0, 4]


@both
def test_keeps_no_tensor_alive(measure: Any) -> None:
    tensor = torch.ones(300_000)
    references = sys.getrefcount(tensor)
    storage = StorageWeakRef(tensor.untyped_storage())
    for _ in range(3):
        measure(tensor)
    assert sys.getrefcount(tensor) == references
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None
    assert storage.expired()


# Training


def train(measure: Callable[[Any], Any] | None) -> tuple[list[float], list[Any], list[Any]]:
    """A few steps of a small model, everything measured that passes by: losses, parameters, measurements."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 300),
        torch.nn.GELU(),
        torch.nn.Dropout(0.2),
        torch.nn.LayerNorm(300),
        torch.nn.Linear(300, 4),
    )
    measured: list[Any] = []

    def look(tensor: Any) -> None:
        if measure is not None:
            measured.append(measure(tensor))

    def look_in_backward(gradient: Any) -> None:
        look(gradient)

    for module in model:
        module.register_forward_hook(lambda _, inputs, output: (look(inputs[0]), look(output), None)[-1])
        module.register_full_backward_hook(lambda _, inputs, outputs: (look(outputs[0]), None)[-1])
    for parameter in model.parameters():
        parameter.register_hook(look_in_backward)
        parameter.register_post_accumulate_grad_hook(lambda parameter: look(parameter.grad))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step % 2 == 1):
            output = model(torch.randn(600, 16))
            output.register_hook(look_in_backward)
            loss = output.float().square().mean()
        loss.backward()
        for parameter in model.parameters():
            look(parameter)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()], measured


@pytest.fixture(params=[1, None], ids=["one thread", "all threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """Threads of a tensor operation of torch; None: as many as there are cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param or before)
    yield request.param
    torch.set_num_threads(before)


@both
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_training_goes_on_bit_for_bit_the_same(measure: Any, threads: int | None) -> None:
    # With several threads two plain runs may differ: how MKL divides a product among them depends on the load.
    for _ in range(5 if threads is None else 1):
        losses, parameters, _ = train(None)
        measured_losses, measured_parameters, measured = train(measure)
        if measured_losses == losses:
            break
    assert measured_losses == losses
    assert measured_parameters == parameters
    assert len(measured) > 100
    assert None not in measured


@both
def test_higher_derivatives(measure: Any) -> None:
    def derivatives(look: Callable[[Any], Any]) -> list[float]:
        found = []
        x = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)
        y = (x**4).sum()
        for _ in range(3):
            look(y)
            (y,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
            look(y)
            found += y.tolist()
        return found

    assert derivatives(measure) == derivatives(lambda _: None)


def test_recomputed_by_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    for is_reentrant in (False, True):
        measured = []

        def body(x: Any, measured: Any = measured) -> Any:
            measured.append(tensor_stats.measure(x))
            return x.sin()

        x = torch.tensor([3.0, 4.0], requires_grad=True)
        checkpoint(body, x, use_reentrant=is_reentrant).sum().backward()
        assert x.grad.tolist() == x.detach().cos().tolist()
        assert len(measured) == 2
        assert measured[0] == measured[1]


# Threads


@both
def test_many_threads_at_once(measure: Any) -> None:
    tensors = [random_tensor(torch.float32, count, count) for count in (10, 1000, 20_000, 300_000)] * 4
    expected = [list(measure(tensor)) for tensor in tensors]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert [list(result) for result in pool.map(measure, tensors)] == expected


@both
def test_backward_in_many_threads(measure: Any) -> None:
    shared = torch.full((200_000,), 0.5, requires_grad=True)

    def backward(factor: int) -> list[float]:
        seen: list[Any] = []
        result = shared * factor
        result.register_hook(lambda gradient: seen.append((measure(gradient), measure(shared))))
        result.sum().backward()
        return [float(value) for pair in seen for value in (pair[0][3], pair[1][3])]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(backward, range(1, 13))) == [[1.0, 0.5]] * 12


@pytest.fixture
def one_thread_at_a_time() -> Iterator[None]:
    """Python's lock changes hands only where it is given back."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("one_thread_at_a_time")
def test_other_threads_run_while_a_large_tensor_is_measured() -> None:
    tensor = torch.ones(4_000_000)
    has_begun, may_run, has_run = threading.Event(), threading.Lock(), threading.Event()
    may_run.acquire()

    def wait_and_run() -> None:
        has_begun.set()
        with may_run:
            has_run.set()

    thread = threading.Thread(target=wait_and_run)
    thread.start()
    has_begun.wait()
    may_run.release()
    # Once would be enough, were it sure that the system lets the other thread run in time.
    for _ in range(1000):
        tensor_stats.measure(tensor)
        if has_run.is_set():
            break
    was_in_time = has_run.is_set()
    thread.join()
    assert was_in_time


# Floating-point state


@pytest.mark.parametrize("size", SIZES)
def test_flushed_denormals_count(size: int) -> None:
    # Made of bytes, since arithmetic would flush them.
    tensors = [
        torch.frombuffer(bytearray(pattern * size), dtype=dtype)
        for pattern, dtype in ((b"\1\0\0\0", torch.float32), (b"\1\0", torch.float16), (b"\1\0", torch.bfloat16))
    ]
    expected = [tensor_stats.measure(tensor) for tensor in tensors]
    assert [statistics.max for statistics in expected] == [2.0**-149, 2.0**-24, 2.0**-133]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps denormals")
    try:
        found = [tensor_stats.measure(tensor) for tensor in tensors]
        is_flushing = (torch.tensor([1e-30]) * 1e-10).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert found == expected
    assert is_flushing


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="constants of x86-64 and glibc")
@pytest.mark.parametrize("size", SIZES)
def test_rounding_of_the_caller(size: int) -> None:
    libm = ctypes.CDLL("libm.so.6")
    to_nearest, upward, downward = 0, 0x800, 0x400
    tensor = random_tensor(torch.float32, size)
    expected = tensor_stats.measure(tensor)
    assert libm.fegetround() == to_nearest
    for mode in (upward, downward):
        libm.fesetround(mode)
        found = tensor_stats.measure(tensor)
        after = libm.fegetround()
        libm.fesetround(to_nearest)
        assert found == expected
        assert after == mode
