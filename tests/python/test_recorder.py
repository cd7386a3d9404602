"""The recorder in real processes: every way to end, forks, other users of SQLite, and a training under msProbe."""

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

_recorder = pytest.importorskip("trendprobe._recorder")

RECORDS = 20  # a step of the scripts below


def run(directory: Path, script: str, *, code: int | None = 0, timeout: float = 120) -> str:
    """Runs a script in its own process; returns what it printed on both streams."""
    file = directory / "script.py"
    file.write_text(textwrap.dedent(script))
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", file], cwd=directory, capture_output=True, text=True, timeout=timeout
    )
    text = result.stdout + result.stderr
    assert code is None or result.returncode == code, f"exit code {result.returncode}\n{text}"
    return text


BEGIN = """
import os, signal, sys, threading, time
from trendprobe._recorder import Recorder

recorder = Recorder("trend")

def submit(step, recorder=recorder):
    entries = [(f"Module.layer.{i}.Linear.forward.0", False, [(".output.0", (step + i, 1.0, 0.0, 0.5))])
               for i in range(20)]
    return recorder.submit_dump_step(step, ["norm", "max", "min", "mean"], entries, {})
"""


@pytest.fixture
def steps_of(trendprobe: Callable[..., Any], tmp_path: Path) -> Callable[..., dict[int, int]]:
    """Training step → records, of the merged shards under tmp_path / "trend"."""

    def merge(*, code: int | None = 0) -> dict[int, int]:
        trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db", code=code)
        with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
            return dict(
                database.execute(
                    "SELECT training_step, count(*) FROM trend_data JOIN trendprobe_steps USING (step) GROUP BY 1"
                )
            )

    return merge


def shards(directory: Path) -> list[Path]:
    return sorted((directory / "trend").glob("*.shard"))


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
    for name, rotate in (("whole", 1 << 30), ("parts", 1 << 16)):
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


# A training under the real msProbe

TRAINING = """
import json, os, signal, sys, time
import trendprobe
trendprobe.enable()
import torch
from msprobe.pytorch import PrecisionDebugger

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, i):
        worker_model(torch.randn(4))  # the worker has the hooks, too
        return torch.full((4,), float(i))

config = {"task": "statistics", "level": "L0", "dump_path": "./dump", "rank": [], "step": [],
          "statistics": {"scope": [], "list": [], "data_mode": ["all"]},
          "trend_db": {"enable": True, "path": "./trend", "keep_files": False}}
json.dump(config, open("config.json", "w"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
worker_model = model
debugger = PrecisionDebugger(config_path="config.json")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def end(step): pass

def train(loader):
    for step, batch in enumerate(loader):
        debugger.start(model)
        loss = model(batch / 48).square().mean()
        loss.backward()
        end(step)
        debugger.stop()
        optimizer.step(); optimizer.zero_grad()
        debugger.step()
"""
STEPS = 6  # of 48 numbers in batches of 8


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_data_loaders_record_nothing(workers: int, method: str | None, tmp_path: Path, steps_of: Callable) -> None:
    pytest.importorskip("msprobe")
    train = (
        f"train(torch.utils.data.DataLoader(Numbers(), 8, num_workers={workers}, multiprocessing_context={method!r}))"
    )
    run(tmp_path, TRAINING + f"\nif __name__ == '__main__':\n    {train}\n")
    found = steps_of()
    assert found.keys() == set(range(STEPS))
    assert len(set(found.values())) == 1
    assert len(shards(tmp_path)) == 1


TRAINING_ENDS = {
    "a handler of SIGTERM that leaves in order": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
        143,
        True,
    ),
    "exception": ("raise RuntimeError('loss is NaN')", 1, True),
    "KeyboardInterrupt": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT, True),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -signal.SIGTERM, False),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, False),
    "os._exit": ("os._exit(5)", 5, False),
}


@pytest.mark.parametrize(("end", "code", "in_order"), TRAINING_ENDS.values(), ids=TRAINING_ENDS)
def test_a_training_that_ends_in_the_middle_of_a_step(
    end: str, code: int, in_order: bool, tmp_path: Path, steps_of: Callable
) -> None:
    pytest.importorskip("msprobe")
    run(
        tmp_path,
        TRAINING
        + f"""
def end(step):
    if step == 4:
        time.sleep(0.5)  # by now the steps before are committed
        {end}
train(torch.utils.data.DataLoader(Numbers(), 8))
""",
        code=code,
    )
    found = steps_of(code=1 if in_order else 0)
    assert found.keys() == set(range(5 if in_order else 4))
    assert len({found[step] for step in range(4)}) == 1
    if in_order:  # what the step had so far is kept, and named as incomplete
        with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
            assert database.execute(
                "SELECT location, what FROM trendprobe_issues WHERE severity <> 'notice'"
            ).fetchall() == [("training step 4", "is incomplete: its process ended in the middle of it")]


def test_an_exception_that_the_training_catches_costs_its_step_alone(tmp_path: Path, steps_of: Callable) -> None:
    """Raised between forward and backward pass, and in the backward pass; the loop goes on with the next batch."""
    pytest.importorskip("msprobe")
    text = run(
        tmp_path,
        TRAINING
        + """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor): return tensor.clone()
    @staticmethod
    def backward(context, gradient): raise FloatingPointError("in the backward pass")

for step in range(7):
    debugger.start(model)
    try:
        output = model(torch.full((8, 4), step / 7))
        if step == 2: raise FloatingPointError("the loss is not finite")
        if step == 4: output = Fails.apply(output)
        output.square().mean().backward()
    except FloatingPointError as error:
        print("skipped", step, error)
        optimizer.zero_grad()
    debugger.stop()
    debugger.step()
""",
    )
    assert text.count("skipped") == 2
    assert "TrendProbe" not in text
    found = steps_of()
    assert found.keys() == set(range(7))
    assert found[2] == found[4] < found[0]  # the forward pass
    assert len({found[step] for step in (0, 1, 3, 5, 6)}) == 1


def test_a_keyboard_interrupt_that_is_caught_ends_in_order(tmp_path: Path, steps_of: Callable) -> None:
    pytest.importorskip("msprobe")
    text = run(
        tmp_path,
        TRAINING
        + """
def end(step):
    if step == 3: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)
try:
    train(torch.utils.data.DataLoader(Numbers(), 8))
except KeyboardInterrupt:
    debugger.stop()
    print("saved a checkpoint")
""",
    )
    assert "saved a checkpoint" in text
    assert "Traceback" not in text
    found = steps_of()  # after stop() the step is as complete as the training made it
    assert found.keys() == set(range(4))
    assert len(set(found.values())) == 1


def test_a_rank_that_is_known_late(tmp_path: Path, trendprobe: Callable) -> None:
    """Two processes that make their process group after their second step; nothing of the first two is lost."""
    pytest.importorskip("msprobe")
    script = tmp_path / "script.py"
    script.write_text(
        TRAINING
        + """
rank = int(sys.argv[1])
os.chdir(f"process{rank}")  # each with a configuration and dumps of its own
json.dump({**config, "trend_db": {"enable": True, "path": "../trend", "keep_files": False}}, open("config.json", "w"))
"""
        # The debugger is made once the process is where it belongs.
    )
    text = script.read_text()
    made = 'debugger = PrecisionDebugger(config_path="config.json")\n'
    wrote = 'json.dump(config, open("config.json", "w"))\n'
    assert made in text and wrote in text
    script.write_text(
        text.replace(made, "").replace(wrote, "")
        + made
        + """
for step in range(5):
    if step == 2:
        torch.distributed.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
    debugger.start(model)
    model(torch.full((8, 4), rank + 1.0)).square().mean().backward()
    debugger.stop()
    debugger.step()
torch.distributed.destroy_process_group()
"""
    )
    processes = []
    for rank in range(2):
        (tmp_path / f"process{rank}").mkdir()
        processes.append(
            subprocess.Popen(
                [sys.executable, script, str(rank), f"file://{tmp_path}/store"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for process in processes:
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
    assert len(shards(tmp_path)) == 2
    trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db")
    with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
        found = database.execute(
            "SELECT rank, training_step, count(*) FROM trend_data JOIN trendprobe_steps USING (step) GROUP BY 1, 2"
        ).fetchall()
        inputs = database.execute(
            "SELECT DISTINCT rank, max FROM trend_data JOIN monitoring_targets USING (target_id) "
            "WHERE metric_id = 1 AND target_name LIKE 'Module.0.Linear.input.0'"
        ).fetchall()
    assert {(rank, step) for rank, step, _ in found} == {(rank, step) for rank in range(2) for step in range(5)}
    assert len({count for *_, count in found}) == 1
    assert sorted(inputs) == [(0, 1.0), (1, 2.0)]


MANY = """
import json
import trendprobe
trendprobe.enable()
import torch
from msprobe.pytorch import PrecisionDebugger, TrainerMon

def write(name, content, path):
    json.dump({**content, "trend_db": {"enable": True, "path": path, "keep_files": False}}, open(name, "w"))

write("dump.json", {"task": "statistics", "level": "L0", "dump_path": "./dump", "rank": [], "step": [],
                    "statistics": {"scope": [], "list": [], "data_mode": ["all"]}}, "./trend/dump")
for name in "ab":
    write(f"monitor_{name}.json", {"targets": {}, "format": "csv", "ops": ["norm", "max"], "wg_distribution": True,
                                   "step_interval": 1, "ndigits": 12}, f"./trend/{name}")
torch.manual_seed(0)
models = {"a": torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)),
          "b": torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))}
optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
monitors = []
for name, model in models.items():
    monitor = TrainerMon(f"monitor_{name}.json", params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizers[name])
    monitors.append(monitor)
debuggers = [PrecisionDebugger(config_path="dump.json"), PrecisionDebugger(config_path="dump.json")]
for step in range(5):
    debuggers[step % 2].start(list(models.values()))
    for name, model in models.items():
        model(torch.ones(2, 4)).square().mean().backward()
    debuggers[step % 2].stop()
    for optimizer in optimizers.values(): optimizer.step(); optimizer.zero_grad()
    debuggers[step % 2].step()
"""


def test_several_debuggers_monitors_and_models_in_one_process(tmp_path: Path, trendprobe: Callable) -> None:
    """Each records to the directory that its own configuration names."""
    pytest.importorskip("msprobe")
    run(tmp_path, MANY)
    targets = {}
    for name, kind in (("dump", "dump"), ("a", "monitor"), ("b", "monitor")):
        assert len(list((tmp_path / "trend" / name).glob("*.shard"))) == 1
        trendprobe("merge", "--data", tmp_path / "trend" / name, "--db", tmp_path / name)
        with sqlite3.connect(tmp_path / name / f"{kind}_data.trend.db") as database:
            assert database.execute("SELECT count(DISTINCT step) FROM trend_data").fetchone() == (5,)
            targets[name] = {
                target
                for (target,) in database.execute(
                    "SELECT target_name FROM monitoring_targets WHERE target_id IN (SELECT target_id FROM trend_data)"
                )
            }
    assert any("Module.0.0.Linear" in target for target in targets["dump"])
    assert any("Module.1.2.Linear" in target for target in targets["dump"])
    assert any("1.weight" in target for target in targets["a"]) and not any("2.weight" in t for t in targets["a"])
    assert any("2.weight" in target for target in targets["b"]) and not any("1.weight" in t for t in targets["b"])


SHUTDOWN = {
    # Registered before ours, so that it runs after ours, when the shards are closed.
    "an atexit function": ("import atexit\natexit.register(lambda: one_step())\n", ""),
    "an object of a module": (
        "",
        "class AtTheVeryEnd:\n    def __del__(self): one_step()\nkept = AtTheVeryEnd()\nsys.kept = kept\n",
    ),
    "a daemon thread": ("", "threading.Thread(target=lambda: [one_step() for _ in iter(int, 1)], daemon=True).start()"),
    "a cycle through the debugger": ("", "debugger.cycle = [debugger, model]; debugger.cycle.append(debugger.cycle)"),
    "modules gone before": ("", "for name in [n for n in sys.modules if n.startswith('trendprobe')]: del sys.modules[name]"),
}


@pytest.mark.parametrize(("first", "last"), SHUTDOWN.values(), ids=SHUTDOWN)
def test_the_order_of_pythons_shutdown_harms_nothing(
    first: str, last: str, tmp_path: Path, steps_of: Callable
) -> None:
    """What still trains or lives while Python takes itself apart neither crashes nor loses what was recorded."""
    pytest.importorskip("msprobe")
    text = run(
        tmp_path,
        first
        + TRAINING.replace("import json,", "import threading, json,")
        + f"""
def one_step():
    debugger.start(model)
    model(torch.ones(8, 4)).sum().backward()
    debugger.stop()
    debugger.step()

train(torch.utils.data.DataLoader(Numbers(), 8))
{last}
""",
        code=None if "daemon" in last else 0,  # torch itself may abort a thread that runs to the end
    )
    assert "trendprobe" not in text.lower().replace(str(tmp_path).lower(), "")
    found = steps_of(code=None if "daemon" in last else 0)
    assert set(range(STEPS)) <= found.keys()
    assert len({found[step] for step in range(STEPS)}) == 1


def test_the_last_step_counts_without_a_call_of_step(tmp_path: Path, steps_of: Callable) -> None:
    pytest.importorskip("msprobe")
    run(
        tmp_path,
        TRAINING
        + """
debugger.start(model)
model(torch.ones(8, 4)).sum().backward()
debugger.stop()
""",
    )
    assert steps_of().keys() == {0}


def test_a_broken_disk_leaves_the_losses_as_they_are(tmp_path: Path) -> None:
    """No directory, a full disk from the start: the training sees nothing of it but one warning."""
    pytest.importorskip("msprobe")
    losses = []
    for path in ("./trend", "/proc/nowhere"):
        text = run(
            tmp_path,
            TRAINING.replace('"./trend"', repr(path)).replace(
                "loss.backward()", "loss.backward(); print('loss', loss.item().hex())"
            )
            + "\ntrain(torch.utils.data.DataLoader(Numbers(), 8))\n",
        )
        losses.append([line for line in text.splitlines() if line.startswith("loss")])
        assert text.count("recording failed") == (path != "./trend")
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS
