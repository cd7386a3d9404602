"""TrainerMon with TrendProbe in place of its files: against the files of the same training under msProbe alone."""

import csv
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from monitored_runs import MonitoredRun
from monitored_training import NAN_STEP, STEPS
from trend_rows import assert_same, rows

torch = pytest.importorskip("torch")
pytest.importorskip("msprobe")

CONFIG: dict[str, Any] = {
    "targets": {},
    "format": "csv",
    "ops": ["norm", "min", "max", "mean", "zeros", "nans", "shape", "dtype"],
    "ndigits": 12,
    "all_xy": True,
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "monitor_mbs_grad": True,
}
RULES = [
    {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.05}},
    {"rule_name": "AnomalyNan", "args": {"threshold": 1.5}},
]
L2: dict[str, Any] = {"recording_l2_features": True, "l2_targets": {"linear_hook": []}}
# ranks, micro-batches, what the configuration has besides
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "alone": (1, 1, {"alert": {"rules": RULES, "dump": True}, "monitor_mbs_grad": False, **L2}),
    "two_ranks": (2, 2, {"cc_distribution": {"enable": True, "cc_pre_hook": True}, "stack_info": True}),
}
METRICS = {
    "actv",
    "actv_grad",
    "grad_unreduced",
    "grad_reduced",
    "exp_avg",
    "exp_avg_sq",
    "param_origin",
    "param_updated",
    "other",
}
SIDES = ("msprobe", "trendprobe", "both")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], MonitoredRun]:
    """Every case alone under msProbe, with TrendProbe in its place, and one with both."""
    root = tmp_path_factory.mktemp("trainermon")
    started = {}
    for case, (ranks, micro_batches, besides) in CASES.items():
        for side in SIDES:
            if (case, side) == ("two_ranks", "both"):
                continue
            config = {**CONFIG, **besides}
            if side != "msprobe":
                config["trend_db"] = {"enable": True, "path": "trend", "keep_files": side == "both"}
            started[case, side] = MonitoredRun(
                root / case / side,
                config,
                version=1,
                ranks=ranks,
                micro_batches=micro_batches,
                attached=side != "msprobe",
            )
    for run in started.values():
        run.wait()
    return started


def merged(trendprobe: Callable[..., Any], data: Path, name: str, **code: int | None) -> Path:
    trendprobe("merge", "--data", data, "--db", data.parent / name, **code)
    return data.parent / name / "monitor_data.trend.db"


def without_l2_features(found: dict[tuple[object, ...], Any]) -> dict[tuple[object, ...], Any]:
    """What a merge reads of msProbe's files: as data2db, nothing of l2 features."""
    return {key: row for key, row in found.items() if key[5] != "linear_hook"}


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_that_of_msprobes_files(
    case: str, runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]
) -> None:
    files = runs[case, "msprobe"].directory / "monitor"
    run = runs[case, "trendprobe"].directory
    found = rows(merged(trendprobe, run / "trend", "from_shards"))
    if case == "two_ranks":
        # Msprobe's rows of collectives have no name, and spoil the file in which they are.
        assert {key[5] for key in found} == METRICS | {"cc"}
        found = {key: row for key, row in found.items() if key[5] not in ("other", "cc")}
        assert_same(found, rows(merged(trendprobe, files, "from_files", code=None)))
    else:
        assert {key[5] for key in found} == METRICS | {"linear_hook"}
        assert_same(without_l2_features(found), rows(merged(trendprobe, files, "from_files")))
    assert not list((run / "monitor").rglob("actv*.csv"))
    assert not [line for line in runs[case, "trendprobe"].output if "TrendProbe records no more" in line]


def test_with_files_both_hold_the_same(
    runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]
) -> None:
    run = runs["alone", "both"].directory
    ours = rows(merged(trendprobe, run / "trend", "from_shards"))
    assert_same(without_l2_features(ours), rows(merged(trendprobe, run / "monitor", "from_files")))
    names = sorted(path.name for path in (run / "monitor").rglob("*.csv"))
    assert names == sorted(path.name for path in (runs["alone", "msprobe"].directory / "monitor").rglob("*.csv"))


def test_l2_features_are_those_of_msprobes_files(
    runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]
) -> None:
    expected = {}
    for path in (runs["alone", "msprobe"].directory / "monitor").rglob("linear_hook_*.csv"):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                place = (0, int(row["step"]), row["name"], int(row["vpp_stage"]), 0, "linear_hook")
                expected[place] = (float(row["sr"]), float(row["kernel_norm"]))
    assert len(expected) == 6 * STEPS  # linear layers
    for side in SIDES[1:]:
        found = rows(merged(trendprobe, runs["alone", side].directory / "trend", "l2_features"))
        for place, (stable_rank, kernel_norm) in expected.items():
            assert found[place]["sr"] == pytest.approx(stable_rank, rel=1e-6)
            assert found[place]["kernel_norm"] == pytest.approx(kernel_norm, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_losses_and_parameters_are_the_same_bit_for_bit(case: str, runs: dict[tuple[str, str], MonitoredRun]) -> None:
    for side in SIDES[1:]:
        if (case, side) in runs:
            for rank in range(CASES[case][0]):
                expected = runs[case, "msprobe"].result(rank)
                found = runs[case, side].result(rank)
                assert found["losses"] == expected["losses"]
                assert found["digest"] == expected["digest"]


def anomalies(run: MonitoredRun) -> list[tuple[str, str]]:
    """(where, what) of every alert, without the digits."""
    (path,) = run.directory.rglob("anomaly.json")
    found = json.loads(path.read_text())
    return sorted((key, re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?", "#", anomaly["message"])) for key, anomaly in found.items())


def test_alert_rules_fire_as_in_msprobe(runs: dict[tuple[str, str], MonitoredRun]) -> None:
    expected = anomalies(runs["alone", "msprobe"])
    assert {re.match("Rule (Anomaly[A-Za-z]+)", what)[1] for _, what in expected} == {
        "AnomalyTurbulence",
        "AnomalyNan",
    }
    for side in SIDES[1:]:
        assert anomalies(runs["alone", side]) == expected


def test_stacks_are_written_as_by_msprobe(runs: dict[tuple[str, str], MonitoredRun]) -> None:
    for side in SIDES[:2]:
        assert len(list(runs["two_ranks", side].directory.rglob("stack_info.csv"))) == 2


def test_collectives_are_recorded(runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]) -> None:
    run = runs["two_ranks", "trendprobe"]
    found = rows(merged(trendprobe, run.directory / "trend", "cc"))
    for rank in range(2):
        for step, (before, after) in enumerate(run.result(rank)["shared"]):
            if step == NAN_STEP:
                continue
            for kind, loss in (("pre_0", before), ("post_0", after)):
                row = found[rank, 2 * step, f"all_reduce.{kind}", 0, 0, "cc"]
                assert row["max"] == row["min"] == pytest.approx(loss, rel=1e-6)


def test_gradients_before_communication_per_micro_batch_and_rank(
    runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]
) -> None:
    """Case W28: the norm of the local gradient, before DDP averages it, of every micro-batch."""
    run = runs["two_ranks", "trendprobe"]
    path = merged(trendprobe, run.directory / "trend", "w28")
    found = rows(path)
    with sqlite3.connect(path) as database:
        axis = {
            (step, micro_step): index for index, step, micro_step in database.execute("SELECT * FROM trendprobe_steps")
        }
    assert len(axis) == 2 * STEPS
    norms: dict[tuple[int, str], list[float | None]] = {}
    for rank in range(2):
        gradients = run.result(rank)["gradients"]
        assert len(gradients) == STEPS  # the first micro-batch of each step: nothing was communicated yet
        for key, expected in gradients.items():
            place = axis[tuple(map(int, key.split(",")))]
            for name, norm in expected.items():
                row = found[rank, place, f"module.{name}", 0, 0, "grad_unreduced"]
                norms.setdefault((place, name), []).append(row["norm"])
                if norm == norm:
                    assert row["norm"] == pytest.approx(norm, rel=1e-6, abs=1e-12)
                else:
                    assert row["norm"] is None
                # DDP's hook has averaged what the last micro-batch leaves, and it stands on its own step.
                assert (rank, place + 1, f"module.{name}", 0, 0, "grad_unreduced") in found
    differing = [pair for pair in norms.values() if None not in pair and pair[0] != pair[1]]
    assert len(differing) > 10  # it is each rank's own


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes main memory for a device."""
    from trendprobe import device_values, monitor_metrics

    for module in (device_values, monitor_metrics):
        monkeypatch.setattr(module, "is_in_main_memory", lambda _: False)


@pytest.mark.usefixtures("on_device")
def test_values_stay_on_a_device_until_the_step_ends(tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    """No operator of a hook brings a number to the host; one copy does at the end."""
    from msprobe.pytorch.monitor.data_writers import WriterInput
    from msprobe.pytorch.monitor.module_metric import get_metrics
    from torch.profiler import ProfilerActivity, profile
    from trendprobe.monitor_metrics import measuring
    from trendprobe.monitor_writer import TrendCsvWriter
    from trendprobe.settings import TrendSettings

    writer = TrendCsvWriter(
        WriterInput(str(tmp_path / "csv"), [], "job"),
        TrendSettings(enable=True, path=str(tmp_path / "trend"), keep_files=False),
        rank=0,
    )
    ops = CONFIG["ops"]
    tensors = {f"0:layer{i}.output:0/rank0/actv": torch.randn(3, 4) for i in range(20)}
    with profile(activities=[ProfilerActivity.CPU]) as hooks:
        metrics = measuring(get_metrics)(writer.recorded(ops), tensors, 1e-8)
        writer.write_metrics(ops, metrics, 0, "actv")
    called = {event.name for event in hooks.events()}
    assert "aten::linalg_vector_norm" in called
    assert not called & {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::cpu"}
    with profile(activities=[ProfilerActivity.CPU]) as end:
        writer.clear_anomalies()
    called = [event.name for event in end.events()]
    assert called.count("aten::stack") == 1
    assert "aten::_local_scalar_dense" not in called
    writer._recorder.close()
    found = rows(merged(trendprobe, tmp_path / "trend", "db"))
    assert len(found) == 20
    for tag, tensor in tensors.items():
        row = found[0, 0, tag.split(":")[1], 0, 0, "actv"]
        assert row["norm"] == pytest.approx(tensor.norm().item(), rel=1e-6)
        assert (row["min"], row["max"]) == (tensor.min().item(), tensor.max().item())
        assert (row["zeros"], row["nans"]) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("limit", [1e-8, 1e-3, 0.5, 0.0])
def test_near_zeros_are_counted_as_msprobe_counts_them(dtype: torch.dtype, limit: float) -> None:
    from trendprobe._tensor_stats import count_near_zeros

    numbers = torch.randn(300_000) * 10.0 ** torch.randint(-10, 3, (300_000,))
    numbers[:5] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")])
    numbers[5:9] = torch.tensor([limit, -limit, limit * 1.01, -limit * 0.99])
    for tensor in (numbers, numbers[:7], numbers.view(1000, 300).t(), numbers[0]):
        tensor = tensor.to(dtype)
        assert count_near_zeros(tensor, limit) == (torch.abs(tensor) < limit).sum().item()


def test_near_zeros_of_what_is_not_measured() -> None:
    from trendprobe._tensor_stats import count_near_zeros

    for nothing in (None, torch.ones(3, dtype=torch.int32), torch.ones(4, 4)[:, ::2], torch.empty(0)):
        assert count_near_zeros(nothing, 1e-8) is None
