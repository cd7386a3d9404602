"""Every command of README.md, run as it stands there, and the demo's result against msProbe's own files of that run."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from trend_rows import assert_same, rows

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PACKAGES_PYTHON = os.environ.get("TRENDPROBE_VIEWER_PYTHON", sys.executable)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, comments and indentation off."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL)
    return [re.sub(r" +#.*$", "", block, flags=re.MULTILINE).strip() for block in found]


def inline_commands() -> list[str]:
    """The code spans in the text that begin with a program's name."""
    text = re.sub(r"^ *```.*?^ *```", "", README, flags=re.MULTILINE | re.DOTALL)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    return [span for span in spans if re.match(r"(python|pip|npm|trendprobe|tensorboard|\./\S+) .", span)]


TRY, INSTALL = (block.splitlines() for block in blocks("sh"))
COMMANDS = inline_commands()


def test_no_command_is_left_out() -> None:
    """What the tests below run is what the README says: a new command there needs a test here."""
    assert TRY == ["./ci/demo.sh", "./ci/test.sh"]
    assert [line.split()[0] for line in INSTALL] == ["apt-get", "pip", "pip"]
    assert COMMANDS == [
        "pip install tensorboard",
        "python -m trendprobe.run train.py …",
        "trendprobe merge --data ./trend --db ./trend_db",
        "trendprobe merge --data ./dump_path --db ./trend_db",
        "tensorboard --logdir ./trend_db",
    ]
    # ./ci/test.sh is what runs this file.
    assert "tests/python" in (ROOT / "ci/test.sh").read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def run(command: str, directory: Path, environment: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        ["bash", "-euc", command],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's output directory, and what it printed."""
    out = tmp_path_factory.mktemp("readme") / "demo"
    command = f"{TRY[0]} --no-serve --screenshot '{out}.png' --out '{out}' --port {free_port()}"
    return out, run(command, ROOT)


def test_demo_says_what_it_found_and_where(demo: tuple[Path, str]) -> None:
    out, printed = demo
    assert out.with_suffix(".png").read_bytes().startswith(PNG_SIGNATURE)
    assert len(list(out.glob("trend/*.shard"))) == 2  # one a rank
    assert len(re.findall(r"steps +16 \(training steps 0-7\)", printed)) == 2  # dump and monitor
    assert "blocks.2.mlp.act" in printed  # where the NaN was planted
    with sqlite3.connect(out / "trend_db/dump_data.trend.db") as database:
        (first,) = database.execute(
            "SELECT training_step, steps.micro_step, rank, target_name FROM trendprobe_nonfinite "
            "JOIN trendprobe_steps AS steps USING (step) JOIN monitoring_targets USING (target_id) "
            "JOIN monitoring_metrics USING (metric_id) "
            "JOIN trendprobe_target_order USING (target_id) WHERE metric_name = 'forward' "
            "ORDER BY step, rank, position LIMIT 1"
        )
    assert first[:3] == (5, 0, 1)
    assert "blocks.2.mlp.act" in first[3]


@pytest.mark.parametrize("kind", ["dump", "monitor"])
def test_demo_shards_hold_what_the_files_of_the_same_run_hold(
    demo: tuple[Path, str], kind: str, trendprobe: Callable[..., object], tmp_path: Path
) -> None:
    out, _ = demo
    trendprobe("merge", "--data", out / "msprobe_dump", "--data", out / "monitor", "--db", tmp_path)
    ours = rows(out / f"trend_db/{kind}_data.trend.db")
    assert len(ours) > 10_000
    theirs = rows(tmp_path / f"{kind}_data.trend.db")
    assert ours.keys() == theirs.keys()
    # Where a few rows of an embedding's gradient outweigh the rest, torch.norm, which msProbe calls and which adds up
    # the squares in float32, is wrong by more than 1e-6; ours are added up in double.
    tied = {key for key in ours if re.search(r"(wte|head)[.\w]*weight", str(key[2]))}
    assert_same({key: ours[key] for key in tied}, {key: theirs[key] for key in tied}, accuracy=1e-5)
    others = ours.keys() - tied
    assert_same({key: ours[key] for key in others}, {key: theirs[key] for key in others})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A fresh virtual environment of a training job, with torch and msProbe, and TrendProbe installed as described."""
    venv = tmp_path_factory.mktemp("readme-venv")
    run(f"'{PACKAGES_PYTHON}' -m venv '{venv}'", venv)
    (site,) = venv.glob("lib/python*/site-packages")
    packages = run(f"""'{PACKAGES_PYTHON}' -c 'import sysconfig; print(sysconfig.get_path("purelib"))'""", venv).strip()
    (site / "packages.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    environment = {**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}
    environment.pop("PYTHONPATH", None)
    if shutil.which("ccache"):
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    for command in INSTALL[1:]:
        run(command, ROOT, environment)
    # Anew, for this environment's own command tensorboard; what it needs is there.
    run(f"{COMMANDS[0]} --ignore-installed --no-deps --constraint '{ROOT / 'ci/requirements.txt'}'", venv, environment)
    return environment


@pytest.mark.skipif(not shutil.which("apt-get"), reason="not a Debian machine")
def test_debian_packages_have_these_names() -> None:
    if os.geteuid() == 0 and not list(Path("/var/lib/apt/lists").glob("*Packages*")):
        run("apt-get update", ROOT)
    for package in INSTALL[0].split()[2:]:
        assert f"Package: {package}\n" in run(f"apt-cache show {package}", ROOT), package


def test_own_job(environment: dict[str, str], tmp_path: Path) -> None:
    """Enable, train, merge shards and files, view."""
    (enabled,) = blocks("json")
    for kind in ("dump", "monitor"):
        config = json.loads((ROOT / f"examples/msprobe_{kind}.json").read_text()) | json.loads(f"{{{enabled}}}")
        if kind == "dump":
            config["dump_path"] = "./dump_path"
        (tmp_path / f"{kind}.json").write_text(json.dumps(config))
    shutil.copy(ROOT / "examples/train_gpt.py", tmp_path / "train.py")
    _, train, merge_shards, merge_files, view = COMMANDS
    flags = "--steps 2 --dump-config dump.json --monitor-config monitor.json"
    job = {**environment, "MONITOR_OUTPUT_DIR": str(tmp_path / "monitor"), "OMP_NUM_THREADS": "1"}
    run(train.replace("…", flags), tmp_path, job)
    summaries = []
    for merge in (merge_files, merge_shards):
        summaries.append(run(merge, tmp_path, environment))
        assert (tmp_path / "trend_db/dump_data.trend.db").exists()
        assert re.search(r"steps +4 \(training steps 0-1\)", summaries[-1])
    process = subprocess.Popen(
        ["bash", "-c", f"exec {view} --port 0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr
        address = next((found[1] for line in process.stderr if (found := re.search(r"at (http://\S+/)", line))), None)
        assert address, "TensorBoard did not start"
        with urllib.request.urlopen(f"{address}data/plugins_listing", timeout=60) as answer:
            plugins = json.load(answer)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
    assert plugins["trendprobe"]["tab_name"] == "TREND ANALYZER"
    assert plugins["trendprobe"]["enabled"]
