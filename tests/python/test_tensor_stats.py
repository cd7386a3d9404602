"""What `measure` and `measure_on_device` take, what they measure of it, and what they answer."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from trendprobe import _tensor_stats as tensor_stats  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
both = pytest.mark.parametrize(
    "measure", [tensor_stats.measure, tensor_stats.measure_on_device], ids=["measure", "measure_on_device"]
)


def test_ordinary_tensor() -> None:
    tensor = torch.tensor([[3.0, -4.0], [0.0, 12.0]])
    assert tensor_stats.measure(tensor) == (13.0, 12.0, -4.0, 2.75, 0, 0, 1, 4)


def test_names_and_types_of_the_statistics() -> None:
    statistics = tensor_stats.measure(torch.tensor([math.inf, -3.0, 0.0]))
    assert isinstance(statistics, tensor_stats.Statistics)
    assert (statistics.norm, statistics.max, statistics.min, statistics.mean) == (math.inf, math.inf, -3, math.inf)
    assert (statistics.nans, statistics.infs, statistics.zeros, statistics.count) == (0, 1, 1, 3)
    assert [type(field) for field in statistics] == [float] * 4 + [int] * 4
    assert tensor_stats.Statistics(tuple(statistics)) == statistics


# Calls


@both
def test_takes_a_tensor_and_a_bool_without_names(measure: Any) -> None:
    tensor = torch.ones(1)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((tensor, tensor), {}),
        ((tensor, 1), {}),
        ((tensor, True, True), {}),
        ((), {"tensor": tensor}),
        ((tensor,), {"with_std": True}),
        ((tensor,), {"dim": 0}),
    ]
    for arguments, names in calls:
        with pytest.raises(TypeError, match=measure.__name__ + r"\(\) takes"):
            measure(*arguments, **names)


class Impostor:
    """Claims to be a tensor, and minds being asked."""

    __slots__ = ()

    @property
    def __class__(self) -> Any:
        raise AssertionError("asked for its class")

    @classmethod
    def __torch_function__(cls, *arguments: Any) -> Any:
        raise AssertionError("called")


@both
@pytest.mark.parametrize(
    "value", [None, 1, "text", [1.0], (torch.ones(1),), np.ones(3), torch.Tensor, torch.float32, torch.Size([1])]
)
def test_what_is_no_tensor_is_not_measured(measure: Any, value: object) -> None:
    assert measure(value) is None


@both
def test_an_impostor_is_not_asked(measure: Any) -> None:
    assert measure(Impostor()) is None


# Tensors that are measured


class Renamed(torch.Tensor):
    pass


class InterceptsFunctions(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *arguments: Any) -> Any:
        raise AssertionError("called")


def dual_tensor() -> Any:
    with forward_ad.dual_level():
        return forward_ad.make_dual(torch.tensor([3.0, 4.0]), torch.ones(2))


def inference_tensor() -> Any:
    with torch.inference_mode():
        return torch.tensor([3.0, 4.0])


MEASURED: dict[str, Callable[[], Any]] = {
    "parameter": lambda: torch.nn.Parameter(torch.tensor([3.0, 4.0])),
    "buffer": lambda: torch.nn.Buffer(torch.tensor([3.0, 4.0])),
    "result": lambda: torch.tensor([1.5, 2.0], requires_grad=True) * 2,
    "subclass": lambda: torch.tensor([3.0, 4.0]).as_subclass(Renamed),
    "subclass that intercepts functions": lambda: torch.tensor([3.0, 4.0]).as_subclass(InterceptsFunctions),
    "NumPy's memory": lambda: torch.from_numpy(np.array([3, 4], dtype=np.float32)),
    "shared memory": lambda: torch.tensor([3.0, 4.0]).share_memory_(),
    "bytes": lambda: torch.frombuffer(bytearray(np.array([9, 3, 4], dtype=np.float32)), dtype=torch.float32, offset=4),
    "overlapping": lambda: torch.tensor([3.0, 4.0]).as_strided((1, 2), (1, 1)),
    "dual": dual_tensor,
    "inference": inference_tensor,
}


@both
@pytest.mark.parametrize("kind", MEASURED)
def test_measured(measure: Any, kind: str) -> None:
    assert list(measure(MEASURED[kind]())) == [5, 4, 3, 3.5, 0, 0, 0, 2]


@both
@pytest.mark.parametrize("transform", [torch.func.grad, lambda f: torch.func.grad(torch.func.grad(f)), torch.func.vjp])
def test_inside_transforms_that_keep_the_memory(measure: Any, transform: Any) -> None:
    seen = []

    def cube(x: Any) -> Any:
        seen.append(measure(x))
        return x * x * x

    transformed = transform(cube) if transform is not torch.func.vjp else lambda x: torch.func.vjp(cube, x)
    transformed(torch.tensor(-3.0))
    assert [list(each) for each in seen] == [[3, -3, -3, -3, 0, 0, 0, 1]]


# Tensors without memory to be measured


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, size: int) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (size,))

    @classmethod
    def __torch_dispatch__(cls, *arguments: Any) -> Any:
        raise AssertionError("called")


class InterceptsOperators(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *arguments: Any) -> Any:
        raise AssertionError("called")


def fake_tensor() -> Any:
    with FakeTensorMode():
        return torch.ones(3)


def freed_tensor(bytes_left: int, begin: int = 0) -> Any:
    tensor = torch.ones(3)[begin:]
    tensor.untyped_storage().resize_(bytes_left)
    return tensor


NOT_MEASURED: dict[str, Callable[[], Any]] = {
    "empty": lambda: torch.empty(0),
    "empty in one dimension": lambda: torch.empty(3, 0, 2),
    "empty and expanded": lambda: torch.ones(1).expand(0, 3),
    "meta": lambda: torch.ones(3, device="meta"),
    "fake": fake_tensor,
    "sparse COO": lambda: torch.eye(3).to_sparse(),
    "sparse CSR": lambda: torch.eye(3).to_sparse_csr(),
    "sparse CSC": lambda: torch.eye(3).to_sparse_csc(),
    "sparse BSR": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.ones(3, 3), torch.ones(3), torch.zeros(3), 0, torch.quint8
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "MKL-DNN": lambda: torch.ones(3, 3).to_mkldnn(),
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "zero tensor": lambda: torch._efficientzerotensor(3),
    "wrapper": lambda: Wrapper(3),
    "subclass that intercepts operators": lambda: torch.ones(3).as_subclass(InterceptsOperators),
    "freed": lambda: freed_tensor(0),
    "freed in part": lambda: freed_tensor(8),
    "freed behind a view": lambda: freed_tensor(8, begin=1),
    "half a byte": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.uint4),
    "bits": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.bits8),
    "two in a byte": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
}


@both
@pytest.mark.filterwarnings("ignore")  # half of these are experimental, deprecated or both
@pytest.mark.parametrize("kind", NOT_MEASURED)
def test_not_measured(measure: Any, kind: str) -> None:
    try:
        tensor = NOT_MEASURED[kind]()
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        pytest.skip(f"this torch makes none: {error}")
    assert measure(tensor) is None


@both
@pytest.mark.parametrize("transform", [torch.vmap, torch.func.functionalize])
def test_inside_transforms_without_memory(measure: Any, transform: Any) -> None:
    seen = []

    def double(x: Any) -> Any:
        seen.append(measure(x))
        return x + x

    assert transform(double)(torch.ones(2, 3)).sum() == 12
    assert seen == [None]


@both
def test_dtensor_is_measured_by_its_local_part(measure: Any) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.tensor([3.0, 4.0]), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert measure(tensor) is None
        assert list(measure(tensor.to_local())) == [5, 4, 3, 3.5, 0, 0, 0, 2]
    finally:
        distributed.destroy_process_group()
