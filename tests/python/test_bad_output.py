"""`trendprobe merge` where the output can't be written, is in use, or the merge is killed.

Whatever happens, an earlier database stays as it was until the new one is complete, nothing temporary is left behind,
and the message names the place and what to do.
"""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import find_trendprobe

Command = Callable[..., subprocess.CompletedProcess[str]]

NAME = "dump_data.trend.db"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone may mount or become somebody else")


@pytest.fixture
def dump(fixture_tree: Callable[[str], Path]) -> Path:
    return fixture_tree("pt_L0_ddp2") / "data"


@pytest.fixture
def output(dump: Path, tmp_path: Path, trendprobe: Command) -> Path:
    """A directory with an earlier database: some ranks and steps of the same run."""
    directory = tmp_path / "output"
    trendprobe("merge", "--data", dump, "--db", directory, "--layout", "tiles", "--quiet")
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [find_trendprobe(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def large_dump(dump: Path, directory: Path, steps: int) -> Path:
    """A dump of many steps, whose merge takes long enough to be interrupted."""
    first = min(dump.glob("step*"))
    for step in range(steps):
        shutil.copytree(first, directory / f"step{step}", copy_function=os.link)
    return directory


def test_a_file_that_may_grow_no_more_is_named(dump: Path, output: Path) -> None:
    # The limit's signal would kill a process that does not see to it.
    before = (output / NAME).read_bytes()
    limit = len(before) // 2
    result = run(
        "merge", "--data", dump, "--db", output, "--no-progress",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert result.returncode == 2, result.stderr
    assert f"{output / NAME}.part" in result.stderr
    assert "nothing was written" in result.stderr
    assert (output / NAME).read_bytes() == before
    assert names(output) == [NAME]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield mount
    subprocess.run(["umount", mount], check=True)


@needs_root
@pytest.mark.parametrize("layout", ["both", "rows", "tiles"])
def test_a_full_disk_is_named(layout: str, dump: Path, small_disk: Path) -> None:
    (small_disk / NAME).write_bytes(b"the old database")
    result = run("merge", "--data", dump, "--db", small_disk, "--no-progress", "--layout", layout)
    assert result.returncode == 2, result.stderr
    assert f"{small_disk / NAME}.part" in result.stderr
    assert "full" in result.stderr or "No space left" in result.stderr
    assert "nothing was written" in result.stderr
    assert (small_disk / NAME).read_bytes() == b"the old database"
    assert names(small_disk) == [NAME]


def test_a_reader_of_the_old_database_keeps_it(dump: Path, output: Path, trendprobe: Command) -> None:
    reader = sqlite3.connect(output / NAME)
    try:
        reader.execute("BEGIN")
        query = "SELECT value FROM trendprobe_info WHERE key = 'layout'"
        assert reader.execute(query).fetchall() == [("tiles",)]
        trendprobe("merge", "--data", dump, "--db", output, "--quiet")
        assert reader.execute(query).fetchall() == [("tiles",)]
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        reader.close()
    with sqlite3.connect(output / NAME) as connection:
        assert connection.execute(query).fetchall() == [("both",)]
    connection.close()
    assert names(output) == [NAME]


def test_a_database_that_a_program_is_writing_is_left_alone(dump: Path, output: Path) -> None:
    before = (output / NAME).read_bytes()
    # In a process of its own: this one's locks would be given up as soon as it closed the file anywhere.
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys\n"
            "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "connection.execute('BEGIN IMMEDIATE')\n"
            "print('ready', flush=True)\n"
            "sys.stdin.read()\n",
            str(output / NAME),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        result = run("merge", "--data", dump, "--db", output, "--no-progress")
        assert result.returncode == 2, result.stderr
        assert f"{output / NAME}: process {writer.pid} is writing this database now" in result.stderr
        assert "Wait for it to end" in result.stderr
    finally:
        writer.communicate()
    assert (output / NAME).read_bytes() == before
    assert names(output) == [NAME]


def test_of_two_merges_at_once_the_second_is_told(dump: Path, tmp_path: Path, trendprobe: Command) -> None:
    data = large_dump(dump, tmp_path / "data", 300)
    output = tmp_path / "output"
    first = subprocess.Popen([find_trendprobe(), "merge", "--data", data, "--db", output, "--quiet"])
    while not (output / f"{NAME}.part").exists():
        assert first.poll() is None
        time.sleep(0.001)
    second = run("merge", "--data", dump, "--db", output, "--no-progress")
    assert first.wait() == 0
    assert second.returncode == 2, second.stderr
    assert f"{output / NAME}: process {first.pid} on " in second.stderr
    assert "wait for it to end, or choose another output directory" in second.stderr
    assert names(output) == [NAME]
    trendprobe("verify", output / NAME)
    with sqlite3.connect(output / NAME) as connection:
        assert connection.execute("SELECT count(DISTINCT training_step) FROM trendprobe_steps").fetchone() == (300,)
    connection.close()


def test_a_merge_killed_at_any_moment_leaves_the_old_database(dump: Path, tmp_path: Path, trendprobe: Command) -> None:
    data = large_dump(dump, tmp_path / "data", 100)
    output = tmp_path / "output"
    trendprobe("merge", "--data", data, "--db", tmp_path / "undisturbed", "--quiet")
    trendprobe("merge", "--data", dump, "--db", output, "--quiet")
    before = (output / NAME).read_bytes()
    killed = 0
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
        process = subprocess.Popen([find_trendprobe(), "merge", "--data", data, "--db", output, "--quiet"])
        while process.poll() is None and not (output / f"{NAME}.part").exists():
            time.sleep(0.0005)
        time.sleep(delay)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            assert (output / NAME).read_bytes() == before
        else:  # it was done already
            trendprobe("merge", "--data", dump, "--db", output, "--quiet")
    assert killed
    trendprobe("merge", "--data", data, "--db", output, "--quiet")
    assert (output / NAME).read_bytes() == (tmp_path / "undisturbed" / NAME).read_bytes()
    assert names(output) == [NAME]


def test_missing_output_directories_are_made(dump: Path, tmp_path: Path, trendprobe: Command) -> None:
    output = tmp_path / "a" / "b c" / "d"
    trendprobe("merge", "--data", dump, "--db", output, "--quiet")
    assert names(output) == [NAME]
    assert output.stat().st_mode & 0o027 == 0


def test_an_output_that_is_no_directory_is_named(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for output in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "dangling"):
        result = run("merge", "--data", dump, "--db", output, "--no-progress")
        assert result.returncode == 2, result.stderr
        assert str(output) in result.stderr
        assert "nothing was written" in result.stderr
    assert (tmp_path / "file").read_text() == "x"
    assert names(tmp_path) == ["dangling", "file"]


def test_a_link_is_replaced_and_its_file_kept(dump: Path, tmp_path: Path, trendprobe: Command) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (tmp_path / "precious").write_text("mine")
    (output / NAME).symlink_to(tmp_path / "precious")
    trendprobe("merge", "--data", dump, "--db", output, "--quiet")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (output / NAME).is_symlink()


@pytest.fixture
def open_tmp_path(tmp_path: Path) -> Path:
    """tmp_path, but everybody may look into it."""
    for path in (tmp_path, *list(tmp_path.parents)[:2]):
        path.chmod(0o755)
    return tmp_path


@needs_root
def test_a_directory_that_may_not_be_written_is_named(dump: Path, open_tmp_path: Path) -> None:
    data = open_tmp_path / "data"
    shutil.copytree(dump, data)
    output = open_tmp_path / "output"
    output.mkdir()
    (output / NAME).write_bytes(b"the old database")
    program = open_tmp_path / "trendprobe"
    shutil.copy(find_trendprobe(), program)
    command = [program, "merge", "--data", data, "--db", output, "--no-progress"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, user=NOBODY, group=NOBODY)
    assert result.returncode == 2, result.stderr
    assert f"{output / NAME}.lock" in result.stderr
    assert "Permission denied" in result.stderr
    assert "nothing was written" in result.stderr
    assert (output / NAME).read_bytes() == b"the old database"
    assert names(output) == [NAME]


@needs_root
def test_input_that_may_not_be_read_is_named(dump: Path, open_tmp_path: Path) -> None:
    data = open_tmp_path / "data"
    shutil.copytree(dump, data)
    hidden_step, half_hidden_step = sorted(data.glob("step*"))[:2]
    hidden_step.chmod(0o700)
    hidden_file = min(half_hidden_step.rglob("dump.json"))
    hidden_file.chmod(0o600)
    program = open_tmp_path / "trendprobe"
    shutil.copy(find_trendprobe(), program)
    output = open_tmp_path / "output"
    output.mkdir()
    os.chown(output, NOBODY, NOBODY)
    command = [program, "merge", "--data", data, "--db", output, "--no-progress"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, user=NOBODY, group=NOBODY)
    assert result.returncode == 1, result.stderr
    for path in (hidden_step, hidden_file):
        assert any(str(path) in line and "Permission denied" in line for line in result.stderr.splitlines()), path
    assert names(output) == [NAME]


@pytest.mark.parametrize("tree", ["pt_L0_ddp2", "mon_slim_2rank"])
def test_the_order_of_directories_changes_no_byte(
    tree: str, fixture_tree: Callable[[str], Path], tmp_path: Path, trendprobe: Command
) -> None:
    source = fixture_tree(tree)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    databases = []
    for order, ordered in (("forwards", files), ("backwards", files[::-1])):
        # Same names, since the database holds them, made in another order.
        data = tmp_path / "data"
        for file in ordered:
            copy = data / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        trendprobe("merge", "--data", data, "--db", tmp_path / order, "--quiet", code=None)
        shutil.rmtree(data)
        (database,) = (tmp_path / order).iterdir()
        databases.append(database.read_bytes())
    assert databases[0] == databases[1]
