"""The recorder in real processes: every way to end, forks, other users of SQLite, and storage that fails."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorder_runs import BEGIN, RECORDS, run, shards

_recorder = pytest.importorskip("trendprobe._recorder")

# Ends of a process. `code` is what Python gives; the steps were flushed before the end, or not.

ENDS = {
    "end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise RuntimeError('loss is NaN')", 1),
    "os._exit": ("recorder.flush(); os._exit(4)", 4),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT),
    "SIGTERM": ("recorder.flush(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -signal.SIGTERM),
    "SIGKILL": ("recorder.flush(); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "abort": ("recorder.flush(); os.abort()", -signal.SIGABRT),
    "stack overflow": ("recorder.flush(); import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "a thread that never ends": ("threading.Thread(target=time.sleep, args=(999,), daemon=True).start()", 0),
    "a thread that submits to the end": (
        "threading.Thread(target=lambda: [submit(1) for _ in iter(int, 1)], daemon=True).start(); time.sleep(0.2)",
        0,
    ),
    "a cycle of objects": ("box = [recorder]; box.append(box); del recorder", 0),
    "deleted while it works": ("del recorder", 0),
}


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=ENDS)
def test_committed_steps_survive_every_end(end: str, code: int, tmp_path: Path, steps_of: Callable) -> None:
    run(tmp_path, f"{BEGIN}\nfor step in range(5): submit(step)\n{end}\n", code=code)
    assert steps_of() == dict.fromkeys(range(5), RECORDS)
    assert len(shards(tmp_path)) == 1


def test_every_commit_before_a_kill_is_there(tmp_path: Path, steps_of: Callable) -> None:
    """Killed at any moment: the shard holds whole steps, from the first on, and each that was said to be committed."""
    file = tmp_path / "script.py"
    file.write_text(
        BEGIN
        + textwrap.dedent("""
            for step in range(10**6):
                submit(step)
                if step % 7 == 0:
                    recorder.flush()
                    print(step, flush=True)
            """)
    )
    for wait in (1, 5, 40, 90):
        with subprocess.Popen([sys.executable, file], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            said = [int(process.stdout.readline()) for _ in range(wait)]
            process.kill()
        found = steps_of()
        shutil.rmtree(tmp_path / "trend")
        assert found == dict.fromkeys(range(len(found)), RECORDS)
        assert len(found) > said[-1]


def test_a_shard_in_parts_merges_to_the_same_database(trendprobe: Callable[..., Any], tmp_path: Path) -> None:
    """A step may even be spread over parts: late monitor records, and a step that comes again."""
    contents = {}
    for name, rotate in (("whole", 1 << 30), ("parts", 1 << 18)):
        directory = tmp_path / name
        directory.mkdir()
        run(
            directory,
            BEGIN.replace('Recorder("trend")', f'Recorder("trend", rotate_bytes={rotate})')
            + """
recorder.set_info("directory", "here")
for step in range(80):
    if step == 60: recorder.set_rank(3)  # learnt late, when parts are closed
    submit(step)
    rows = [(f"layer.{i}.weight", 0, 0, [step + i, float("nan") if i == step else 0]) for i in range(30)]
    recorder.submit_monitor(step, "grad_reduced", ["norm", "max"], rows[:20])
    recorder.flush()
    recorder.submit_monitor(step, "grad_reduced", ["norm", "max"], rows[15:])
    recorder.flush()
submit(7)  # the same values; a later part than that of step 7
""",
        )
        trendprobe("merge", "--data", directory / "trend", "--db", directory / "db")
        for kind in ("dump", "monitor"):
            with sqlite3.connect(directory / f"db/{kind}_data.trend.db") as database:
                tables = [
                    table
                    for (table,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
                    if table not in ("trendprobe_sources", "trendprobe_ranks") and not table.startswith("sqlite_")
                ]
                contents[name, kind] = {
                    table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
                    if table in ("trend_data", "trendprobe_nonfinite")
                    else sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
                    for table in tables
                }
                sources = database.execute("SELECT sum(records), sum(superseded) FROM trendprobe_sources").fetchall()
                contents[name, kind]["sources"] = sources
                assert database.execute("SELECT DISTINCT rank FROM trend_data").fetchall() == [(3,)]
    assert len(shards(tmp_path / "whole")) == 1
    assert len(shards(tmp_path / "parts")) > 10
    assert any(path.name.endswith("-10.shard") for path in shards(tmp_path / "parts"))
    for kind in ("dump", "monitor"):
        assert contents["parts", kind] == contents["whole", kind]
        assert len(contents["whole", kind]["trend_data"]) == {"dump": 80 * RECORDS, "monitor": 80 * 30}[kind]
        assert contents["whole", kind]["sources"][0][1] == {"dump": RECORDS, "monitor": 80 * 5}[kind]


# Other processes and other users of SQLite


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_write_nothing_of_their_own(method: str, tmp_path: Path, steps_of: Callable) -> None:
    run(
        tmp_path,
        BEGIN
        + f"""
import multiprocessing

def child(queue):
    queue.put((submit(77) if {method!r} == "fork" else None, os.getpid()))

if __name__ == "__main__":
    for step in range(3):
        submit(step)
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    children = [context.Process(target=child, args=(queue,)) for _ in range(3)]
    for process in children: process.start()
    for process in children: process.join(60)
    assert [queue.get()[0] for _ in children] == [False if {method!r} == "fork" else None] * 3
    assert all(process.exitcode == 0 for process in children)
    for step in range(3, 6):
        assert submit(step)
""",
    )
    assert steps_of() == dict.fromkeys(range(6), RECORDS)
    assert len(shards(tmp_path)) == 1


@pytest.mark.parametrize("first", ["import sqlite3", "pass"])
def test_pythons_own_sqlite_works_beside_ours(first: str, tmp_path: Path, steps_of: Callable) -> None:
    """At the same time, in the same directory; with other pragmas, and closed in any order."""
    (tmp_path / "trend").mkdir()
    run(
        tmp_path,
        first
        + BEGIN
        + """
import sqlite3

def write(name):
    database = sqlite3.connect(f"trend/{name}.db")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE t(x)")
    for i in range(300):
        database.execute("INSERT INTO t VALUES (?)", (i,))
        database.commit()
    assert database.execute("SELECT sum(x) FROM t").fetchone() == (44850,)
    database.close()

threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
for thread in threads: thread.start()
for step in range(200):
    assert submit(step)
for thread in threads: thread.join()
recorder.close()
write("last")
assert recorder.take_warning() == ""
""",
    )
    assert steps_of() == dict.fromkeys(range(200), RECORDS)


@pytest.mark.parametrize("module", ["_recorder", "_tensor_stats"])
def test_no_symbol_of_sqlite_or_of_ours_is_exported(module: str) -> None:
    pytest.importorskip("torch")  # loads what _tensor_stats is linked to
    found = pytest.importorskip(f"trendprobe.{module}")
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", found.__file__], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    assert f"PyInit_{module}" in names
    assert not [name for name in names if "sqlite" in name or "trendprobe" in name.lower()]


# Storage that fails: the training goes on


def test_a_full_disk_costs_a_warning_and_the_steps_meanwhile(tmp_path: Path, steps_of: Callable) -> None:
    """The limit of a file's size stands for the disk's; it is lifted again."""
    text = run(
        tmp_path,
        BEGIN
        + """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
submit(0); recorder.flush()
size = os.path.getsize(recorder.shard + "-wal")
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, resource.RLIM_INFINITY))
for step in range(1, 40):
    submit(step)
recorder.flush()
print("lost", recorder.lost_records, recorder.take_warning())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
submit(40); recorder.flush()
assert recorder.take_warning() == ""
""",
    )
    lost = int(text.split("lost ")[1].split()[0])
    assert lost > 0
    assert "the training goes on" in text
    found = steps_of(code=1)  # the merge says what is missing
    assert found[0] == found[40] == RECORDS
    assert sum(found.values()) == 41 * RECORDS - lost
    with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
        issues = database.execute("SELECT location FROM trendprobe_issues WHERE severity = 'repaired'").fetchall()
    assert {location for (location,) in issues} == {f"training step {step}" for step in range(41) if step not in found}


@pytest.mark.parametrize("path", ["/proc/trend", "file/trend", "/dev/null"])
def test_a_directory_that_cant_be_made_costs_a_warning(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    text = run(
        tmp_path,
        BEGIN.replace('"trend"', repr(path))
        + """
for step in range(5): submit(step)
recorder.flush()
print(recorder.take_warning())
print(recorder.take_warning())
""",
    )
    assert text.count("the training goes on") == 1
    assert path in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"durability": "always"}, "durability"),
        ({"on_full": "crash"}, "on_full"),
        ({"queue_bytes": -1}, "incompatible"),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        _recorder.Recorder(str(tmp_path), **arguments)


def test_wrong_records_raise_and_nothing_is_lost(tmp_path: Path, steps_of: Callable) -> None:
    recorder = _recorder.Recorder(str(tmp_path / "trend"))
    good = [("Module.a.Linear.forward.0", False, [(".output.0", (1.0, 1.0, 1.0, 1.0))])]
    statistics = ("norm", "max", "min", "mean")
    recorder.submit_dump_step(0, statistics, good, {})
    for wrong in (
        [("name",)],
        [(1, False, [])],
        [("Module.a.Linear.forward.0", False, [(".output.0", ("x", 1, 1, 1))])],
        [("Module.a.Linear.forward.0", False, [(".output.0", (1.0, 1.0))])],
        ["name"],
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            recorder.submit_dump_step(1, statistics, wrong, {})
    for unknown in (["Norm", "max", "min", "mean"], ["max", "norm", "min", "mean"], ["norm"], []):
        with pytest.raises((TypeError, ValueError)):
            recorder.submit_dump_step(1, unknown, good, {})
    with pytest.raises((TypeError, ValueError)):
        recorder.submit_monitor(1, "actv", ["norm"], [("a", 0, 0, [1.0, 2.0])])
    recorder.submit_dump_step(2, statistics, good, {})
    recorder.close()
    assert steps_of() == {0: 1, 2: 1}
