"""What `trendprobe.Monitor` records besides msProbe's L0 data, and when."""

import logging
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from trend_rows import Row, rows  # noqa: E402
from trendprobe import Monitor, TrendSettingsError  # noqa: E402

Records = dict[tuple[int, str, str, int], Row]


@pytest.fixture
def merged(trendprobe: Callable[..., Any]) -> Callable[..., Records]:
    """The records of a directory of shards, by global step, metric, target and call."""

    def merge(path: Path, kind: str = "dump") -> Records:
        trendprobe("merge", "--data", path, "--db", path / "db")
        found = rows(path / f"db/{kind}_data.trend.db")
        return {(int(key[1]), str(key[5]), str(key[2]), int(key[4])): row for key, row in found.items()}  # type: ignore[call-overload]

    return merge


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def statistics(tensor: Tensor) -> dict[str, float]:
    values = tensor.detach().double()
    return {
        "norm": values.norm().item(),
        "max": values.max().item(),
        "min": values.min().item(),
        "mean": values.mean().item(),
    }


def test_metrics_of_the_optimizer(tmp_path: Path, merged: Callable[..., Records]) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    expected: dict[tuple[int, str, str, int], dict[str, float]] = {}

    def expect(step: int, metric: str, value: Callable[[Tensor], Tensor]) -> None:
        for name, parameter in model.named_parameters():
            expected[step, metric, name, 0] = statistics(value(parameter))

    with Monitor(model, optimizer, path=str(tmp_path)) as monitor:
        for step in range(2):
            for micro_step in range(2):
                model(torch.randn(5, 3)).square().sum().backward()
                if micro_step == 1:  # both micro-batches, as TrainerMon has it
                    expect(step, "grad_unreduced", lambda parameter: parameter.grad)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            expect(step, "grad_reduced", lambda parameter: parameter.grad)
            expect(step, "param_origin", lambda parameter: parameter)
            if step:
                expect(step, "exp_avg", lambda parameter: optimizer.state[parameter]["exp_avg"])
                expect(step, "exp_avg_sq", lambda parameter: optimizer.state[parameter]["exp_avg_sq"])
            optimizer.step()
            expect(step, "param_updated", lambda parameter: parameter)
            optimizer.zero_grad()
            monitor.step()
    found = merged(tmp_path, "monitor")
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == pytest.approx(row, rel=1e-6), key


def test_chosen_metrics_and_statistics(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"metrics": ["param_updated"], "stats": ["std", "norm", "nans"]}
    with Monitor(model, optimizer, path=str(tmp_path), config=config) as monitor:
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        monitor.step()
    with sqlite3.connect(monitor.shard) as database:
        found = set(database.execute("SELECT kind, name, statistics FROM metrics"))
    assert {row for row in found if row[0] == "monitor"} == {("monitor", "param_updated", "norm,std,nans")}
    assert {row[2] for row in found if row[0] == "dump"} == {"norm,std,nans"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"metrics": ["gradients"]}, '"metrics" is'),
        ({"stat": ["norm"]}, 'unknown key "stat"'),
        ({"stats": ["median"]}, '"stats" is'),
        ({"on_full": "panic"}, '"on_full" is'),
    ],
)
def test_wrong_config(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TrendSettingsError, match=message):
        Monitor(Net(), path=str(tmp_path), config=config)


def test_evaluation_is_no_training(tmp_path: Path, merged: Callable[..., Records]) -> None:
    model = Net()
    with Monitor(model, path=str(tmp_path)) as monitor:
        for _ in range(2):
            with torch.no_grad():
                model(torch.full((1, 3), 1e9))
            model(torch.zeros(1, 3)).sum().backward()
            model.eval()
            with torch.inference_mode():
                model(torch.full((1, 3), 1e9))
            model.train()
            monitor.step()
    found = merged(tmp_path)
    assert {key[0] for key in found} == {0, 1}
    inputs = [row for key, row in found.items() if key[1:3] == ("forward", "Module.first.Linear.input.0")]
    assert [row["max"] for row in inputs] == [0, 0]


def test_micro_steps_and_calls(tmp_path: Path, merged: Callable[..., Records]) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.shared(self.shared(x))

    model = Twice()
    with Monitor(model, path=str(tmp_path), first_step=7) as monitor:
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
        monitor.step()
    found = merged(tmp_path)
    forward = {(key[0], key[3]) for key in found if key[1] == "forward" and key[2].endswith("input.0")}
    assert forward == {(step, call) for step in range(3) for call in range(2)}
    gradients = {(key[0], key[3]) for key in found if key[1] == "parameters_grad" and key[2].endswith("weight")}
    assert gradients == {(step, 0) for step in range(3)}
    with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
        steps = database.execute("SELECT training_step, micro_step FROM trendprobe_steps").fetchall()
    assert steps == [(7, 0), (7, 1), (7, 2)]


def test_the_gradient_of_an_input_is_what_the_module_adds(tmp_path: Path, merged: Callable[..., Records]) -> None:
    """Not the whole gradient of the tensor, which other modules take as well."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Linear(3, 3)
            self.right = nn.Linear(3, 3)
            self.unused = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            y = self.left(x) + 2 * x
            self.unused(x)
            return y + self.right(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = Branches()

        def forward(self, x: Tensor) -> Tensor:
            return 3 * self.branches(x) + x

    model = Outer()
    x = torch.randn(4, 3, requires_grad=True)
    with Monitor(model, path=str(tmp_path)) as monitor:
        model(x).sum().backward()
        monitor.step()
    found = merged(tmp_path)
    ones = torch.full((4, 3), 3.0)
    of_left = ones @ model.branches.left.weight
    of_right = ones @ model.branches.right.weight
    for target, gradient in (
        ("Module.branches.left.Linear.output.0", of_left),
        ("Module.branches.right.Linear.output.0", of_right),
        ("Module.branches.Branches.output.0", of_left + of_right + 2 * ones),
        ("Module.branches.Branches.input.0", ones),
    ):
        assert found[0, "backward", target, 0] == pytest.approx(statistics(gradient), rel=1e-5), target
    assert (0, "backward", "Module.branches.unused.Linear.output.0", 0) not in found


def test_a_gradient_that_misses_a_part_is_recorded_at_the_step(tmp_path: Path, merged: Callable[..., Records]) -> None:
    """One of two results is not used: what consumes the input for it never runs backward."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two = Two()

        def forward(self, x: Tensor) -> Tensor:
            return self.two(x)[0]

    model = Outer()
    with Monitor(model, path=str(tmp_path)) as monitor:
        model(torch.randn(4, 3, requires_grad=True)).sum().backward()
        monitor.step()
    found = merged(tmp_path)
    expected = pytest.approx(statistics(torch.ones(4, 3) @ model.two.a.weight), rel=1e-5)
    assert found[0, "backward", "Module.two.Two.output.0", 0] == expected


def test_a_tensor_that_changed_in_place_is_read_again(tmp_path: Path, merged: Callable[..., Records]) -> None:
    """Also by a write of one element that evades autograd's version, as a faulty operator's does."""

    class Scale(nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.before = nn.Identity()
            self.after = nn.Identity()
            self.how = how

        def forward(self, x: Tensor) -> Tensor:
            x = self.before(x)
            if self.how == "version":
                x.mul_(2)
            elif self.how == "data":
                x.data[49_990] = 99_998
            elif self.how == "numpy":
                x.numpy()[12_345] = 99_998
            return self.after(x)

    for how, factor in (("not", 1), ("version", 2), ("data", 2), ("numpy", 2)):
        path = tmp_path / how
        model = nn.Sequential(Scale(how))
        with Monitor(model, path=str(path)) as monitor:
            model(torch.arange(50_000.0))
            monitor.step()
        found = merged(path)
        largest = [found[0, "forward", f"Module.0.{name}.Identity.input.0", 0]["max"] for name in ("before", "after")]
        assert largest == [49_999, factor * 49_999], how


def test_on_a_device_the_records_are_the_same(tmp_path: Path, merged: Callable[..., Records]) -> None:
    results = []
    for as_device in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        path = tmp_path / str(as_device)
        with Monitor(model, optimizer, path=str(path), _main_memory_is_device=as_device) as monitor:
            for _ in range(3):
                model(torch.randn(5, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.step()
        results.append({**merged(path), **merged(path, "monitor")})
    assert results[0].keys() == results[1].keys()
    for key, row in results[0].items():
        assert results[1][key] == pytest.approx(row, rel=1e-5, abs=1e-9), key


def test_on_a_device_nothing_waits_and_one_copy_ends_the_step(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    model = Net()
    batch = torch.randn(5, 3)
    with Monitor(model, path=str(tmp_path), _main_memory_is_device=True) as monitor:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            model(batch).sum().backward()
        names = {event.name for event in profiler.events()}
        assert "aten::linalg_vector_norm" in names  # of the hooks
        assert not names & {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero"}
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            monitor.step()
        events = [event.name for event in profiler.events() if event.thread == profiler.events()[0].thread]
        assert events.count("aten::copy_") == 1
        assert not set(events) & {"aten::_local_scalar_dense", "aten::item", "aten::cpu"}


def test_an_error_in_the_model_leaves_the_next_step_right(tmp_path: Path, merged: Callable[..., Records]) -> None:
    class Fails(nn.Module):
        fails = True

        def forward(self, x: Tensor) -> Tensor:
            if self.fails:
                raise KeyError("a batch that can't be used")
            return x

    failing = Fails()
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), failing), nn.Linear(3, 1))
    with Monitor(model, path=str(tmp_path)) as monitor:
        with pytest.raises(KeyError):
            model(torch.randn(2, 3))
        monitor.step()
        failing.fails = False
        model(torch.randn(2, 3)).sum().backward()
        monitor.step()
        assert monitor.coverage() == []
    found = merged(tmp_path)
    assert (1, "forward", "Module.2.Linear.output.0", 0) in found
    assert (1, "backward", "Module.1.Sequential.output.0", 0) in found
    assert {key[0] for key in found if key[1] == "backward"} == {1}


def test_several_monitors_and_models(tmp_path: Path, merged: Callable[..., Records]) -> None:
    shared = Net()
    outer = nn.Sequential(nn.Linear(3, 3), shared)
    with Monitor(shared, path=str(tmp_path / "inner")) as one, Monitor(outer, path=str(tmp_path / "outer")) as two:
        outer(torch.randn(2, 3)).sum().backward()
        one.step()
        two.step()
    inner = merged(tmp_path / "inner")
    both = merged(tmp_path / "outer")
    assert len(inner) == 16
    assert len(both) == 16 + 4 + 7  # the inner net's layers, itself, and a layer whose input needs no gradient
    key = (0, "forward", "Module.first.Linear.output.0", 0)
    assert inner[key] == both[0, "forward", "Module.1.first.Linear.output.0", 0]


def test_chunks_of_a_model_have_their_number(tmp_path: Path, merged: Callable[..., Records]) -> None:
    chunks = [Net(), nn.Sequential(nn.Linear(2, 2))]
    with Monitor(chunks, path=str(tmp_path)) as monitor:
        chunks[1](chunks[0](torch.randn(2, 3))).sum().backward()
        monitor.step()
    targets = {key[2] for key in merged(tmp_path)}
    assert {"Module.0.first.Linear.output.0", "Module.1.0.Linear.output.0"} <= targets


def test_a_forked_child_records_nothing_and_does_not_wait(tmp_path: Path) -> None:
    model = Net()
    with Monitor(model, path=str(tmp_path)) as monitor:
        model(torch.randn(2, 3)).sum().backward()
        monitor.step()
        child = os.fork()
        if child == 0:
            try:
                model(torch.randn(2, 3)).sum().backward()
                monitor.step()
                monitor.close()
            finally:
                os._exit(0 if model.first.weight.grad is not None else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.glob("*.shard"))) == 1


def test_a_forked_child_records_what_it_trains_itself(tmp_path: Path) -> None:
    """Also where it ends without atexit, as multiprocessing's do."""

    def train_in_child() -> None:
        model = Net()
        monitor = Monitor(model, path=str(tmp_path))
        model(torch.randn(2, 3)).sum().backward()
        monitor.step()
        alive.append(monitor)

    alive: list[Monitor] = []
    with Monitor(Net(), path=str(tmp_path)):
        child = multiprocessing.get_context("fork").Process(target=train_in_child)
        child.start()
        child.join()
    assert child.exitcode == 0
    (shard,) = tmp_path.glob("*.shard")
    with sqlite3.connect(shard) as database:
        assert database.execute("SELECT step, state FROM steps").fetchall() == [(0, "complete")]
        assert database.execute("SELECT value FROM shard_info WHERE key = 'closed'").fetchone() == (1,)


def test_what_follows_the_last_step_is_an_incomplete_one(tmp_path: Path) -> None:
    model = Net()
    with Monitor(model, path=str(tmp_path)) as monitor:
        model(torch.randn(2, 3)).sum().backward()
        monitor.step()
        model(torch.randn(2, 3))
    with sqlite3.connect(monitor.shard) as database:
        assert database.execute("SELECT step, state FROM steps").fetchall() == [(0, "complete"), (1, "incomplete")]


def test_an_error_of_ours_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile(dict):  # type: ignore[type-arg]
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("not today")

    class Key:
        def __str__(self) -> str:
            raise RuntimeError("no name")

    class Takes(nn.Module):
        def forward(self, x: Tensor, options: Any) -> Tensor:
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.takes = Takes()

        def forward(self, x: Tensor) -> Tensor:
            x = self.takes(self.linear(x), Hostile())
            return self.takes(x, {Key(): x})

    model = Outer()
    with caplog.at_level(logging.WARNING, logger="trendprobe"), Monitor(model, path=str(tmp_path)) as monitor:
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
            monitor.step()
    assert caplog.text.count("no name") == 1


def test_an_interrupted_call_leaves_the_next_step_right(tmp_path: Path, merged: Callable[..., Records]) -> None:
    class Interrupts(nn.Module):
        interrupts = True

        def forward(self, x: Tensor) -> Tensor:
            if self.interrupts:
                raise KeyboardInterrupt
            return x

    last = Interrupts()
    model = nn.Sequential(nn.Linear(3, 3), last)
    with Monitor(model, path=str(tmp_path)) as monitor:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(2, 3))
        last.interrupts = False
        with torch.no_grad():
            model(torch.randn(2, 3))  # still no training, although a call seems to be under way
        model(torch.randn(2, 3)).sum().backward()
        monitor.step()
    found = merged(tmp_path)
    outputs = {key[0] for key in found if key[1:3] == ("forward", "Module.1.Interrupts.output.0")}
    assert outputs == {1}


def test_compiled_backward_passes_leave_the_training_alone(tmp_path: Path) -> None:
    from torch._dynamo import compiled_autograd

    def gradients(watched: bool) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Net()
        monitor = Monitor(model, path=str(tmp_path)) if watched else None
        batch = torch.randn(5, 3)
        with compiled_autograd._enable(torch.compile(backend="eager")):
            for _ in range(2):
                model(batch).sum().backward()
                if monitor:
                    monitor.step()
        if monitor:
            monitor.close()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False)))


def _script(model: nn.Module, x: Tensor) -> Any:
    return model(x).sum().backward()


def _trace(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.trace(model, x)(x).sum().backward()


def _symbolic_trace(model: nn.Module, x: Tensor) -> Any:
    return torch.fx.symbolic_trace(model)


def _export(model: nn.Module, x: Tensor) -> Any:
    return torch.export.export(model, (x,))


def _transforms(model: nn.Module, x: Tensor) -> Any:
    from torch.func import functional_call, grad, vmap

    parameters = {name: value.detach() for name, value in model.named_parameters()}
    gradient = grad(lambda parameters, x: functional_call(model, parameters, (x,)).sum())
    return gradient(parameters, x), vmap(gradient, in_dims=(None, 0))(parameters, x)


def _second_order(model: nn.Module, x: Tensor) -> Any:
    x.requires_grad_()
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return first.square().sum().backward()


def _twice(model: nn.Module, x: Tensor) -> Any:
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    return loss.backward()


def _fake(model: nn.Module, x: Tensor) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return model(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "use",
    [_script, _trace, _symbolic_trace, _export, _transforms, _second_order, _twice, _fake],
    ids=lambda f: f.__name__,
)
def test_unusual_callers(use: Callable[[nn.Module, Tensor], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = Net()
    if use is _script:
        model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(model))
    x = torch.randn(2, 3)
    with Monitor(model, path=str(tmp_path)) as monitor:
        use(model, x)
        monitor.step()
        assert monitor._native.take_error() == ""
        model(x.detach()).sum().backward()
        monitor.step()
        assert monitor.cost().tensors >= 15
