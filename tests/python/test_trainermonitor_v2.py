"""TrainerMonitorV2 with TrendProbe in place of its files: against the files of msProbe alone on the same training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from monitored_runs import MonitoredRun
from monitored_training import STEPS
from trend_rows import assert_same, rows

pytest.importorskip("torch")
pytest.importorskip("msprobe")

METRICS = {
    "actv",
    "actv_grad",
    "recompute",
    "grad_unreduced",
    "grad_reduced",
    "exp_avg",
    "exp_avg_sq",
    "param_origin",
    "param_updated",
}
# ranks, micro-batches, gradients of each micro-batch
CASES = {"one_rank": (1, 1, False), "two_ranks": (2, 2, True)}
SIDES = ("msprobe", "trendprobe", "both")


def config(side: str, monitor_mbs_grad: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "framework": "pytorch",
        "output_dir": "out",
        "monitors": {
            "module": {"enabled": True, "ops": ["norm", "min", "max", "mean", "nans"]},
            "weight_grad": {"enabled": True, "monitor_mbs_grad": monitor_mbs_grad},
            "optimizer": {"enabled": True, "ops": ["norm", "nans"]},
            "param": {"enabled": True},
            "cc": {"enabled": True, "cc_pre_hook": True},
        },
    }
    if side != "msprobe":
        found["trend_db"] = {"enable": True, "path": "trend", "keep_files": side == "both"}
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], MonitoredRun]:
    root = tmp_path_factory.mktemp("trainermonitor_v2")
    started = {
        (case, side): MonitoredRun(
            root / case / side,
            config(side, each_gradient),
            version=2,
            ranks=ranks,
            micro_batches=micro_batches,
            attached=side != "msprobe",
        )
        for case, (ranks, micro_batches, each_gradient) in CASES.items()
        for side in SIDES
        if (case, side) != ("two_ranks", "both")
    }
    for run in started.values():
        run.wait()
    return started


def merged(trendprobe: Callable[..., Any], data: Path, name: str) -> Path:
    trendprobe("merge", "--data", data, "--db", data.parent / name)
    return data.parent / name / "monitor_data.trend.db"


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_that_of_msprobes_files(
    case: str, runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]
) -> None:
    run = runs[case, "trendprobe"]
    expected = rows(merged(trendprobe, runs[case, "msprobe"].directory / "out", "from_files"))
    found = rows(merged(trendprobe, run.directory / "trend", "from_shards"))
    ranks, micro_batches, _ = CASES[case]
    # Without DDP nothing keeps msProbe's hooks on the gradients alive.
    assert {key[5] for key in found} == (METRICS | {"cc"} if ranks > 1 else METRICS - {"grad_unreduced"})
    assert {key[:2] for key in found} == {
        (rank, step) for rank in range(ranks) for step in range(STEPS * micro_batches)
    }
    assert_same(found, expected)
    assert not list((run.directory / "out").rglob("*.csv"))
    assert not [output for output in run.output if "TrendProbe records no more" in output]


def test_with_files_both_hold_the_same(
    runs: dict[tuple[str, str], MonitoredRun], trendprobe: Callable[..., Any]
) -> None:
    run = runs["one_rank", "both"].directory
    found = rows(merged(trendprobe, run / "trend", "from_shards"))
    assert_same(found, rows(merged(trendprobe, run / "out", "from_files")))
    for path in (runs["one_rank", "msprobe"].directory / "out").rglob("*.csv"):
        assert (run / "out/rank_0" / path.name).read_text() == path.read_text()


@pytest.mark.parametrize("case", CASES)
def test_losses_and_parameters_are_the_same_bit_for_bit(case: str, runs: dict[tuple[str, str], MonitoredRun]) -> None:
    for side in SIDES[1:]:
        if (case, side) in runs:
            for rank in range(CASES[case][0]):
                expected, found = (runs[case, name].result(rank) for name in ("msprobe", side))
                assert (found["losses"], found["digest"]) == (expected["losses"], expected["digest"])
