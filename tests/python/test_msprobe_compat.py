"""`trendprobe data2db --compat msprobe` against the databases that msProbe 26.2.0 made of the same trees."""

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

# (tree, micro-steps) for every database that msProbe made, but for those of damaged trees, which are no model to
# follow, and of pt_L0_noextra with micro-steps, where msProbe fails on the missing construct.json.
WITH_MICRO_STEPS = [
    "edge_mon_dup_rows",
    "edge_mon_extra_file",
    "edge_mon_nan_step",
    "edge_rank_and_proc",
    "mon_full_1rank",
    "mon_slim_1rank",
    "mon_slim_2rank",
    "ms_L0_cpu",
    "pt_L0_ddp2",
    "pt_L0_md5",
    "pt_L0_megatron_pp2",
    "pt_L0_megatron_vpp2",
    "pt_L0_megstub_seq",
    "pt_L0_microstart",
    "pt_L0_naninf",
    "pt_L0_proc",
    "pt_L0_reentrant",
    "pt_L0_xor",
    "pt_L1_proc",
    "pt_mix_proc",
]
WITHOUT_MICRO_STEPS = [
    "mon_full_1rank",
    "mon_slim_1rank",
    "mon_slim_2rank",
    "pt_L0_ddp2",
    "pt_L0_megatron_pp2",
    "pt_L0_megatron_vpp2",
    "pt_L0_megstub_seq",
    "pt_L0_noextra",
    "pt_L0_proc",
    "pt_L1_proc",
    "pt_mix_proc",
]
CASES = [(name, True) for name in WITH_MICRO_STEPS] + [(name, False) for name in WITHOUT_MICRO_STEPS]

Rows = dict[tuple[object, ...], tuple[object, ...]]


def table(database: sqlite3.Connection, sql: str, keys: int) -> Rows:
    """The rows of a query by their first `keys` columns, which must be unique."""
    rows: Rows = {}
    for row in database.execute(sql):
        assert row[:keys] not in rows, f"twice: {row[:keys]}"
        rows[row[:keys]] = row[keys:]
    return rows


def tables(path: Path) -> dict[str, Rows]:
    """msProbe's tables, ids resolved to names."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        statistics = [row[1] for row in database.execute("PRAGMA table_info(trend_data)")][4:]
        stats = [row[1] for row in database.execute("PRAGMA table_info(global_stats)")]
        (values,) = database.execute("SELECT * FROM global_stats")
        return {
            "statistics": {(i,): (name,) for i, name in enumerate(statistics)},
            # The order of the statistics of one metric changes from run to run in monitor data.
            "global_stats": {
                (name,): (sorted(value.split(",")) if isinstance(value, str) else value,)
                for name, value in zip(stats, values, strict=True)
            },
            "metrics": table(database, "SELECT metric_name FROM monitoring_metrics", 1),
            "targets": table(database, "SELECT target_name, vpp_stage, micro_step FROM monitoring_targets", 3),
            "tags": table(
                database,
                "SELECT tag_name, category, metric_name FROM monitoring_tags JOIN monitoring_metrics USING (metric_id)",
                3,
            ),
            "tag_targets": table(
                database,
                "SELECT tag_name, category, metric_name, target_name, vpp_stage, micro_step FROM tag_target_mapping "
                "JOIN monitoring_tags USING (tag_id) JOIN monitoring_metrics USING (metric_id) "
                "JOIN monitoring_targets USING (target_id)",
                6,
            ),
            "trend_data": table(
                database,
                f"SELECT rank, step, target_name, vpp_stage, micro_step, metric_name, {', '.join(statistics)} "
                "FROM trend_data JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id)",
                6,
            ),
        }


def same(ours: tuple[object, ...], theirs: tuple[object, ...]) -> bool:
    """Equal, numbers but for the last bit: pandas does not round correctly when it reads a number."""
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=1e-12) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("name", "micro_steps"), CASES)
def test_equals_msprobe(
    name: str, micro_steps: bool, tmp_path: Path, trendprobe: Callable, fixture_tree: Callable[[str], Path]
) -> None:
    tree = fixture_tree(name)
    trendprobe(
        *("data2db", "--data", tree / "data", "--db", tmp_path, "--compat", "msprobe", "--process_num", 2),
        *("--micro_step", str(micro_steps)),
        code=None,
    )
    reference = tree / ("ref_db" if micro_steps else "ref_db_nomicro")
    (theirs_path,) = reference.glob("*.trend.db")
    ours, theirs = tables(tmp_path / theirs_path.name), tables(theirs_path)
    assert [path.name for path in tmp_path.iterdir()] == [theirs_path.name]
    for table_name, expected in theirs.items():
        found = ours[table_name]
        assert found.keys() == expected.keys(), table_name
        different = {key: (found[key], expected[key]) for key in expected if not same(found[key], expected[key])}
        assert not different, f"{table_name}: {len(different)} rows differ"
    assert theirs["trend_data"], "msProbe's database is empty: nothing was compared"
