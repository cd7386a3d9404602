"""Times what recording the L0 data adds to a training step: msProbe's L0 dump and trendprobe.Monitor.

    python tests/bench/bench_monitor.py [--steps 20] [--threads N]

Trains the same GPT in a process for each side, and the sides take turns, a step each, so that they share whatever else
the machine does: plain, under msProbe's PrecisionDebugger, and under trendprobe.Monitor (without an optimizer: the same
data). A fourth process gives the floor: it reads tensors of the same number and shapes once, with the statistics kernel
alone. Prints medians over the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDES = ("plain", "msprobe", "monitor", "floor")
WARM_UP_STEPS = 3


def recorded_tensors(model: Any, step: Callable[[], float]) -> list[Any]:
    """Tensors of the shapes that a step's records come from, in memory of their own."""
    tensors: list[Any] = []
    handles = []

    def keep(_module: Any, arguments: Any, output: Any) -> None:
        with_gradient = [tensor for tensor in arguments if tensor.requires_grad]
        for tensor in (*arguments, output, output, *with_gradient):
            tensors.append(tensor.detach().clone())

    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_hook(keep))
            tensors += [parameter.detach() for parameter in module.parameters(recurse=False)]
            tensors += [parameter.detach().clone() for parameter in module.parameters(recurse=False)]
    step()
    for handle in handles:
        handle.remove()
    return tensors


def train(side: str, threads: int) -> None:
    """One side: a step for each line read, its milliseconds, loss and measured tensors written."""
    import torch
    from gpt import Training

    torch.set_num_threads(threads)
    training = Training()
    step = training.step
    if side == "msprobe":
        from msprobe.pytorch import PrecisionDebugger

        config = {
            "task": "statistics",
            "dump_path": "dump",
            "rank": [],
            "step": [],
            "level": "L0",
            "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
        }
        Path("config.json").write_text(json.dumps(config))
        debugger = PrecisionDebugger(config_path="config.json")

        def step() -> float:
            debugger.start(training.model)
            loss = training.step()
            debugger.stop()
            debugger.step()
            return loss
    elif side == "monitor":
        from trendprobe import Monitor

        monitor = Monitor(training.model, path="trend")

        def step() -> float:
            loss = training.step()
            monitor.step()
            return loss
    elif side == "floor":
        from trendprobe._tensor_stats import measure

        tensors = recorded_tensors(training.model, training.step)

        def step() -> float:
            for tensor in tensors:
                measure(tensor)
            return 0.0

    print("ready", file=sys.stderr, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = step()
        milliseconds = (time.perf_counter() - begin) * 1000
        cost = monitor.cost() if side == "monitor" else None
        count = cost.tensors if cost else len(tensors) if side == "floor" else 0
        print(milliseconds, loss, count, cost.seconds * 1000 if cost else 0, file=sys.stderr, flush=True)
    if side == "monitor":
        monitor.close()


class Side:
    """The process of one side."""

    def __init__(self, name: str, directory: Path, threads: int) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--side", name, "--threads", str(threads)],
            cwd=self.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while (line := self._read()) != "ready\n":
            if not line:
                raise RuntimeError(f"{name} ended with code {self._process.wait()}")

    def _read(self) -> str:
        assert self._process.stderr
        return self._process.stderr.readline()

    def step(self) -> tuple[float, float, float, float]:
        """Milliseconds, loss, measured tensors and own milliseconds of the next training step."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        while True:
            line = self._read()
            try:
                milliseconds, loss, count, own = map(float, line.split())
            except ValueError:
                if not line:
                    raise RuntimeError(f"{self.directory.name} ended") from None
            else:
                return milliseconds, loss, count, own

    def end(self) -> int:
        """Bytes that it has written."""
        self._process.communicate()
        files = [path for path in self.directory.rglob("*") if path.is_file() and path.name != "config.json"]
        return sum(path.stat().st_size for path in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        train(arguments.side, arguments.threads)
        return
    with tempfile.TemporaryDirectory() as directory:
        sides = {name: Side(name, Path(directory), arguments.threads) for name in SIDES}
        results: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in SIDES}
        order = random.Random(1)  # whoever comes after another finds its caches as that one left them
        for _ in range(WARM_UP_STEPS + arguments.steps):
            for name in order.sample(SIDES, len(SIDES)):
                results[name].append(sides[name].step())
        written = {name: side.end() for name, side in sides.items()}
    if [row[1] for row in results["monitor"]] != [row[1] for row in results["plain"]]:
        raise RuntimeError("the losses with trendprobe.Monitor are not those of the plain training")
    medians = {name: statistics.median(row[0] for row in results[name][WARM_UP_STEPS:]) for name in SIDES}
    added = {name: medians[name] - medians["plain"] for name in SIDES}
    added["floor"] = medians["floor"]
    line = "{:10} {:>10} {:>10} {:>12} {:>10} {:>10} {:>9}"
    print(line.format("", "ms a step", "added ms", "of msProbe's", "of floor", "kB a step", "tensors"))
    for name in SIDES:
        print(
            line.format(
                name,
                f"{medians[name]:.1f}" if name != "floor" else "",
                f"{added[name]:.1f}" if name != "plain" else "",
                f"{added[name] / added['msprobe']:.3f}" if name != "plain" else "",
                f"{added[name] / added['floor']:.2f}" if name != "plain" else "",
                f"{written[name] / 1000 / len(results[name]):.1f}",
                f"{results[name][-1][2]:.0f}" if results[name][-1][2] else "",
            )
        )
    own = statistics.median(row[3] for row in results["monitor"][WARM_UP_STEPS:])
    print(f"the Monitor's own count of its cost: {own:.1f} ms a step")


if __name__ == "__main__":
    main()
