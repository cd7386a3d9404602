"""A training under the real msProbe that is recorded: late ranks, several debuggers and models, Python's shutdown."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from recorder_runs import STEPS, TRAINING, run, shards

pytest.importorskip("msprobe")


def test_a_rank_that_is_known_late(tmp_path: Path, trendprobe: Callable) -> None:
    """Two processes that make their process group after their second step; nothing of the first two is lost."""
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
    "modules gone before": ("", "for name in list(sys.modules):\n    if 'trendprobe' in name: del sys.modules[name]\n"),
}


@pytest.mark.parametrize(("first", "last"), SHUTDOWN.values(), ids=SHUTDOWN)
def test_the_order_of_pythons_shutdown_harms_nothing(first: str, last: str, tmp_path: Path, steps_of: Callable) -> None:
    """What still trains or lives while Python takes itself apart neither crashes nor loses what was recorded."""
    # Torch by itself aborts where a daemon thread is in a backward pass when Python ends.
    may_abort = "daemon" in last
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
        code=None if may_abort else 0,
    )
    if not may_abort:
        assert "TrendProbe" not in text and "site-packages/trendprobe" not in text and "Fatal" not in text
    found = steps_of(code=None if may_abort else 0)
    assert set(range(STEPS)) <= found.keys()
    assert len({found[step] for step in range(STEPS)}) == 1
