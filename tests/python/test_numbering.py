"""TrendProbe's own numbering on trees of the real msProbe, whose training loops are known."""

import csv
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

# Training steps × micro-batches of the loop that wrote the tree.
TRUE_STEPS = {
    "pt_L0_proc": (4, 2),
    "pt_mix_proc": (3, 2),
    "pt_L0_ddp2": (3, 2),
    "pt_L0_md5": (2, 2),
    "pt_L0_naninf": (4, 2),
    "pt_L1_proc": (2, 1),  # has no module tree
    "pt_L0_microstart": (3, 2),
    "pt_L0_reentrant": (2, 2),
    "pt_L0_noextra": (2, 1),  # has no construct.json
    "pt_L0_megstub_seq": (3, 4),
    "pt_L0_megatron_pp2": (2, 4),
    "pt_L0_megatron_vpp2": (2, 4),
    "ms_L0_cpu": (3, 2),
    "mon_full_1rank": (4, 2),
    "mon_slim_1rank": (4, 2),
    "mon_slim_2rank": (4, 2),
}
# Trees whose modules all run once a micro-step, so that each line must have a value at every step.
WHOLE_LINES = [
    *("pt_L0_proc", "pt_L0_ddp2", "pt_L0_md5", "pt_L0_naninf", "pt_L0_microstart", "pt_L0_reentrant"),
    *("pt_L0_megstub_seq", "pt_L0_megatron_pp2", "pt_L0_megatron_vpp2", "ms_L0_cpu"),
]


@pytest.fixture
def merged(tmp_path: Path, trendprobe: Callable, fixture_tree: Callable[[str], Path]) -> Callable:
    def merge(name: str, code: int = 0) -> sqlite3.Connection:
        kind = "monitor" if name.startswith("mon_") else "dump"
        trendprobe("merge", "--data", fixture_tree(name) / "data", "--db", tmp_path, code=code)
        return sqlite3.connect(tmp_path / f"{kind}_data.trend.db")

    return merge


@pytest.mark.parametrize("name", TRUE_STEPS)
def test_step_axis_is_that_of_the_training_loop(name: str, merged: Callable) -> None:
    steps, micro_steps = TRUE_STEPS[name]
    found = (
        merged(name).execute("SELECT step, training_step, micro_step FROM trendprobe_steps ORDER BY step").fetchall()
    )
    assert found == [(i, i // micro_steps, i % micro_steps) for i in range(steps * micro_steps)]


@pytest.mark.parametrize("name", WHOLE_LINES)
def test_every_line_goes_on_over_all_steps(name: str, merged: Callable) -> None:
    steps, micro_steps = TRUE_STEPS[name]
    lines = defaultdict(set)
    for rank, metric, target, stage, call, step in merged(name).execute(
        "SELECT rank, metric_name, target_name, vpp_stage, micro_step, step FROM trend_data "
        "JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)"
    ):
        lines[rank, metric, target, stage, call].add(step)
    broken = {line: seen for line, seen in lines.items() if len(seen) != steps * micro_steps}
    if name == "pt_L0_megatron_pp2":
        # The collector itself left this gradient out in the last micro-batch of each step.
        broken = {line: seen for line, seen in broken.items() if line[1] != "parameters_grad"}
    assert not broken


def test_recomputed_forwards_are_a_metric_of_their_own(merged: Callable) -> None:
    for name in ("pt_L0_proc", "pt_L0_reentrant"):
        counts = dict(
            merged(name).execute(
                "SELECT metric_name, count(DISTINCT target_id) FROM trend_data "
                "JOIN monitoring_metrics USING (metric_id) JOIN monitoring_targets USING (target_id) "
                "WHERE target_name LIKE '%.layers.1.%' GROUP BY 1"
            )
        )
        assert 0 < counts["recompute"] <= counts["forward"], name


def test_model_chunks_are_virtual_pipeline_stages(merged: Callable) -> None:
    stages = merged("pt_L0_megatron_vpp2").execute(
        "SELECT DISTINCT vpp_stage, substr(target_name, 1, 9) FROM monitoring_targets ORDER BY 1"
    )
    assert stages.fetchall() == [(0, "Module.0."), (1, "Module.1.")]


def test_keyword_tensors_that_msprobe_leaves_out_are_kept(merged: Callable) -> None:
    (count,) = (
        merged("pt_L0_proc")
        .execute(
            "SELECT count(*) FROM trend_data JOIN monitoring_targets USING (target_id) "
            "JOIN monitoring_metrics USING (metric_id) "
            "WHERE target_name LIKE '%.input.scale' AND metric_name = 'forward'"
        )
        .fetchone()
    )
    assert count == 16


def test_losses_outside_any_module_stay_with_their_micro_step(merged: Callable) -> None:
    rows = merged("pt_mix_proc").execute(
        "SELECT step, rank FROM trend_data JOIN monitoring_targets USING (target_id) "
        "JOIN monitoring_metrics USING (metric_id) "
        "WHERE target_name = 'Functional.cross_entropy.output.0' AND metric_name = 'forward' ORDER BY step"
    )
    # The collector loses every API record after the first recomputation: the second micro-batch has none.
    assert rows.fetchall() == [(0, 0), (2, 0), (4, 0)]


def test_planted_values_are_found_where_they_were_planted(merged: Callable) -> None:
    database = merged("pt_L0_naninf")
    first = database.execute(
        "SELECT value, min(step) FROM trendprobe_nonfinite JOIN monitoring_targets USING (target_id) "
        "JOIN monitoring_metrics USING (metric_id) WHERE metric_name = 'forward' GROUP BY value ORDER BY value"
    ).fetchall()
    steps = {value: step for value, step in first}
    assert steps["NaN"] == 2  # training step 1, micro-step 0
    assert steps["+inf"] == 5  # training step 2, micro-step 1


def test_a_process_without_rank_beside_ranks_gets_the_next_number(merged: Callable) -> None:
    # Exit code 1: it has a directory stepX, too.
    ranks = merged("edge_rank_and_proc", code=1).execute("SELECT rank FROM trendprobe_ranks ORDER BY rank")
    assert [rank for (rank,) in ranks] == [0, 1, 2]


@pytest.mark.parametrize("name", ["mon_full_1rank", "mon_slim_1rank", "mon_slim_2rank"])
def test_a_healthy_run_has_no_nan(name: str, merged: Callable, fixture_tree: Callable[[str], Path]) -> None:
    """Its only ones stand for arguments that are no tensors; all other rows of the CSV are there."""
    measured = {}
    for path in (fixture_tree(name) / "data").glob("*/*.csv"):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                key = (row["name"], int(row["step"]), int(row.get("micro_step", 0)))
                if row["dtype"] != "nan":
                    measured[(path.name.rsplit("_", 1)[0], int(path.parent.name.split("-rank")[1][0]), *key)] = row
    database = merged(name)
    assert database.execute("SELECT count(*) FROM trendprobe_nonfinite").fetchone() == (0,)
    assert database.execute("SELECT count(*) FROM trendprobe_issues").fetchone() == (0,)
    rows = database.execute(
        "SELECT metric_name, rank, target_name, training_step, s.micro_step FROM trend_data "
        "JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id) "
        "JOIN trendprobe_steps AS s USING (step)"
    ).fetchall()
    assert sorted(rows) == sorted(measured)
