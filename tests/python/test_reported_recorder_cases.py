"""What users of other tools have run into while records are written: W20 to W29, each named after its public source."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("trendprobe._recorder")

RECORDS = 20
BEGIN = """
import os, signal, sys, threading, time
from trendprobe._recorder import Recorder

recorder = Recorder("trend")

def submit(step, run=0):
    entries = [(f"Module.layer.{i}.Linear.forward.0", False, [(".output.0", (step + i, 1.0, 0.0, run))])
               for i in range(20)]
    return recorder.submit_dump_step(step, ("norm", "max", "min", "mean"), entries, {})
"""
TRAINING = """
import json, os, signal, sys
import trendprobe
trendprobe.enable()
import torch
from msprobe.pytorch import PrecisionDebugger

config = {"task": "statistics", "level": "L0", "dump_path": "./dump", "rank": [], "step": [],
          "statistics": {"scope": [], "list": [], "data_mode": ["all"]},
          "trend_db": {"enable": True, "path": "./trend", "keep_files": False}}
json.dump(config, open("config.json", "w"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
debugger = PrecisionDebugger(config_path="config.json")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def before(step): pass

for step in range(8):
    before(step)
    debugger.start(model)
    loss = model(torch.full((2, 4), step / 8)).square().mean()
    loss.backward()
    debugger.stop()
    optimizer.step(); optimizer.zero_grad()
    debugger.step()
    print("loss", step, loss.item().hex())
print("parameters", [p.sum().item().hex() for p in model.parameters()])
"""


def run(directory: Path, script: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    directory.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def shards(directory: Path) -> list[Path]:
    return sorted((directory / "trend").glob("*.shard"))


def assert_sound(shard: Path) -> None:
    """SQLite itself finds no fault with a closed shard."""
    with sqlite3.connect(f"file:{shard}?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def records_by_step(database: Path) -> dict[int, int]:
    with sqlite3.connect(database) as connection:
        return dict(
            connection.execute(
                "SELECT training_step, count(*) FROM trend_data JOIN trendprobe_steps USING (step) GROUP BY 1"
            )
        )


LIMIT = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
"""


def test_w20_a_failing_writer_ends_no_training(tmp_path: Path, trendprobe: Callable) -> None:
    """kohya-ss 1160: a training of 21 hours died because the log writer's flush failed."""
    pytest.importorskip("msprobe")
    broken = LIMIT + textwrap.dedent("""
        from trendprobe import recorders
        def before(step):
            if step not in (3, 5): return
            for recorder in recorders._recorders.values(): recorder.flush()
            limit_files(1 if step == 3 else resource.RLIM_INFINITY)
        """)
    sound = run(tmp_path / "sound", TRAINING)
    failing = run(tmp_path / "failing", TRAINING.replace("def before(step): pass", broken))

    def results(output: str) -> list[str]:
        return [line for line in output.splitlines() if line.startswith(("loss", "parameters"))]

    assert results(failing.stdout) == results(sound.stdout)
    assert len(results(sound.stdout)) == 9
    log = failing.stdout + failing.stderr
    assert log.count("recording failed") == 1
    assert "Traceback" not in log
    found = {}
    for name, code in (("sound", 0), ("failing", 1)):
        trendprobe("merge", "--data", tmp_path / name / "trend", "--db", tmp_path / name / "db", code=code)
        found[name] = records_by_step(tmp_path / name / "db/dump_data.trend.db")
    assert found["sound"].keys() == set(range(8))
    assert found["failing"].keys() == set(range(8)) - {3, 4}
    assert all(found["failing"][step] == found["sound"][step] for step in found["failing"])


def test_w21_the_first_error_is_named_with_its_file_and_kept(tmp_path: Path, trendprobe: Callable) -> None:
    """instructlab 3298: a full disk showed up as a communication time-out."""
    output = run(
        tmp_path,
        BEGIN
        + LIMIT
        + """
submit(0); recorder.flush()
limit_files(os.path.getsize(recorder.shard + "-wal"))
submit(1); recorder.flush()
submit(2); recorder.flush()
limit_files(resource.RLIM_INFINITY)
submit(3); recorder.flush()
warnings = list(iter(recorder.take_warning, ""))
print(*[warning for warning in warnings if "only" not in warning], sep="\\n")
""",
    ).stdout
    (shard,) = shards(tmp_path)
    strerror = os.strerror(27)  # EFBIG: what a limit of the size of files gives in place of ENOSPC
    (warning,) = output.splitlines()
    assert f"{shard.parent.name}/{shard.name}" in warning
    assert strerror in warning
    assert "the training goes on" in warning
    with sqlite3.connect(f"file:{shard}?mode=ro", uri=True) as database:
        ((kept,),) = database.execute("SELECT value FROM shard_info WHERE key = 'last_error'").fetchall()
    assert shard.name in kept
    assert strerror in kept
    merged = trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db", code=1)
    assert strerror in merged.stdout + merged.stderr
    assert records_by_step(tmp_path / "db/dump_data.trend.db") == {0: RECORDS, 3: RECORDS}


def test_w23_nothing_relies_on_locks_or_shared_memory(tmp_path: Path, trendprobe: Callable) -> None:
    """Sonarr 2797, DrQA 69, crush 3461: "database is locked" on NFS, and SQLITE_PROTOCOL with a write-ahead log."""
    run(
        tmp_path,
        BEGIN
        + """
import fcntl, subprocess
submit(0); recorder.flush()
# Another process locks every byte of both files, as a lock that an NFS server never gave back.
locker = subprocess.Popen([sys.executable, "-c", '''
import fcntl, sys
files = [open(name, "r+b") for name in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
''', recorder.shard, recorder.shard + "-wal"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert locker.stdout.readline() == b"locked\\n"
for step in range(1, 30):
    submit(step)
recorder.flush()
assert recorder.lost_records == 0
assert os.path.basename(recorder.shard) not in open("/proc/self/maps").read()
assert not os.path.exists(recorder.shard + "-shm")
recorder.close()
locker.communicate()
""",
    )
    (shard,) = shards(tmp_path)
    assert_sound(shard)
    trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db")
    assert records_by_step(tmp_path / "db/dump_data.trend.db") == dict.fromkeys(range(30), RECORDS)


def test_w24_no_file_has_two_writers(tmp_path: Path, trendprobe: Callable) -> None:
    """databasement 344: two writers on a file of a network disk corrupt it silently."""
    script = BEGIN + "print(os.getpid())\nfor step in range(50): submit(step)\nrecorder.set_rank(int(sys.argv[1]))\n"
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for rank in range(6)
    ]
    pids = set()
    for process in processes:
        pids.add(int(process.communicate(timeout=120)[0]))
        assert process.returncode == 0
    named = [re.fullmatch(r"(.+)-(\d+)-(\d{13})-0\.shard", shard.name) for shard in shards(tmp_path)]
    assert all(named)
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    assert {(name[1], int(name[2])) for name in named if name} == {(host, pid) for pid in pids}
    for shard in shards(tmp_path):
        assert_sound(shard)
    trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db")
    assert records_by_step(tmp_path / "db/dump_data.trend.db") == dict.fromkeys(range(50), 6 * RECORDS)


def test_w27_a_forked_child_never_touches_the_file(tmp_path: Path, trendprobe: Callable) -> None:
    """optuna 5385, petastorm 162: a forked worker inherits the connection, "database disk image is malformed"."""
    run(
        tmp_path,
        BEGIN
        + """
def end_of_child(i):
    assert not submit(1000 + i)  # and returns at once, whatever lock was held when it was forked
    recorder.flush(); recorder.set_rank(i); recorder.set_info("level", "child"); recorder.take_warning()
    if i % 3 == 0: os._exit(0)
    if i % 3 == 1: recorder.close()
    globals().pop("recorder")  # its destructor
    sys.exit(0)  # with everything that Python does at an end

writing = threading.Thread(target=lambda: [submit(step) for step in range(400)])
writing.start()  # so that forks meet the recorder's thread in the middle of commits
children = []
for i in range(24):
    child = os.fork()
    if child == 0: end_of_child(i)
    children.append(child)
    time.sleep(0.005)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
writing.join()
recorder.set_info("level", "parent")
""",
    )
    (shard,) = shards(tmp_path)
    assert_sound(shard)
    with sqlite3.connect(f"file:{shard}?mode=ro", uri=True) as database:
        info = dict(database.execute("SELECT key, value FROM shard_info"))
    assert (info["level"], info["rank"], info["closed"]) == ("parent", -1, 1)
    trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db")
    assert records_by_step(tmp_path / "db/dump_data.trend.db") == dict.fromkeys(range(400), RECORDS)


def test_w29_after_a_restart_the_newest_run_wins(tmp_path: Path, trendprobe: Callable) -> None:
    """A job is started again from a checkpoint: the same steps come again, and again after a kill."""
    ends = ("", "recorder.flush(); os.kill(os.getpid(), signal.SIGKILL)", "")
    for number, (first, last) in enumerate(((0, 10), (6, 12), (9, 20))):
        run(
            tmp_path,
            f"{BEGIN}\nfor step in range({first}, {last}): submit(step, {number})\n"
            f"recorder.set_rank(2)\n{ends[number]}",
            code=-signal.SIGKILL if ends[number] else 0,
        )
    assert len(shards(tmp_path)) == 3
    output = trendprobe("merge", "--data", tmp_path / "trend", "--db", tmp_path / "db")
    superseded = (4 + 3) * RECORDS  # steps 6 to 9 of the first run, 9 to 11 of the second
    assert re.search(rf"\b{superseded} .*superseded|superseded\D*{superseded}\b", output.stdout + output.stderr)
    with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
        runs = dict(
            database.execute(
                "SELECT training_step, group_concat(DISTINCT CAST(mean AS INTEGER)) FROM trend_data "
                "JOIN trendprobe_steps USING (step) GROUP BY 1"
            )
        )
        assert database.execute("SELECT DISTINCT rank FROM trend_data").fetchall() == [(2,)]
        sources = database.execute("SELECT records, superseded FROM trendprobe_sources ORDER BY first_step").fetchall()
    assert runs == {step: "0" if step < 6 else "1" if step < 9 else "2" for step in range(20)}
    assert sources == [(6 * RECORDS, 4 * RECORDS), (3 * RECORDS, 3 * RECORDS), (11 * RECORDS, 0)]
