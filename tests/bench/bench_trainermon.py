"""Times what monitoring adds to a training step: msProbe's TrainerMon alone, and with TrendProbe attached.

    python tests/bench/bench_trainermon.py [--steps 20] [--threads 2]

Trains the same GPT three times, plain, under TrainerMon with all metrics on, and the same with TrendProbe in place of
its files, each in a process of its own. The three take turns, a step each, so that they share whatever else the machine
does. Prints medians over the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDES = ("plain", "msprobe", "trendprobe")
WARM_UP_STEPS = 3
OPERATIONS = ["norm", "min", "max", "mean", "zeros", "nans"]


def config(side: str) -> dict[str, object]:
    """TrainerMon's configuration with every metric."""
    found: dict[str, object] = {
        "targets": {},
        "format": "csv",
        "ops": OPERATIONS,
        "all_xy": True,
        "xy_distribution": True,
        "wg_distribution": True,
        "mv_distribution": True,
        "param_distribution": True,
        "mg_direction": True,
    }
    if side == "trendprobe":
        found["trend_db"] = {"enable": True, "path": "trend", "keep_files": False}
    return found


def train(side: str, threads: int) -> None:
    """One side: a step for each line read, its milliseconds and loss written."""
    import torch
    from gpt import Training

    torch.set_num_threads(threads)
    training = Training()
    if side != "plain":
        import trendprobe
        from msprobe.pytorch import TrainerMon

        if side == "trendprobe":
            trendprobe.enable()
        Path("monitor.json").write_text(json.dumps(config(side)))
        monitor = TrainerMon("monitor.json", params_have_main_grad=False)
        monitor.set_monitor(training.model, training.optimizer)
    print("ready", file=sys.stderr, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = training.step()
        print((time.perf_counter() - begin) * 1000, loss, file=sys.stderr, flush=True)


class Side:
    """The process of one side."""

    def __init__(self, name: str, directory: Path, threads: int) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--side", name, "--threads", str(threads)],
            cwd=self.directory,
            env={**os.environ, "MONITOR_OUTPUT_DIR": str(self.directory / "monitor"), "OMP_NUM_THREADS": str(threads)},
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

    def step(self) -> tuple[float, float]:
        """Milliseconds and loss of the next training step."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        while True:
            line = self._read()
            try:
                milliseconds, loss = map(float, line.split())
            except ValueError:
                if not line:
                    raise RuntimeError(f"{self.directory.name} ended") from None
            else:
                return milliseconds, loss

    def end(self) -> int:
        """Bytes that it has written."""
        self._process.communicate()
        files = [path for path in self.directory.rglob("*") if path.is_file() and path.name != "monitor.json"]
        return sum(path.stat().st_size for path in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch (default: %(default)s)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        train(arguments.side, arguments.threads)
        return
    with tempfile.TemporaryDirectory() as directory:
        sides = {name: Side(name, Path(directory), arguments.threads) for name in SIDES}
        timings: dict[str, list[float]] = {name: [] for name in SIDES}
        losses: dict[str, list[float]] = {name: [] for name in SIDES}
        for _ in range(WARM_UP_STEPS + arguments.steps):
            for name, side in sides.items():
                milliseconds, loss = side.step()
                timings[name].append(milliseconds)
                losses[name].append(loss)
        written = {name: side.end() for name, side in sides.items()}
    if losses["trendprobe"] != losses["msprobe"]:
        raise RuntimeError("the losses with TrendProbe are not those of msProbe alone")
    medians = {name: statistics.median(timings[name][WARM_UP_STEPS:]) for name in SIDES}
    added = {name: medians[name] - medians["plain"] for name in SIDES}
    row = "{:12} {:>10} {:>10} {:>12} {:>10}"
    print(row.format("", "ms a step", "added ms", "of msProbe's", "kB a step"))
    for name in SIDES:
        share = f"{added[name] / added['msprobe']:.3f}" if name != "plain" else ""
        kilobytes = written[name] / 1000 / (WARM_UP_STEPS + arguments.steps)
        print(row.format(name, f"{medians[name]:.1f}", f"{added[name]:.1f}", share, f"{kilobytes:.1f}"))


if __name__ == "__main__":
    main()
