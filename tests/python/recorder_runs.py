"""Scripts that record, in processes of their own, for the tests of the recorder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

RECORDS = 20
"""Of a step of the scripts that begin with BEGIN."""


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


def shards(directory: Path) -> list[Path]:
    return sorted((directory / "trend").glob("*.shard"))
