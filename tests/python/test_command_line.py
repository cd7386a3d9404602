"""Every flag of the command, good and bad values, and what its exit code says."""

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import find_trendprobe
from trend_rows import assert_same, rows
from trend_tiles import tile_values

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory, fixture_tree: Callable[[str], Path]) -> Path:
    """A directory with a dump tree of 2 ranks × 3 training steps, and a monitor tree of 2 ranks × 4."""
    root = tmp_path_factory.mktemp("trees")
    (root / "dump").symlink_to(fixture_tree("pt_L0_ddp2") / "data")
    (root / "monitor").symlink_to(fixture_tree("mon_slim_2rank") / "data")
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, trees: Path, trendprobe: Command) -> Path:
    """The databases of everything in `trees`."""
    out = tmp_path_factory.mktemp("whole")
    trendprobe("merge", "--data", trees, "--db", out)
    return out


@pytest.fixture
def damaged(tmp_path: Path, trees: Path) -> Path:
    """As `trees`, but one dump.json is cut."""
    copy = tmp_path / "damaged"
    shutil.copytree(trees, copy)
    file = copy / "dump/step1/rank0/dump.json"
    file.write_bytes(file.read_bytes()[:-2000])
    return copy


KINDS = ("dump", "monitor")
NONFINITE = """
    SELECT n.step, rank, target_name, metric_name, statistic, value FROM trendprobe_nonfinite n
    JOIN monitoring_targets USING (target_id) JOIN monitoring_metrics USING (metric_id) ORDER BY 1, 2, 3, 4, 5
"""


def database(directory: Path, kind: str) -> Path:
    return directory / f"{kind}_data.trend.db"


# Help and version


@pytest.mark.parametrize("command", ["merge", "data2db", "info", "verify"])
def test_help_has_an_example(command: str, trendprobe: Command) -> None:
    text = trendprobe(command, "--help").stdout
    assert f"Example: trendprobe {command} " in text
    assert command in trendprobe("--help").stdout


def test_version_is_that_of_the_build(trendprobe: Command) -> None:
    declared = re.search(
        r"project\(trendprobe VERSION ([0-9.]+)", (Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    )
    assert declared is not None
    assert trendprobe("--version").stdout == f"trendprobe {declared[1]}\n"


# Bad arguments: exit code 2, a message that names the flag, nothing written

BAD_ARGUMENTS = [
    ([], "subcommand"),
    (["convert"], "convert"),
    (["merge"], "--data"),
    (["merge", "--data", "D"], "--db"),
    (["merge", "--db", "O"], "--data"),
    (["merge", "--data", "D", "--db", "O", "--format", "csv"], "--format"),
    (["data2db", "--data", "D", "--db", "O", "--format", "shard"], "--format"),
    (["merge", "--data", "D", "--db", "O", "--micro_step", "maybe"], "--micro_step"),
    (["merge", "--data", "D", "--db", "O", "--process_num", "0"], "--process_num"),
    (["merge", "--data", "D", "--db", "O", "--process_num", "129"], "--process_num"),
    (["merge", "--data", "D", "--db", "O", "--jobs", "-1"], "--process_num"),
    (["merge", "--data", "D", "--db", "O", "--jobs", "two"], "--process_num"),
    (["merge", "--data", "D", "--db", "O", "--layout", "columns"], "--layout"),
    (["merge", "--data", "D", "--db", "O", "--compat", "tensorboard"], "--compat"),
    (["merge", "--data", "D", "--db", "O", "--log-level", "loud"], "--log-level"),
    (["merge", "--data", "D", "--db", "O", "--frobnicate"], "--frobnicate"),
    *(
        (["merge", "--data", "D", "--db", "O", flag, value], flag)
        for flag in ("--steps", "--ranks")
        for value in ("", "a", "3-1", "1,", ",1", "1-2-3", "-5", "1.5", "0x3", "99999999999999999999", " 1")
    ),
    (["info"], "file"),
    (["verify"], "file"),
    (["merge", "--data", "D", "--db", "O", "--mapping", "missing.json"], "missing.json"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS, ids=[" ".join(a[-2:]) for a, _ in BAD_ARGUMENTS])
def test_bad_arguments_are_named(
    arguments: list[str], named: str, trees: Path, tmp_path: Path, trendprobe: Command
) -> None:
    places = {"D": str(trees), "O": str(tmp_path / "out")}
    result = trendprobe(*(places.get(argument, argument) for argument in arguments), code=2)
    assert named in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"a": 1}', '{"a": null}', '{"a": ["b"]}', '"a"', '{"": "x"}', "\xff"]
)
def test_bad_mapping_files_are_named(content: str, trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    file = tmp_path / "mapping.json"
    file.write_text(content, encoding="latin-1")
    result = trendprobe("merge", "--data", trees, "--db", tmp_path / "out", "--mapping", file, code=2)
    assert str(file) in result.stderr
    assert not (tmp_path / "out").exists()


# What the flags do


def test_mapping_replaces_parts_of_names_in_file_order(trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    file = tmp_path / "mapping.json"
    file.write_text('{"blocks": "layers", "layers.0": "first"}')
    trendprobe("merge", "--data", trees / "dump", "--db", tmp_path, "--mapping", file)
    with sqlite3.connect(database(tmp_path, "dump")) as merged:
        names = [name for (name,) in merged.execute("SELECT target_name FROM monitoring_targets")]
    assert not any("blocks" in name or "layers.0" in name for name in names)
    assert any("first" in name for name in names)
    assert any("layers.1" in name for name in names)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", ["1", "2", "128"])
def test_any_number_of_threads_writes_the_same_bytes(
    kind: str, number: str, trees: Path, whole: Path, tmp_path: Path, trendprobe: Command
) -> None:
    trendprobe("data2db", "--data", trees, "--db", tmp_path, "--process_num", number)
    assert database(tmp_path, kind).read_bytes() == database(whole, kind).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_format_reads_only_inputs_of_this_format(kind: str, trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path, "--format", kind)
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}_data.trend.db"}


def test_format_without_such_input_says_what_it_looked_for(trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    for name in ("shard", "trend"):
        result = trendprobe("merge", "--data", trees, "--db", tmp_path / "out", "--format", name, code=2)
        assert f"no {name} data found in {trees}" in result.stderr
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "has_rows", "has_tiles"), [("both", 1, 1), ("rows", 1, 0), ("tiles", 0, 1)])
def test_layout_decides_what_the_database_holds(
    kind: str,
    layout: str,
    has_rows: bool,
    has_tiles: bool,
    trees: Path,
    whole: Path,
    tmp_path: Path,
    trendprobe: Command,
) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path, "--layout", layout)
    merged = database(tmp_path, kind)
    assert tile_values(merged) == (tile_values(database(whole, kind)) if has_tiles else {})
    if has_rows:
        assert rows(merged) == rows(database(whole, kind))
    else:
        with sqlite3.connect(merged) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            assert "trend_data" not in tables or not connection.execute("SELECT 1 FROM trend_data").fetchone()


def test_quiet_prints_nothing_where_all_is_well(trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    result = trendprobe("merge", "--data", trees / "dump", "--db", tmp_path, "--quiet")
    assert (result.stdout, result.stderr) == ("", "")


def test_quiet_still_prints_losses(damaged: Path, tmp_path: Path, trendprobe: Command) -> None:
    result = trendprobe("merge", "--data", damaged, "--db", tmp_path, "--quiet", code=1)
    assert result.stdout == ""
    assert "step1/rank0/dump.json" in result.stderr


def test_progress_is_lines_where_there_is_no_terminal(trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    result = trendprobe("merge", "--data", trees, "--db", tmp_path)
    assert "\r" not in result.stderr and "\x1b" not in result.stderr
    quiet = trendprobe("merge", "--data", trees / "dump", "--db", tmp_path, "--no-progress")
    assert quiet.stderr == ""


@pytest.mark.parametrize("value", ["True", "TRUE", "true"])
def test_micro_step_takes_msprobes_spellings(
    value: str, trees: Path, whole: Path, tmp_path: Path, trendprobe: Command
) -> None:
    trendprobe("data2db", "--data", trees, "--db", tmp_path, "--micro_step", value)
    assert rows(database(tmp_path, "dump")) == rows(database(whole, "dump"))


# --steps and --ranks

SELECTIONS = [
    (["--steps", "1"], lambda training_step, rank: training_step == 1),
    (["--steps", "1-2"], lambda training_step, rank: training_step in (1, 2)),
    (["--steps", "0,2-"], lambda training_step, rank: training_step != 1),
    (["--ranks", "1"], lambda training_step, rank: rank == 1),
    (["--ranks", "0-1000", "--steps", "2"], lambda training_step, rank: training_step == 2),
    (["--ranks", "0", "--steps", "1"], lambda training_step, rank: training_step == 1 and rank == 0),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("flags", "selects"), SELECTIONS, ids=[" ".join(flags) for flags, _ in SELECTIONS])
def test_selected_steps_and_ranks_keep_their_numbers(
    kind: str,
    flags: list[str],
    selects: Callable[[int, int], bool],
    trees: Path,
    whole: Path,
    tmp_path: Path,
    trendprobe: Command,
) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path, *flags)
    with sqlite3.connect(database(whole, kind)) as merged:
        axis = dict(merged.execute("SELECT step, training_step FROM trendprobe_steps"))
    expected = {key: row for key, row in rows(database(whole, kind)).items() if selects(axis[key[1]], key[0])}
    assert expected
    assert rows(database(tmp_path, kind)) == expected
    tiles = {key: v for key, v in tile_values(database(whole, kind)).items() if selects(axis[key[1]], key[0])}
    assert tile_values(database(tmp_path, kind)) == tiles
    with sqlite3.connect(database(tmp_path, kind)) as merged:
        assert dict(merged.execute("SELECT step, training_step FROM trendprobe_steps")).items() <= axis.items()
    assert trendprobe("verify", database(tmp_path, kind)).stdout.endswith(": sound\n")


@pytest.mark.parametrize("flags", [["--steps", "1000-"], ["--ranks", "77"]])
def test_a_selection_of_nothing_leaves_an_earlier_database(
    flags: list[str], trees: Path, tmp_path: Path, trendprobe: Command
) -> None:
    trendprobe("merge", "--data", trees / "dump", "--db", tmp_path)
    before = database(tmp_path, "dump").read_bytes()
    result = trendprobe("merge", "--data", trees / "dump", "--db", tmp_path, *flags, code=2)
    assert "no record of these --steps and --ranks" in result.stderr
    assert database(tmp_path, "dump").read_bytes() == before


# --strict


def test_strict_writes_where_all_is_well(trees: Path, whole: Path, tmp_path: Path, trendprobe: Command) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path, "--strict")
    for kind in KINDS:
        assert database(tmp_path, kind).read_bytes() == database(whole, kind).read_bytes()


def test_strict_replaces_no_database_where_anything_is_lost(damaged: Path, tmp_path: Path, trendprobe: Command) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for kind in KINDS:
        database(out, kind).write_text("an earlier one")
    result = trendprobe("merge", "--data", damaged, "--db", out, "--strict", code=1)
    assert "step1/rank0/dump.json" in result.stderr
    assert "--strict" in result.stderr and "nothing was written" in result.stderr
    # The monitor tree was sound; it is one job's data all the same.
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        f"{kind}_data.trend.db": "an earlier one" for kind in KINDS
    }
    trendprobe("merge", "--data", damaged, "--db", out, code=1)
    assert rows(database(out, "dump"))


# Trend databases as input


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["both", "tiles", "rows"])
def test_a_trend_database_merges_to_itself(
    kind: str, layout: str, trees: Path, whole: Path, tmp_path: Path, trendprobe: Command
) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path / "first", "--layout", layout)
    trendprobe("merge", "--data", tmp_path / "first", "--format", "trend", "--db", tmp_path / "second")
    # The CSV's decimals are in the tiles as float32.
    assert_same(rows(database(tmp_path / "second", kind)), rows(database(whole, kind)), accuracy=1e-7)
    if layout != "rows":  # which are cut
        assert tile_values(database(tmp_path / "second", kind)) == tile_values(database(whole, kind))
    orders = []
    for directory in (whole, tmp_path / "second"):
        with sqlite3.connect(database(directory, kind)) as merged:
            orders.append(
                merged.execute(
                    "SELECT target_name, vpp_stage, micro_step FROM monitoring_targets "
                    "JOIN trendprobe_target_order USING (target_id) ORDER BY position"
                ).fetchall()
            )
            found = merged.execute(NONFINITE).fetchall()
            orders.append(found)
    assert sorted(orders[0]) == sorted(orders[2])
    assert orders[1] == orders[3]


@pytest.mark.parametrize("name", ["pt_L0_naninf", "mon_full_1rank"])
@pytest.mark.parametrize("layout", ["both", "tiles", "rows"])
def test_infinities_and_nan_survive_a_trend_database(
    name: str, layout: str, fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Command
) -> None:
    kind = "monitor" if name.startswith("mon") else "dump"
    trendprobe("merge", "--data", fixture_tree(name) / "data", "--db", tmp_path / "first", "--layout", layout)
    trendprobe("merge", "--data", database(tmp_path / "first", kind), "--db", tmp_path / "second")
    found = []
    for directory in ("first", "second"):
        with sqlite3.connect(database(tmp_path / directory, kind)) as merged:
            found.append(merged.execute(NONFINITE).fetchall())
    assert found[0] == found[1]
    assert found[0] or name != "pt_L0_naninf"


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_job_join_to_the_whole(
    kind: str, trees: Path, whole: Path, tmp_path: Path, trendprobe: Command
) -> None:
    parts = [("0", "0"), ("0", "1-"), ("1", "0-1"), ("1", "2-")]
    for i, (rank, steps) in enumerate(parts):
        trendprobe("merge", "--data", trees, "--db", tmp_path / str(i), "--ranks", rank, "--steps", steps)
    data = [argument for i in range(4) for argument in ("--data", database(tmp_path / str(i), kind))]
    trendprobe("merge", *data, "--db", tmp_path / "joined")
    assert_same(rows(database(tmp_path / "joined", kind)), rows(database(whole, kind)), accuracy=1e-7)
    assert tile_values(database(tmp_path / "joined", kind)) == tile_values(database(whole, kind))


def test_a_trend_database_is_read_only_where_it_is_asked_for(
    trees: Path, whole: Path, tmp_path: Path, trendprobe: Command
) -> None:
    result = trendprobe("merge", "--data", whole, "--db", tmp_path / "out", code=2)
    assert "--format trend" in result.stderr
    (tmp_path / "job").mkdir()
    (tmp_path / "job/dump").symlink_to(trees / "dump")
    for _ in range(2):  # the second time the first result lies beside the input
        trendprobe("merge", "--data", tmp_path / "job", "--db", tmp_path / "job")
        assert rows(database(tmp_path / "job", "dump")) == rows(database(whole, "dump"))


@pytest.mark.parametrize("name", ["pt_L0_ddp2", "mon_slim_2rank"])
def test_a_database_of_msprobe_is_read(
    name: str, fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Command
) -> None:
    kind = "monitor" if name.startswith("mon") else "dump"
    theirs = database(fixture_tree(name) / "ref_db", kind)
    result = trendprobe("merge", "--data", theirs, "--db", tmp_path)
    assert "was written by msProbe" in result.stderr
    assert rows(database(tmp_path, kind)) == rows(theirs)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\0" * 500])
def test_what_is_no_trend_database_is_named(content: bytes, whole: Path, tmp_path: Path, trendprobe: Command) -> None:
    shutil.copytree(whole, tmp_path / "in")
    (tmp_path / "in/other.trend.db").write_bytes(content)
    result = trendprobe("merge", "--data", tmp_path / "in", "--format", "trend", "--db", tmp_path / "out", code=1)
    assert "other.trend.db" in result.stderr
    assert rows(database(tmp_path / "out", "dump")) == rows(database(whole, "dump"))


def test_a_trend_database_of_a_newer_version_is_named(whole: Path, tmp_path: Path, trendprobe: Command) -> None:
    newer = tmp_path / "newer.trend.db"
    shutil.copy(database(whole, "dump"), newer)
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=99")
    for arguments in (["merge", "--data", newer, "--db", tmp_path / "out"], ["info", newer]):
        assert "version 99" in trendprobe(*arguments, code=2).stderr
    assert "version 99" in trendprobe("verify", newer, code=1).stdout


# verify


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["both", "tiles", "rows"])
def test_verify_finds_a_merged_database_sound(
    kind: str, layout: str, trees: Path, tmp_path: Path, trendprobe: Command
) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path, "--layout", layout)
    result = trendprobe("verify", database(tmp_path, kind))
    assert result.stdout.endswith(": sound\n")


@pytest.mark.parametrize("name", ["pt_L0_ddp2", "mon_slim_2rank"])
def test_verify_takes_a_database_of_msprobe(
    name: str, fixture_tree: Callable[[str], Path], trendprobe: Command
) -> None:
    kind = "monitor" if name.startswith("mon") else "dump"
    assert "of msProbe" in trendprobe("verify", database(fixture_tree(name) / "ref_db", kind)).stdout


DAMAGES = {
    "trend_data: no such target": "DELETE FROM monitoring_targets WHERE target_id = 3",
    "trend_data: no such rank": "DELETE FROM trendprobe_ranks WHERE rank = 1",
    "trend_data: no such rank or step": "DELETE FROM trendprobe_steps WHERE step = 2",
    "trendprobe_steps: a training step and micro-step": "UPDATE trendprobe_steps SET micro_step = 0",
    "trendprobe_steps: the order": "UPDATE trendprobe_steps SET training_step = 9 - training_step",
    "trendprobe_target_order": "UPDATE trendprobe_target_order SET position = 7 WHERE target_id = 2",
    "trendprobe_metric_targets": "DELETE FROM trendprobe_metric_targets WHERE column_index = 1 AND metric_id = 1",
    "trendprobe_planes": "UPDATE trendprobe_planes SET metric_id = 77 WHERE plane_id = 1",
    "trendprobe_tiles": "UPDATE trendprobe_tiles SET data = substr(data, 2)",
    "trendprobe_tiles: no such plane": "UPDATE trendprobe_tiles SET tile_id = tile_id + (200 << 40)",
    "monitoring_tags": "UPDATE monitoring_tags SET metric_id = 99 WHERE tag_id = 1",
    "tag_target_mapping": "DELETE FROM monitoring_tags WHERE tag_id = 2",
    "a tag that no target has": "DELETE FROM tag_target_mapping WHERE tag_id = 2",
    "global_stats": "DELETE FROM global_stats",
    "global_stats: max_rank": "UPDATE global_stats SET max_rank = 0",
    "trendprobe_info": "DELETE FROM trendprobe_info WHERE key = 'tile_ranks'",
    "though trendprobe_info says": "DELETE FROM trend_data WHERE step = 3 AND target_id = 4",
    "though trendprobe_nonfinite lists": "INSERT INTO trendprobe_nonfinite VALUES (0, 0, 1, 1, 'max', 'NaN')",
    "none of NaN, +inf, -inf": "INSERT INTO trendprobe_nonfinite VALUES (0, 0, 1, 1, 'max', 'inf')",
    "metric_id": "ALTER TABLE trend_data RENAME COLUMN metric_id TO metric",
}


@pytest.mark.parametrize(
    ("layout", "named", "damage"),
    [
        (layout, named, damage)
        for layout in ("both", "rows")
        for named, damage in DAMAGES.items()
        if layout == "both" or not re.search("tiles|planes|lists", named)  # which are not there
    ],
)
def test_verify_names_what_is_wrong(
    layout: str, named: str, damage: str, trees: Path, tmp_path: Path, trendprobe: Command
) -> None:
    trendprobe("merge", "--data", trees / "dump", "--db", tmp_path, "--layout", layout)
    path = database(tmp_path, "dump")
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    result = trendprobe("verify", path, code=1)
    assert f"{path}: problem: " in result.stdout
    assert named in result.stdout


def test_verify_finds_damaged_pages(whole: Path, tmp_path: Path, trendprobe: Command) -> None:
    content = bytearray(database(whole, "dump").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40_000] = os.urandom(40_000)
    path = tmp_path / "damaged.trend.db"
    path.write_bytes(content)
    assert "problem" in trendprobe("verify", path, code=1).stdout


@pytest.mark.parametrize("command", ["info", "verify"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"SQLite format 3\0"])
def test_what_is_none_of_our_files_is_named(
    command: str, content: bytes | None, tmp_path: Path, trendprobe: Command
) -> None:
    path = tmp_path / "some.db"
    if content is not None:
        path.write_bytes(content)
    result = trendprobe(command, path, code=None)
    assert result.returncode in (1, 2)
    assert str(path) in result.stderr + result.stdout
    assert "sound" not in result.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_info_says_what_a_database_holds(kind: str, whole: Path, trendprobe: Command) -> None:
    text = trendprobe("info", database(whole, kind)).stdout
    steps, micro_batches = {"dump": (3, 2), "monitor": (4, 2)}[kind]
    assert f"steps       {steps * micro_batches} of {steps} training steps" in text
    assert "ranks       2" in text


def test_interrupted_merge_leaves_the_old_database(trees: Path, tmp_path: Path, trendprobe: Command) -> None:
    trendprobe("merge", "--data", trees, "--db", tmp_path)
    before = database(tmp_path, "dump").read_bytes()
    process = subprocess.Popen([find_trendprobe(), "merge", "--data", trees, "--db", tmp_path, "-q"])
    process.kill()
    process.wait()
    assert database(tmp_path, "dump").read_bytes() == before
    trendprobe("merge", "--data", trees, "--db", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump_data.trend.db", "monitor_data.trend.db"]
