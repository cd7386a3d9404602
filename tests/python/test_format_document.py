"""Real databases hold what docs/format.md says: tables, columns, file marks, and the tiles' arithmetic."""

import math
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from trend_tiles import tile_values

DOCUMENT = (Path(__file__).parents[2] / "docs/format.md").read_text()
TREND_PART = DOCUMENT[DOCUMENT.index("## Trend database") :]
KINDS = {"dump": "pt_L0_naninf", "monitor": "mon_full_1rank"}
ROW_LIMIT = 1e9


def documented_tables() -> dict[str, list[str]]:
    """Table → column names, of the code blocks; "<statistic> REAL ..." stands for any columns."""
    tables = {}
    for block in re.findall(r"```\n(.*?)```", TREND_PART, flags=re.S):
        for name, columns in re.findall(r"^(\w+)\((.*?)\)(?: WITHOUT ROWID)?$", block, flags=re.S | re.M):
            without_keys = re.sub(r",\s*(PRIMARY KEY|UNIQUE)\s*\([^)]*\)", "", columns)
            tables[name] = [column.split()[0] for column in without_keys.split(",")]
    return tables


@pytest.fixture(params=KINDS)
def merged(
    request: pytest.FixtureRequest,
    trendprobe: Callable[..., object],
    fixture_tree: Callable[[str], Path],
    tmp_path: Path,
) -> Path:
    trendprobe("merge", "--data", fixture_tree(KINDS[request.param]) / "data", "--db", tmp_path)
    return tmp_path / f"{request.param}_data.trend.db"


def test_tables_and_columns_are_those_of_the_document(merged: Path) -> None:
    documented = documented_tables()
    assert len(documented) == 16
    with sqlite3.connect(merged) as database:
        tables = {
            name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite_")
        }
    assert tables.keys() == documented.keys()
    for name, columns in documented.items():
        fixed = [column for column in columns if not column.startswith("<")]
        if fixed == columns:
            assert tables[name] == columns, name
        else:
            assert tables[name][: len(fixed)] == fixed and len(tables[name]) > len(fixed), name


def test_file_marks_are_those_of_the_document(merged: Path) -> None:
    row = next(line for line in DOCUMENT.splitlines() if line.startswith("| trend database"))
    marks = re.search(r"`0x([0-9A-F]{8})`.*\| (\d+) \|$", row)
    assert marks is not None
    with sqlite3.connect(merged) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (int(marks[1], 16),)
        assert database.execute("PRAGMA user_version").fetchone() == (int(marks[2]),)
        assert database.execute("PRAGMA page_size").fetchone() == (16 << 10,)
        assert database.execute("SELECT count(*) > 0 FROM sqlite_stat1").fetchone() == (1,)


def test_tiles_hold_what_the_rows_hold(merged: Path) -> None:
    """The rows are cut and can't hold NaN; all else must be the same, found by the document's arithmetic."""
    tiles = {key: float(value) for key, value in tile_values(merged).items()}
    found = set()
    with sqlite3.connect(merged) as database:
        statistics = [row[1] for row in database.execute("PRAGMA table_info(trend_data)")][4:]
        for *key, metric, values in (
            (*row[:6], row[6:])
            for row in database.execute(
                "SELECT rank, step, target_name, vpp_stage, micro_step, metric_name, "
                f"{', '.join(statistics)} FROM trend_data JOIN monitoring_targets USING (target_id) "
                "JOIN monitoring_metrics USING (metric_id)"
            )
        ):
            for statistic, in_row in zip(statistics, values):
                cell = (*key, metric, statistic)
                exact = tiles.get(cell)
                if in_row is None:
                    assert exact is None or math.isnan(exact), cell
                elif abs(in_row) == ROW_LIMIT + 1:
                    assert exact == math.copysign(math.inf, in_row), cell
                elif abs(in_row) == ROW_LIMIT:
                    assert exact is not None and abs(exact) >= ROW_LIMIT, cell
                else:
                    assert exact == pytest.approx(in_row, rel=1e-7, abs=1e-45), cell
                if exact is not None:
                    found.add(cell)
        nonfinite = database.execute(
            "SELECT rank, step, target_name, vpp_stage, micro_step, metric_name, statistic, value "
            "FROM trendprobe_nonfinite JOIN monitoring_targets USING (target_id) "
            "JOIN monitoring_metrics USING (metric_id)"
        ).fetchall()
    assert found == tiles.keys()
    assert {(*row[:7], str(float(row[7]))) for row in nonfinite} == {
        (*cell, str(value)) for cell, value in tiles.items() if not math.isfinite(value)
    }


def test_the_example_of_the_document_adds_up() -> None:
    example = re.search(
        r"Example: (\d) targets, (\d) ranks, (\d) steps.*?column (\d), rank\s+index (\d), step index (\d) "
        r"of plane (\d) is the number .*? = (\d+) in tile (\d)·2\^40",
        DOCUMENT,
        flags=re.S,
    )
    assert example is not None
    targets, ranks, _, column, rank, step, plane, number, tile = map(int, example.groups())
    assert (step * ranks + rank) * targets + column == number
    assert plane == tile
