"""`trendprobe merge` on damaged input: what is good is in the database, and what is not is named, with its place.

Exit codes: 0 all was read, 1 something was skipped or repaired, 2 nothing was written.
"""

import copy
import csv
import json
import os
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Rows = Counter[tuple[Any, ...]]

STEPS = 4  # of pt_L0_proc


class Merged:
    """What one call of the command did."""

    def __init__(self, database: Path, message: str) -> None:
        self.database = database
        self.message = message

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def rows(self) -> Rows:
        """Every record, by names and training step, with its statistics."""
        statistics = [name for _, name, *_ in self.query("PRAGMA table_info(trend_data)")][4:]
        return Counter(
            self.query(
                "SELECT rank, training_step, s.micro_step, metric_name, target_name, vpp_stage, t.micro_step, "
                f"{', '.join(statistics)} FROM trend_data JOIN monitoring_targets t USING (target_id) "
                "JOIN monitoring_metrics USING (metric_id) JOIN trendprobe_steps s USING (step)"
            )
        )

    def losses(self) -> list[tuple[str, str, str, str]]:
        """Path, location, what is wrong and what was kept, of what was skipped or repaired."""
        return self.query(
            "SELECT path, location, what, kept FROM trendprobe_issues WHERE severity <> 'notice' ORDER BY issue_id"
        )


@pytest.fixture
def merge(tmp_path: Path, trendprobe: Callable[..., Any]) -> Callable[..., Merged]:
    def run(data: Path, code: int, *arguments: str) -> Merged:
        kind = "monitor" if data.name.startswith("mon_") else "dump"
        database = tmp_path / "db" / f"{kind}_data.trend.db"
        database.unlink(missing_ok=True)
        result = trendprobe("merge", "--data", data, "--db", database.parent, "--no-progress", *arguments, code=code)
        merged = Merged(database, result.stderr)
        assert database.exists() == (code != 2), result.stderr
        if code != 2:
            assert merged.query("PRAGMA quick_check") == [("ok",)]
            assert bool(merged.losses()) == (code == 1), result.stderr
        # Whoever reads the message finds what is wrong, where, what was kept and what to do.
        for path, location, what, kept in merged.losses() if code == 1 else []:
            assert kept and f"{path}{location and ', '}{location}: {what}; kept: {kept}" in result.stderr
        assert ("copy or collect these files again" in result.stderr) or code != 1
        return merged

    return run


@pytest.fixture
def tree(tmp_path: Path, fixture_tree: Callable[[str], Path]) -> Callable[[str], Path]:
    """A copy of a tree of msProbe, to be damaged."""

    def make(name: str) -> Path:
        target = tmp_path / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(fixture_tree(name) / "data", target)
        return target

    return make


@pytest.fixture
def dump(tree: Callable[[str], Path]) -> Path:
    """Four steps of one process."""
    return tree("pt_L0_proc")


def process_directory(data: Path, step: int) -> Path:
    (directory,) = (data / f"step{step}").iterdir()
    return directory


def rows_without_step(rows: Rows, step: int) -> Rows:
    return Counter({row: count for row, count in rows.items() if row[1] != step})


def only_step(data: Path, step: int) -> None:
    for other in range(STEPS):
        if other != step:
            shutil.rmtree(data / f"step{other}")


def entries_with_ends(text: str) -> Iterator[tuple[str, Any, int]]:
    """Name, value and end of each entry of "data", read with Python's own decoder."""
    decoder = json.JSONDecoder()
    at = text.index('"data"')
    at = text.index("{", at) + 1
    while True:
        while text[at] in " \n,":
            at += 1
        if text[at] == "}":
            return
        name, at = decoder.raw_decode(text, at)
        at = text.index(":", at) + 1
        while text[at] in " \n":
            at += 1
        value, at = decoder.raw_decode(text, at)
        yield name, value, at


def tensors_in(value: Any) -> int:
    if isinstance(value, dict):
        if value.get("type") == "torch.Tensor":
            return 1
        return sum(map(tensors_in, value.values()))
    return sum(map(tensors_in, value)) if isinstance(value, list) else 0


# dump.json


def test_cut_dump_keeps_every_complete_entry(dump: Path, merge: Callable[..., Merged]) -> None:
    only_step(dump, 1)
    whole = merge(dump, 0, "-j1").rows()
    file = process_directory(dump, 1) / "dump.json"
    text = file.read_text()
    assert text.isascii()
    entries = list(entries_with_ends(text))
    assert sum(tensors_in(value) for _, value, _ in entries) == whole.total()
    for size in range(1024, len(text), 1024):
        file.write_text(text[:size])
        complete = [value for _, value, end in entries if end <= size]
        records = sum(map(tensors_in, complete))
        merged = merge(dump, 1 if records else 2, "-j1", "--layout", "rows")
        assert f"dump.json, byte {size}: the text ends in the middle" in merged.message
        assert f"kept: the first {len(complete)} entries, which are complete" in merged.message
        if records:
            found = merged.rows()
            assert found.total() == records
            assert found <= whole


NO_DUMPS = {
    "empty": (b"", "is empty (0 bytes)"),
    "text": (b"killed\n", "byte 0: '{' was expected"),
    "page": (b"<html>404</html>", "byte 0: '{' was expected"),
    "binary": (bytes(range(256)) * 40, "holds NUL bytes"),
    "zeros": (bytes(4096), "holds NUL bytes"),
    "list": (b"[]", "byte 0: '{' was expected"),
    "null": (b"null", "byte 0: '{' was expected"),
    "no data": (b'{"task": "statistics"}', 'has no "data": it is no dump of msProbe'),
    "data is a list": (b'{"task": "statistics", "data": [1]}', 'byte 31: "data" is no object'),
    "brace": (b"{", "byte 1: the text ends in the middle"),
    "pickle": (b"\x80\x04\x95", "holds bytes that are no UTF-8"),
    "deep": (b'{"x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper than 200"),
}


@pytest.mark.parametrize("case", NO_DUMPS)
def test_what_is_no_dump_costs_its_step_only(case: str, dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    content, message = NO_DUMPS[case]
    file = process_directory(dump, 2) / "dump.json"
    file.write_bytes(content)
    merged = merge(dump, 1)
    assert merged.rows() == rows_without_step(whole, 2)
    assert str(file) in merged.message
    assert message in merged.message
    only_step(dump, 2)
    assert "nothing was written" in merge(dump, 2).message


def test_nothing_to_read_leaves_the_old_database(dump: Path, tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    database = tmp_path / "db" / "dump_data.trend.db"
    trendprobe("merge", "--data", dump, "--db", database.parent)
    before = database.read_bytes()
    for step in range(STEPS):
        (process_directory(dump, step) / "dump.json").write_text("")
    trendprobe("merge", "--data", dump, "--db", database.parent, code=2)
    trendprobe("merge", "--data", tmp_path / "absent", "--db", database.parent, code=2)
    assert database.read_bytes() == before
    assert os.listdir(database.parent) == [database.name]


def test_missing_dump_is_named(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    (process_directory(dump, 0) / "dump.json").unlink()
    merged = merge(dump, 1)
    assert [(path, what) for path, _, what, _ in merged.losses()] == [
        (str(process_directory(dump, 0)), "has no dump.json")
    ]
    assert merged.rows() == rows_without_step(whole, 0)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("torch.Tensor"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from paths_in(member, (*path, key))


def test_a_wrong_value_anywhere_costs_its_entry_only(dump: Path, merge: Callable[..., Merged]) -> None:
    only_step(dump, 1)
    file = process_directory(dump, 1) / "dump.json"
    document = json.loads(file.read_text())
    names = list(document["data"])
    # A part of the entries, so that a document is small.
    document["data"] = {name: document["data"][name] for name in names[:: len(names) // 12]}
    paths = list(paths_in(document["data"]))

    def rows_of(data: Any, codes: tuple[int, ...]) -> tuple[int, Merged]:
        file.write_text(json.dumps({**document, "data": data}, indent=1))
        for code in codes[:-1]:
            try:
                return code, merge(dump, code, "-j1")
            except AssertionError as error:
                if "exit code" not in str(error):
                    raise
        return codes[-1], merge(dump, codes[-1], "-j1")

    alone = {name: rows_of({name: value}, (0, 2)) for name, value in document["data"].items()}
    rows = {name: merged.rows() if code == 0 else Counter() for name, (code, merged) in alone.items() if code == 2}
    for name, value in document["data"].items():
        if name not in rows:
            rows[name] = rows_of({name: value}, (0,))[1].rows()
    whole = rows_of(document["data"], (0,))[1].rows()
    assert whole == sum(rows.values(), Counter())

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.sampled_from(paths), JSON_VALUES)
    def check(path: tuple[Any, ...], wrong: Any) -> None:
        data = copy.deepcopy(document["data"])
        parent: Any = data
        for key in path[:-1]:
            parent = parent[key]
        was = parent[path[-1]]
        parent[path[-1]] = wrong
        code, merged = rows_of(data, (0, 1))
        others = whole - rows[path[0]]
        assert merged.rows() >= others
        if code == 1:
            assert {loss[0] for loss in merged.losses()} == {str(file)}
        elif len(path) == 1 or (isinstance(was, dict) and was.get("type") == "torch.Tensor"):
            # A record that is gone without a word: it must have been replaced by something that is no mistake.
            assert wrong is None or isinstance(wrong, (list, dict)), (path, wrong)

    check()


def test_faults_of_one_kind_are_reported_together(dump: Path, merge: Callable[..., Merged]) -> None:
    file = process_directory(dump, 1) / "dump.json"
    document = json.loads(file.read_text())
    names = list(document["data"])
    for name in names[:10]:
        document["data"][name] = 5
    document["data"]["no such thing"] = {"input_args": [{"type": "torch.Tensor", "Norm": 1.0}]}
    tensor = document["data"][names[20]]["output"][0]
    assert tensor["type"] == "torch.Tensor"
    tensor["Norm"] = {"x": 1}
    tensor["Max"] = "many"
    document["data"][names[21]]["output"] = 7
    document["data"][names[22]]["output"][0]["type"] = 5
    text = json.dumps(document, indent=1)
    file.write_text(text)
    merged = merge(dump, 1)
    found = {what: (int(location.removeprefix("byte ")), kept) for _, location, what, kept in merged.losses()}
    assert set(found) == {
        f'"{names[0]}" is no entry: its value is no object (the first of 10 such)',
        '"no such thing" is no name of dump data (no .forward, .backward or .parameters_grad)',
        f'"{names[20]}" holds a statistic that is no number (the first of 2 such)',
        f'"{names[21]}" holds a bare value where a tensor or a list of values belongs',
        f'"{names[22]}" holds statistics without the type of what they are of',
    }
    for what, (byte, kept) in found.items():
        assert kept
        if "bare value" in what:
            assert text[byte] == "7"
        if "is no entry" in what:
            assert text[byte] == "5"


def test_bytes_that_are_no_text_are_replaced(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    file = process_directory(dump, 1) / "dump.json"
    content = file.read_bytes()
    at = content.index(b"embed")
    for bad, what in ((b"\xff", "holds bytes that are no UTF-8"), (b"\0", "holds NUL bytes")):
        file.write_bytes(content[:at] + bad + content[at + 1 :])
        merged = merge(dump, 1)
        ((path, location, found, _),) = merged.losses()
        assert (path, location) == (str(file), f"byte {at}")
        assert found.startswith(what)
        assert merged.rows().total() == whole.total()
        assert merged.query("SELECT count(*) FROM monitoring_targets WHERE target_name LIKE '%?mbed%'") != [(0,)]
    # The tail of a file that was never written to the disk.
    file.write_bytes(content + bytes(4096))
    merged = merge(dump, 1)
    assert merged.rows() == whole
    assert {location for _, location, _, _ in merged.losses()} == {f"byte {len(content)}"}


# construct.json


def test_missing_construct_is_a_notice(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0, "--micro_step", "false").rows()
    directory = process_directory(dump, 1)
    (directory / "construct.json").unlink()
    merged = merge(dump, 0)
    assert f"{directory}: has no construct.json" in merged.message
    assert merged.rows().total() == whole.total()


def test_cut_construct_keeps_every_record(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    file = process_directory(dump, 1) / "construct.json"
    text = file.read_text()
    for size in (0, 1, 100, 1024, len(text) // 2, len(text) - 2):
        file.write_text(text[:size])
        merged = merge(dump, 1)
        ((path, location, what, kept),) = merged.losses()
        assert path == str(file)
        assert (location, what) == (
            (f"byte {size}", "the text ends in the middle") if size else ("", "is empty (0 bytes)")
        )
        nodes = text[:size].count('": ') - text[:size].endswith('": ')
        assert not size or abs(int(kept.split()[2]) - nodes) <= 1
        assert merged.rows().total() == whole.total()
        assert rows_without_step(merged.rows(), 1) == rows_without_step(whole, 1)


CONSTRUCTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "its own parent": lambda nodes: {**nodes, list(nodes)[3]: list(nodes)[3]},
    "circle of two": lambda nodes: {**nodes, list(nodes)[3]: list(nodes)[4], list(nodes)[4]: list(nodes)[3]},
    "one circle of all": lambda nodes: dict(zip(nodes, [*list(nodes)[1:], *list(nodes)[:1]])),
}


@pytest.mark.parametrize("case", CONSTRUCTS)
def test_a_circle_of_parents_is_named(case: str, dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    file = process_directory(dump, 1) / "construct.json"
    file.write_text(json.dumps(CONSTRUCTS[case](json.loads(file.read_text()))))
    merged = merge(dump, 1)
    ((path, _, what, kept),) = merged.losses()
    assert path == str(file)
    assert what.endswith("is among its own ancestors")
    assert kept.startswith("all nodes")
    assert merged.rows().total() == whole.total()
    assert rows_without_step(merged.rows(), 1) == rows_without_step(whole, 1)


def test_parents_that_are_no_names(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    file = process_directory(dump, 1) / "construct.json"
    nodes = json.loads(file.read_text())
    wrong = [5, True, {}, [], [5, 1], [None, "x"], [None, -1], [None, 1.5], [None, 10**12], [None, 1, 2]]
    names = list(nodes)
    for name, value in zip(names[5:], wrong):
        nodes[name] = value
    nodes["megatron_micro_step_number"] = {"x": []}
    file.write_text(json.dumps(nodes))
    merged = merge(dump, 1)
    ((path, location, what, kept),) = merged.losses()
    # An empty list says nothing of a parent: that is a root.
    assert (path, what) == (str(file), f'"{names[5]}" has a parent that is no name (the first of 9 such)')
    assert location.startswith("byte ") and kept == "the other nodes"
    assert merged.rows().total() == whole.total()
    for document in ("[]", "5", '"x"', "null"):
        file.write_text(document)
        merged = merge(dump, 1)
        assert merged.losses()[0][:3] == (str(file), "byte 0", "'{' was expected")
        assert merged.rows().total() == whole.total()


# directories


def test_directories_of_other_names_are_left_out_by_name(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    for name in ("step1x", "step", "step-1", "step99999999999999999999"):
        shutil.copytree(dump / "step1", dump / name)
    for name in ("rank0x", "rank", "rank99999999999", "proc", "procx"):
        shutil.copytree(process_directory(dump, 1), dump / "step2" / name)
    merged = merge(dump, 1)
    assert merged.rows() == whole
    assert [(Path(path).name, what) for path, _, what, _ in merged.losses()] == [
        ("step", 'its name is not "step" and a number'),
        ("step-1", 'its name is not "step" and a number'),
        ("step1x", 'its name is not "step" and a number'),
        ("proc", 'its name is not "rank" or "proc" and a number'),
        ("procx", 'its name is not "rank" or "proc" and a number'),
        ("rank", 'its name is not "rank" or "proc" and a number'),
        ("rank0x", 'its name is not "rank" or "proc" and a number'),
        ("rank99999999999", 'its name is not "rank" or "proc" and a number'),
        ("step99999999999999999999", 'its name is not "step" and a number'),
    ]


def test_rank_and_process_directories_are_different_ranks(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    for step in range(STEPS):
        shutil.copytree(process_directory(dump, step), dump / f"step{step}" / "rank0")
    merged = merge(dump, 0)
    assert merged.query("SELECT rank FROM trendprobe_ranks ORDER BY rank") == [(0,), (1,)]
    for rank in (0, 1):
        assert Counter({row: n for row, n in merged.rows().items() if row[0] == rank}) == Counter(
            {(rank, *row[1:]): n for row, n in whole.items()}
        )
    assert "had no rank: it is shown as rank 1" in merged.message


def test_a_process_that_got_its_rank_late_is_one_rank(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    process_directory(dump, 0).rename(dump / "step0" / "rank0")
    merged = merge(dump, 0)
    assert merged.rows() == whole
    assert merged.query("SELECT rank FROM trendprobe_ranks") == [(0,)]


def test_what_is_no_directory_or_file_is_named(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    expected = []
    shutil.rmtree(dump / "step0")
    (dump / "step0").write_text("a file")
    expected.append((dump / "step0", "is no directory, nor a link that leads to one"))
    (dump / "step7").symlink_to("nowhere")
    expected.append((dump / "step7", "is no directory, nor a link that leads to one"))
    (dump / "step2" / "rank5").write_text("a file")
    expected.append((dump / "step2" / "rank5", "is no directory, nor a link that leads to one"))
    (dump / "step2" / "rank6").symlink_to("rank6")
    expected.append((dump / "step2" / "rank6", "is no directory, nor a link that leads to one"))
    directory = process_directory(dump, 1)
    (directory / "dump.json").unlink()
    (directory / "dump.json").mkdir()
    expected.append((directory / "dump.json", "can't be read: Is a directory"))
    directory = process_directory(dump, 3)
    (directory / "construct.json").unlink()
    (directory / "construct.json").mkdir()
    expected.append((directory / "construct.json", "can't be read: Is a directory"))
    for name, target in (("rank7", "nowhere"), ("rank8", "dump.json")):
        (dump / "step3" / name).mkdir()
        (dump / "step3" / name / "dump.json").symlink_to(target)
        expected.append((dump / "step3" / name, "has no dump.json"))
    os.mkfifo(dump / "step3" / "rank8" / "construct.json")
    merged = merge(dump, 1)
    assert Counter((Path(path), what) for path, _, what, _ in merged.losses()) == Counter(expected)
    assert merged.rows().total() == sum(n for row, n in whole.items() if row[1] in (2, 3))


def test_a_pipe_is_no_file(dump: Path, merge: Callable[..., Merged]) -> None:
    file = process_directory(dump, 1) / "dump.json"
    file.unlink()
    os.mkfifo(file)
    ((path, _, what, _),) = merge(dump, 1).losses()
    assert (path, what) == (str(file), "can't be read: Invalid argument")


def test_links_and_loops_are_read_once(dump: Path, merge: Callable[..., Merged], tmp_path: Path) -> None:
    whole = merge(dump, 0).rows()
    around = tmp_path / "around"
    (around / "deep" / "er").mkdir(parents=True)
    dump.rename(around / "deep" / "run")
    (around / "again").symlink_to("deep")
    (around / "deep" / "er" / "up").symlink_to("..")
    (around / "deep" / "run" / "loop").symlink_to("../..")
    (around / "deep" / "run" / "step0" / "self").symlink_to(".")
    (around / "one").symlink_to("two")
    (around / "two").symlink_to("one")
    merged = merge(around, 0)
    assert merged.rows() == whole
    # Links that lead to the data itself are data.
    moved = tmp_path / "elsewhere"
    process_directory(around / "deep" / "run", 2).rename(moved)
    (around / "deep" / "run" / "step2" / "rank0").symlink_to(moved)
    assert merge(around, 0).rows() == whole


def test_directories_too_deep_are_named(dump: Path, merge: Callable[..., Merged], tmp_path: Path) -> None:
    deep = tmp_path / "around" / "/".join(["d"] * 40)
    deep.mkdir(parents=True)
    shutil.copytree(dump, tmp_path / "around" / "run")
    dump.rename(deep / "run")
    ((path, _, what, _),) = merge(tmp_path / "around", 1).losses()
    assert path == str(tmp_path / "around" / "/".join(["d"] * 33))
    assert what.startswith("lies more than 32 directories below --data")


NAMES = {
    "quotes": """it's "quoted" `so`""",
    "statement": "x'); DROP TABLE trend_data; --",
    "blanks": "  two  words\t\n ",
    "Chinese": "模块.层 一",
    "emoji": "\U0001f600",
    "percent": "%s %d %n {} {0}",
    "slashes": "../../etc/passwd",
    "backslash": "\\u0041\\",
    "control": "\x01\x1b[31m",
    "very long": "n" * 4000,
}


@pytest.mark.parametrize("case", NAMES)
def test_names_may_be_any_text(case: str, dump: Path, merge: Callable[..., Merged], tmp_path: Path) -> None:
    name = NAMES[case]
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 1.0}
    for ascii_only in (True, False):
        for step in range(STEPS):
            directory = process_directory(dump, step)
            entry = {"input_args": [tensor], "input_kwargs": {name: tensor}, "output": [], "parameters": {name: tensor}}
            data = {f"Module.{name}.Block.forward.0": entry}
            (directory / "dump.json").write_text(
                json.dumps({"level": "L0", "data": data}, ensure_ascii=ascii_only), encoding="utf-8"
            )
            (directory / "construct.json").write_text(
                json.dumps({f"Module.{name}.Block.forward.0": None}, ensure_ascii=ascii_only), encoding="utf-8"
            )
        merged = merge(dump, 0)
        assert sorted(merged.query("SELECT target_name FROM monitoring_targets")) == sorted(
            [
                (f"Module.{name}.Block.input.0",),
                (f"Module.{name}.Block.input.{name}",),
                (f"Module.{name}.Block.parameters.{name}",),
            ]
        )
        assert merged.query("SELECT count(*) FROM trend_data") == [(3 * STEPS,)]
    if "/" not in name and len(name.encode()) < 255:
        (tmp_path / "around").mkdir()
        moved = dump.rename(tmp_path / "around" / name)
        (process_directory(moved, 1) / "dump.json").write_text("")
        merged = merge(moved.parent, 1)
        assert [Path(path) for path, *_ in merged.losses()] == [process_directory(moved, 1) / "dump.json"]


def test_a_path_of_4000_bytes_is_a_path(dump: Path, merge: Callable[..., Merged], tmp_path: Path) -> None:
    whole = merge(dump, 0).rows()
    parent = tmp_path / "around"
    while len(str(parent)) < 3700:
        parent = parent / ("d" * 200)
    parent.mkdir(parents=True)
    moved = dump.rename(parent / "run")
    merged = merge(moved, 0)
    assert merged.rows() == whole


def test_steps_may_be_huge(dump: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(dump, 0).rows()
    huge = [10**12 + step for step in range(STEPS)]
    for step in range(STEPS):
        (dump / f"step{step}").rename(dump / f"step{huge[step]}")
    for micro_step in ("true", "false"):
        merged = merge(dump, 0, "--micro_step", micro_step)
        assert merged.rows().total() == whole.total()
        assert [step for (step,) in merged.query("SELECT DISTINCT training_step FROM trendprobe_steps")] == huge
    assert merged.query("SELECT min_step, max_step FROM global_stats") == [(huge[0], huge[-1])]


# monitor CSV

CSV_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str, int, int]] = {
    # name: (damage, message, first line or 0, rows lost of this file: -1 = all)
    "empty": (lambda text: b"", "is empty (0 bytes)", 0, -1),
    "zeros": (lambda text: bytes(4096), "has a header without the column name", 0, -1),
    "header only": (lambda text: text.split(b"\n")[0] + b"\n", "", 0, -1),
    "no name": (lambda text: text.replace(b",name,", b",label,", 1), "has a header without the column name", 0, -1),
    "no step": (lambda text: text.replace(b",step,", b",time,", 1), "has a header without the column step", 0, -1),
    "no statistic": (
        lambda text: text.replace(b"norm,min,max,mean", b"a,b,c,d", 1),
        "has a header without the column of a statistic",
        0,
        -1,
    ),
    "unclosed quote in header": (lambda text: b'"' + text, "has a header with a quote that is not closed", 0, -1),
    "cut": (lambda text: text[:-40], "is cut", -1, 1),
    "cut in the dtype": (lambda text: text[:-8], "ends without a line break", -1, 0),
    "unclosed quote": (lambda text: replace_line(text, 5, b'0,"a,0,0,1,1,1,1'), "has a quote that is not closed", 5, 1),
    "short row": (lambda text: replace_line(text, 7, b"0,a"), "has fewer fields than the header", 7, 1),
    "long row": (lambda text: replace_line(text, 7, b"0" * 9 + b"," * 99), "has more fields than the header", 7, 1),
    "no step number": (lambda text: replace_cell(text, 4, 2, b"soon"), "has a step that is no number", 4, 1),
    "nan step": (lambda text: replace_cell(text, 4, 2, b"nan"), "has a step that is no number", 4, 1),
    "negative step": (lambda text: replace_cell(text, 4, 2, b"-3"), "has a negative step", 4, 1),
    "endless step": (lambda text: replace_cell(text, 4, 2, b"1e30"), "has a step that is no number", 4, 1),
    "no stage": (lambda text: replace_cell(text, 4, 0, b"x"), "has a vpp_stage that is no number", 4, 1),
    "no number": (lambda text: replace_cell(text, 4, 4, b"much"), 'has a value that is no number: "much"', 4, 0),
    "no UTF-8": (lambda text: replace_cell(text, 4, 1, b"\xff\xfe"), "has a name that is no UTF-8", 4, 0),
    "NUL bytes": (lambda text: replace_line(text, 9, bytes(700)), "holds NUL bytes", 9, 1),
    "binary": (lambda text: bytes(range(256)) * 20, "has a header", 0, -1),
}


def replace_line(text: bytes, number: int, line: bytes) -> bytes:
    lines = text.split(b"\n")
    lines[number - 1] = line
    return b"\n".join(lines)


def replace_cell(text: bytes, number: int, column: int, cell: bytes) -> bytes:
    cells = text.split(b"\n")[number - 1].split(b",")
    cells[column] = cell
    return replace_line(text, number, b",".join(cells))


@pytest.fixture
def monitor(tree: Callable[[str], Path]) -> Path:
    return tree("mon_slim_1rank")


def monitor_file(data: Path, name: str) -> Path:
    (found,) = data.glob(f"*/{name}")
    return found


@pytest.mark.parametrize("case", CSV_FAULTS)
def test_a_csv_fault_costs_its_rows_only(case: str, monitor: Path, merge: Callable[..., Merged]) -> None:
    damage, message, line, lost = CSV_FAULTS[case]
    whole = merge(monitor, 0).rows()
    file = monitor_file(monitor, "actv_0-1.csv")
    text = file.read_bytes()
    of_file = Counter({row: n for row, n in whole.items() if row[3] == "actv" and row[1] <= 1})
    assert of_file.total() == text.count(b"\n") - 1
    file.write_bytes(damage(text))
    if line < 0:
        line = text.count(b"\n")
    merged = merge(monitor, 0 if case == "header only" else 1)
    found = merged.rows()
    assert found.total() == whole.total() - (of_file.total() if lost < 0 else lost)
    assert (whole - found).total() <= max(1, of_file.total() if lost < 0 else 1)
    assert (whole - found) <= of_file
    for path, location, what, _ in merged.losses():
        assert path == str(file)
        assert what.startswith(message)
        assert location == (f"line {line}" if line else "")
    assert str(file) in merged.message


def test_csv_cut_at_every_kilobyte_keeps_every_whole_row(monitor: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(monitor, 0).rows()
    file = monitor_file(monitor, "actv_0-1.csv")
    text = file.read_bytes()
    rows = text.count(b"\n") - 1
    columns = text.split(b"\n")[0].count(b",") + 1
    for size in range(1024, len(text), 1024):
        file.write_bytes(text[:size])
        merged = merge(monitor, 1, "-j1", "--layout", "rows")
        # Where a row is cut in its last column, the dtype, all of its statistics are there.
        last = text[:size].split(b"\n")[-1]
        is_whole = last.count(b'"') % 2 == 0 and len(next(csv.reader([last.decode()]), [])) == columns
        kept = text[:size].count(b"\n") - 1
        ((path, location, what, _),) = merged.losses()
        assert (path, location) == (str(file), f"line {kept + 2}")
        assert what.startswith("ends without a line break" if is_whole else "is cut")
        assert merged.rows().total() == whole.total() - rows + kept + is_whole
        assert merged.rows() <= whole


def test_what_is_beside_monitor_files(monitor: Path, merge: Callable[..., Merged]) -> None:
    whole = merge(monitor, 0).rows()
    (directory,) = monitor.iterdir()
    (directory / "notes.csv").write_text("x")
    (directory / "actv_9-9.csv").symlink_to("nowhere")
    (directory / "actv_8-8.csv").symlink_to("actv_8-8.csv")
    (directory / "deeper").mkdir()
    (directory / "deeper" / "up").symlink_to("../..")
    (monitor / "Dec01_23-00-00-rank1-x").symlink_to("nowhere")
    (monitor / "Dec01_23-00-00-rank2-x").mkdir()
    (monitor / "Dec01_23-00-00-rank3-x").write_text("a log")
    merged = merge(monitor, 1)
    assert merged.rows() == whole
    assert [(Path(path).name, what) for path, _, what, _ in merged.losses()] == [
        ("actv_8-8.csv", "can't be read: Too many levels of symbolic links"),
        ("actv_9-9.csv", "can't be read: No such file or directory"),
        ("Dec01_23-00-00-rank1-x", "is a link that leads to no directory"),
        ("Dec01_23-00-00-rank2-x", "has no monitor CSV"),
    ]
    assert "notes.csv: is no monitor file by its name" in merged.message


# shards, written here by docs/format.md


def write_shard(path: Path, steps: int = 6, closed: bool = True) -> None:
    """A shard of rank 3: one record of metric forward a step, its norm the step's number."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA application_id={0x54505348}")
    connection.execute("PRAGMA user_version=1")
    connection.executescript(
        "CREATE TABLE shard_info(key TEXT PRIMARY KEY, value) WITHOUT ROWID;"
        "CREATE TABLE metrics(metric_id INTEGER PRIMARY KEY, kind TEXT, name TEXT, statistics TEXT,"
        " UNIQUE(kind, name, statistics));"
        "CREATE TABLE targets(target_id INTEGER PRIMARY KEY, name TEXT, vpp_stage INTEGER, call INTEGER);"
        "CREATE TABLE target_lists(list_id INTEGER PRIMARY KEY, target_ids BLOB);"
        "CREATE TABLE blocks(block_id INTEGER PRIMARY KEY, step INTEGER, micro_step INTEGER, metric_id INTEGER,"
        " list_id INTEGER, data BLOB);"
        "CREATE TABLE steps(commit_id INTEGER PRIMARY KEY, kind TEXT, step INTEGER, micro_steps INTEGER,"
        " records INTEGER, dropped INTEGER, state TEXT, committed_ns INTEGER, first_block INTEGER,"
        " block_count INTEGER);"
    )
    info = {"host": "h", "pid": 7, "started_ns": 5, "rank": 3, "closed": int(closed), "directory": "/job"}
    connection.executemany("INSERT INTO shard_info VALUES(?,?)", info.items())
    connection.execute("INSERT INTO metrics VALUES(1, 'dump', 'forward', 'norm')")
    connection.execute("INSERT INTO targets VALUES(0, 'Module.m.M.input.0', 0, 0)")
    connection.execute("INSERT INTO target_lists VALUES(1, ?)", (struct.pack("<I", 0),))
    for step in range(steps):
        connection.execute("BEGIN")
        connection.execute("INSERT INTO blocks VALUES(?,?,0,1,1,?)", (step + 1, step, struct.pack("<f", step)))
        connection.execute("INSERT INTO steps VALUES(?,'dump',?,1,1,0,'complete',0,?,1)", (step + 1, step, step + 1))
        connection.execute("COMMIT")
    if closed:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    else:  # the last connection of a process would move the log into the file
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{path}.copy{end}")
    connection.close()
    if not closed:
        for end in ("", "-wal"):
            os.replace(f"{path}.copy{end}", f"{path}{end}")


def norms(merged: Merged) -> list[tuple[int, float]]:
    return merged.query("SELECT training_step, norm FROM trend_data JOIN trendprobe_steps USING (step) ORDER BY 1")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    directory = tmp_path / "shards"
    directory.mkdir()
    write_shard(directory / "h-7-5-0.shard")
    return directory


ALL_NORMS = [(step, float(step)) for step in range(6)]


def test_a_shard_in_use_is_read_to_its_last_commit(shards: Path, merge: Callable[..., Merged]) -> None:
    assert norms(merge(shards, 0)) == ALL_NORMS
    (shards / "h-7-5-0.shard").unlink()
    write_shard(shards / "h-7-6-0.shard", closed=False)
    before = {path.name: path.read_bytes() for path in shards.iterdir()}
    merged = merge(shards, 0)
    assert norms(merged) == ALL_NORMS
    assert "was not closed: its process was killed or is still running" in merged.message
    assert {path.name: path.read_bytes() for path in shards.iterdir()} == before


def test_a_cut_log_keeps_the_commits_before_the_cut(shards: Path, merge: Callable[..., Merged]) -> None:
    (shards / "h-7-5-0.shard").unlink()
    write_shard(shards / "h-7-6-0.shard", closed=False)
    log = shards / "h-7-6-0.shard-wal"
    content = log.read_bytes()
    seen = set()
    for size in range(len(content), 0, -1500):
        log.write_bytes(content[:size])
        # Before the last page of the tables there is no shard yet.
        try:
            found = norms(merge(shards, 0))
        except AssertionError as error:
            assert "exit code 2" in str(error)
            found = []
        assert found == ALL_NORMS[: len(found)]
        seen.add(len(found))
    assert seen >= {0, 1, 6}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "is empty: its process wrote nothing"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "malformed"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "not a TrendProbe shard"),
        (lambda path: path.write_text("text " * 1000), "not a database"),
        (lambda path: pragma(path, "user_version=2"), "shard format version 2; this TrendProbe"),
        (lambda path: pragma(path, "application_id=0"), "not a TrendProbe shard"),
        (lambda path: foreign(path), "not a TrendProbe shard"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "unable to open"),
        (lambda path: (path.unlink(), path.symlink_to(path.name)), "unable to open"),
        (lambda path: statement(path, "DROP TABLE blocks"), "no such table: blocks"),
        (lambda path: statement(path, "UPDATE targets SET target_id = 5"), "target ids are not dense"),
    ],
    ids=["empty", "cut", "header", "text", "newer", "no id", "foreign", "broken link", "loop", "no blocks", "ids"],
)
def test_a_bad_shard_costs_itself_only(
    damage: Callable[[Path], object], message: str, shards: Path, merge: Callable[..., Any]
) -> None:
    bad = shards / "h-8-5-0.shard"
    shutil.copy(shards / "h-7-5-0.shard", bad)
    damage(bad)
    merged = merge(shards, 1)
    assert norms(merged) == ALL_NORMS
    ((path, _, what, kept),) = merged.losses()
    assert path == str(bad)
    assert message in what
    assert kept.startswith(("nothing of this shard", "0 blocks"))
    (shards / "h-7-5-0.shard").unlink()
    assert "nothing was written" in merge(shards, 2).message


def pragma(path: Path, setting: str) -> None:
    statement(path, f"PRAGMA {setting}")


def statement(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    connection.close()


def foreign(path: Path) -> None:
    path.unlink()
    statement(path, "CREATE TABLE t(x)")


def test_blocks_that_break_the_format_cost_their_commit(shards: Path, merge: Callable[..., Merged]) -> None:
    statement(shards / "h-7-5-0.shard", "UPDATE blocks SET data = x'000000' WHERE block_id = 3")
    merged = merge(shards, 1)
    assert norms(merged) == [pair for pair in ALL_NORMS if pair[0] != 2]


def test_a_trend_database_is_no_input(dump: Path, shards: Path, merge: Callable[..., Merged], tmp_path: Path) -> None:
    merge(dump, 0)
    shutil.copy(tmp_path / "db" / "dump_data.trend.db", shards / "x.shard")
    ((path, _, what, _),) = merge(shards, 1).losses()
    assert (Path(path).name, "not a TrendProbe shard" in what) == ("x.shard", True)


# arguments


def test_input_that_is_none_is_named(tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").symlink_to("nowhere")
    for name, message in (
        ("absent", "absent: can't be read: No such file or directory"),
        ("broken", "broken: can't be read: No such file or directory"),
        ("file", "file: is neither a directory, nor a shard, nor a trend database"),
        ("empty", "no data found in"),
    ):
        result = trendprobe("merge", "--data", tmp_path / name, "--db", tmp_path / "db", code=2)
        assert message in result.stderr
        assert "nothing was written" in result.stderr
        assert not (tmp_path / "db").exists()


def test_a_database_that_cant_be_written_is_named(dump: Path, tmp_path: Path, trendprobe: Callable[..., Any]) -> None:
    (tmp_path / "file").write_text("x")
    result = trendprobe("merge", "--data", dump, "--db", tmp_path / "file", "--no-progress", code=2)
    assert str(tmp_path / "file") in result.stderr
    (tmp_path / "db" / "dump_data.trend.db").mkdir(parents=True)
    result = trendprobe("merge", "--data", dump, "--db", tmp_path / "db", "--no-progress", code=2)
    assert "dump_data.trend.db" in result.stderr
