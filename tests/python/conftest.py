"""What the Python tests share: the command, and the trees that the real msProbe wrote."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data"


def find_trendprobe() -> str:
    """The command under test: TRENDPROBE, else the one that was installed with this Python."""
    named = os.environ.get("TRENDPROBE")
    if named:
        return named
    beside = Path(sys.executable).with_name("trendprobe")
    found = str(beside) if beside.exists() else shutil.which("trendprobe")
    assert found, "the command trendprobe is not installed; set TRENDPROBE to it"
    return found


@pytest.fixture(scope="session")
def trendprobe() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command; fails the test when the exit code is not the expected one."""
    command = find_trendprobe()

    def run(*arguments: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [command, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
        )
        if code is not None:
            assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture(scope="session")
def fixture_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks one of the trees under tests/data; the copy is shared: do not change it."""
    root = tmp_path_factory.mktemp("msprobe")

    def unpack(name: str) -> Path:
        target = root / name
        if not target.exists():
            with tarfile.open(DATA / f"{name}.tar.xz") as archive:
                archive.extractall(root, filter="data")
        return target

    return unpack


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
