"""What users of such hooks have reported, each test named after its case: behaviour of trendprobe.Monitor."""

import gc
import logging
import math
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from gloo_processes import run_processes  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from trend_rows import Row, rows  # noqa: E402
from trendprobe import Monitor  # noqa: E402

Records = dict[tuple[str, str], Row]
Merge = Callable[[Path], Records]


@pytest.fixture
def merged(trendprobe: Callable[..., Any]) -> Merge:
    """The dump records of the first step of a directory of shards: by metric and target, of all micro-steps."""

    def merge(path: Path) -> Records:
        trendprobe("merge", "--data", path, "--db", path / "db")
        found = rows(path / "db/dump_data.trend.db")
        return {(str(key[5]), str(key[2])): row for key, row in found.items()}

    return merge


def train(model: nn.Module, batch: Any, path: Path, steps: int = 1, **options: Any) -> Monitor:
    """Returns the closed monitor."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with Monitor(model, optimizer, path=str(path), **options) as monitor:
        for _ in range(steps):
            output = model(batch)
            output.float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
    return monitor


def in_place_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)
    )


def test_h1_in_place_activations_train(tmp_path: Path, merged: Merge) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm(x)
            out += x
            return self.act(out)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Residual(), Residual())

    hooked = make()
    for module in hooked.modules():
        module.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        hooked(torch.randn(3, 4))

    monitor = train(make(), torch.randn(3, 4), tmp_path)
    assert monitor.coverage() == []
    found = merged(tmp_path)
    for index in (1, 2):
        assert ("backward", f"Module.{index}.act.ReLU.input.0") in found
        assert ("backward", f"Module.{index}.act.ReLU.output.0") in found


def test_h2_gradients_are_those_of_plain_training(tmp_path: Path) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 16)
            self.attention = nn.MultiheadAttention(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x).tanh()
            return x + self.attention(x, x, x)[0]

    def gradients(seed: int, watch: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(seed)
        model = Attention()
        watching = watch(model)
        model(torch.randn(9, 6)).square().mean().backward()
        if watching:
            watching.close()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    def full_backward_hooks(model: nn.Module) -> None:
        for module in model.modules():
            module.register_full_backward_hook(lambda *_: None)

    hooks_differ = 0
    for seed in range(20):
        plain = gradients(seed, lambda _: None)
        ours = gradients(seed, lambda model: Monitor(model, path=str(tmp_path)))
        assert all(torch.equal(a, b) for a, b in zip(plain, ours))
        hooked = gradients(seed, full_backward_hooks)
        hooks_differ += not all(torch.equal(a, b) for a, b in zip(plain, hooked))
    assert hooks_differ > 0  # the comparison sees such a difference


def test_h3_modules_whose_inputs_need_no_gradient(tmp_path: Path, merged: Merge) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4).requires_grad_(False)
            self.first = nn.Linear(4, 4)
            self.last = nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.last(self.first(self.embedding(tokens)))

    monitor = train(Net(), torch.arange(5), tmp_path)
    assert monitor.coverage() == []
    backward = {target for metric, target in merged(tmp_path) if metric == "backward"}
    assert backward == {
        "Module.first.Linear.input.0",
        "Module.last.Linear.input.0",
        "Module.last.Linear.output.0",
    }


@pytest.mark.parametrize("reentrant", [False, True])
def test_h5_recomputation_is_a_metric_of_its_own(reentrant: bool, tmp_path: Path, merged: Merge) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.block, self.first(x), use_reentrant=reentrant))

    monitor = train(Net(), torch.randn(3, 4), tmp_path)
    assert monitor.coverage() == []
    found = merged(tmp_path)
    of_block = {target for metric, target in found if metric == "forward" and target.startswith("Module.block.")}
    recomputed = {target for metric, target in found if metric == "recompute"}
    # Non-reentrant checkpointing stops once it has all that the gradients need: before the last output.
    assert of_block - recomputed <= {"Module.block.2.Linear.output.0", "Module.block.Sequential.output.0"}
    assert recomputed <= of_block
    assert len(recomputed) >= 10
    for target in recomputed:
        assert found["recompute", target] == found["forward", target]
    for name in ("block.0.Linear", "block.1.Tanh", "block.2.Linear", "block.Sequential"):
        assert ("backward", f"Module.{name}.input.0") in found
        assert ("backward", f"Module.{name}.output.0") in found


def _train_sharded(rank: int, directory: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 2))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    fired: list[int] = []
    for parameter in model.parameters():
        parameter.register_hook(lambda _: fired.append(1))
    monitor = train(model, torch.randn(3, 4), Path(directory), steps=2)
    assert not fired  # what the report is about
    assert monitor.coverage() == []


def test_h6_gradients_of_sharded_parameters(tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    run_processes(_train_sharded, 2, str(tmp_path))
    trendprobe("merge", "--data", tmp_path, "--db", tmp_path / "db")
    found = rows(tmp_path / "db/dump_data.trend.db")
    for rank in (0, 1):
        gradients = {key[2] for key in found if key[0] == rank and key[5] == "parameters_grad"}
        assert len(gradients) == 6
        values = {key[2] for key in found if key[0] == rank and key[5] == "forward" and ".parameters." in str(key[2])}
        assert len(values) == 6
    monitored = rows(tmp_path / "db/monitor_data.trend.db")
    assert {key[5] for key in monitored} == {"grad_unreduced", "grad_reduced", "param_origin", "param_updated"}


def test_h8_modules_compiled_before_are_named(tmp_path: Path, merged: Merge, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))
    model[1].compile(backend="eager")
    with caplog.at_level(logging.WARNING, logger="trendprobe"):
        monitor = train(model, torch.randn(3, 4), tmp_path, steps=2)
    assert "inside torch.compile" in caplog.text
    uncovered = {each.target: each.reason for each in monitor.coverage()}
    assert set(uncovered) == {f"Module.{name}.forward" for name in ("1.Sequential", "1.0.Linear", "1.1.Tanh")}
    assert all("torch.compile" in reason for reason in uncovered.values())
    found = merged(tmp_path)
    for metric, target in (
        ("forward", "Module.1.0.Linear.parameters.weight"),
        ("parameters_grad", "Module.1.0.Linear.weight"),
        ("forward", "Module.2.Linear.input.0"),
    ):
        assert (metric, target) in found


@pytest.mark.parametrize("regional", [False, True], ids=["whole model", "each layer"])
def test_h9_no_graph_breaks_and_no_recompilation(regional: bool, tmp_path: Path) -> None:
    from torch._dynamo.testing import CompileCounter
    from torch._dynamo.utils import counters

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.linear(x).tanh()

    def compiled_frames(watched: bool) -> int:
        torch._dynamo.reset()
        counters.clear()
        counter = CompileCounter()
        model: Any = nn.Sequential(*(Layer() for _ in range(4)))
        monitor = Monitor(model, path=str(tmp_path)) if watched else None
        if regional:
            for layer in model:
                layer.compile(backend=counter)
        else:
            model.compile(backend=counter)
        for _ in range(3):
            model(torch.randn(3, 4)).sum().backward()
            if monitor:
                monitor.step()
        assert not counters["graph_break"]
        if monitor:
            assert any("torch.compile" in each.reason for each in monitor.coverage())
            assert monitor.cost().tensors > 0
            monitor.close()
        return int(counter.frame_count)

    assert 0 < compiled_frames(watched=True) <= compiled_frames(watched=False)


def test_h12_memory_does_not_grow(tmp_path: Path) -> None:
    script = f"""
import gc, os, torch
from torch import nn
from trendprobe import Monitor
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
with Monitor(model, optimizer, path={str(tmp_path)!r}) as monitor:
    for step in range(2000):
        model(torch.randn(3, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        if step == 999:  # SQLite has filled its cache
            before = resident()
    print(resident() - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 1_000_000


def test_h12_a_watched_model_is_freed(tmp_path: Path) -> None:
    model = in_place_net()
    monitor = Monitor(model, path=str(tmp_path))
    model(torch.randn(3, 4)).sum().backward()
    monitor.step()
    gone = [weakref.ref(model), weakref.ref(monitor), weakref.ref(model[0].weight)]
    del model, monitor
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]


def test_h13_the_cost_of_a_step_is_reported(tmp_path: Path, merged: Merge) -> None:
    with Monitor(in_place_net(), path=str(tmp_path)) as idle:
        idle.step()
        assert idle.cost().tensors == 0
    monitor = train(in_place_net(), torch.randn(3, 4), tmp_path, steps=1)
    assert monitor.cost() == monitor.total_cost()
    assert 0 < monitor.cost().seconds < 10
    # Three metrics of the optimizer's are measured besides: grad_reduced, param_origin, param_updated.
    assert monitor.cost().tensors == len(merged(tmp_path)) + 3 * 6


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_h17_a_device_without_memory_costs_one_target(tmp_path: Path, merged: Merge) -> None:
    library = torch.library.Library("aten", "IMPL")
    calls: list[int] = []

    def norm(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        if tensor.numel() == 3 * 5:  # the output of the first module, and its gradient
            calls.append(1)
            raise torch.OutOfMemoryError("out of memory")
        return tensor.square().sum().sqrt()

    model = nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(5, 7))
    try:
        library.impl("linalg_vector_norm", norm, "CPU", allow_override=True)
        monitor = train(model, torch.randn(3, 4), tmp_path, steps=4, _main_memory_is_device=True)
    finally:
        library._destroy()
    uncovered = {each.target for each in monitor.coverage() if "memory" in each.reason}
    assert uncovered == {
        "Module.0.Linear.forward.output.0",
        "Module.0.Linear.backward.input.0",
        *(f"Module.1.Flatten.{each}" for each in ("forward.input.0", "forward.output.0")),
        *(f"Module.1.Flatten.{each}" for each in ("backward.input.0", "backward.output.0")),
        "Module.2.Linear.forward.input.0",
        "Module.2.Linear.backward.output.0",
    }
    assert len(calls) == len(uncovered)  # not again in the later steps
    found = merged(tmp_path)
    assert ("forward", "Module.0.Linear.input.0") in found
    assert ("forward", "Module.0.Linear.output.0") not in found


def test_h18_whatever_is_not_finite_or_no_number_is_data(
    tmp_path: Path, merged: Merge, trendprobe: Callable[..., Any]
) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor, **others: Any) -> Tensor:
            return x * math.nan

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.odd = Odd()

        def forward(self, x: Tensor) -> Tensor:
            return self.odd(
                self.first(x),
                infinite=torch.tensor([math.inf, -math.inf, 1.0]),
                all_nan=torch.full((3,), math.nan),
                empty=torch.empty(0, 3),
                scalar=torch.tensor(2.5),
                complex=torch.tensor([3 + 4j]),
                truth=torch.tensor([True, False]),
                small=torch.tensor([-128, 127], dtype=torch.int8),
                tiny=torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
                sparse=torch.eye(3).to_sparse(),
                meta=torch.empty(3, device="meta"),
                nested=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                text="text",
                none=None,
                proxy=object(),
            )

    monitor = train(Net(), torch.randn(3, 4), tmp_path)
    assert monitor.coverage() == []
    found = merged(tmp_path)
    prefix = "Module.odd.Odd.input."
    values = {target.removeprefix(prefix): row for (_, target), row in found.items() if target.startswith(prefix)}
    assert {name for name in values if not name.isdigit()} == {
        "infinite", "all_nan", "scalar", "complex", "truth", "small", "tiny"
    }  # fmt: skip
    assert values["scalar"] == {"norm": 2.5, "max": 2.5, "min": 2.5, "mean": 2.5}
    assert values["complex"]["max"] == 5
    assert values["truth"] == {"norm": None, "max": 1, "min": 0, "mean": None}
    assert values["small"]["min"] == -128
    assert values["tiny"]["min"] == -2
    with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
        special = set(
            database.execute(
                "SELECT metric_name, target_name, statistic, value FROM trendprobe_nonfinite "
                "JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"
            )
        )
    assert ("forward", f"{prefix}infinite", "max", "+inf") in special
    assert ("forward", f"{prefix}infinite", "min", "-inf") in special
    assert ("forward", f"{prefix}all_nan", "norm", "NaN") in special
    assert ("parameters_grad", "Module.first.Linear.weight", "norm", "NaN") in special
    assert ("backward", "Module.first.Linear.input.0", "mean", "NaN") in special


def test_h19_a_hook_that_never_runs_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)
            self.detached = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + self.detached(x).detach() + self.frozen(x)

    with caplog.at_level(logging.WARNING, logger="trendprobe"):
        monitor = train(Net(), torch.randn(3, 4), tmp_path)
    assert {(each.target, each.reason) for each in monitor.coverage()} == {
        ("Module.unused.Linear.forward", "the module was not called"),
        ("Module.detached.Linear.backward", "no gradient reached the module"),
        *(
            (
                f"Module.{name}.Linear.parameters_grad.{parameter}",
                "no gradient that can be measured was added to the parameter",
            )
            for name in ("unused", "detached")
            for parameter in ("weight", "bias")
        ),
    }
    assert "6 targets have no record after the first training step" in caplog.text


def test_h19_a_training_that_yields_nothing_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = in_place_net()
    with caplog.at_level(logging.WARNING, logger="trendprobe"), Monitor(model, path=str(tmp_path)) as monitor:
        with torch.no_grad():
            model(torch.randn(3, 4))
        monitor.step()
    assert "nothing was recorded in the first training step" in caplog.text
    assert not list(tmp_path.iterdir())
