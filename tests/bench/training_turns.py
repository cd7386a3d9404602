"""Trainings in processes of their own that take turns, a step each: nothing of one is patched by another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def serve_steps(prepare: Callable[[], Callable[[], float]]) -> None:
    """In the process of a training: a step for each line that comes in, its milliseconds and loss in answer.

    ``prepare`` returns the function that trains one step and returns its loss. What the training prints is dropped.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    step = prepare()
    print("ready", file=answers)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = step()
        print((time.perf_counter() - begin) * 1000, loss.hex(), file=answers)


class Turns:
    """Starts one process a side, ``script`` with the side's arguments, each in a folder of its own in ``directory``."""

    def __init__(self, script: str, sides: dict[str, list[str]], directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.milliseconds: dict[str, list[float]] = {side: [] for side in sides}
        self.losses: dict[str, list[str]] = {side: [] for side in sides}
        for side, arguments in sides.items():
            (directory / side).mkdir()
            with open(directory / f"{side}.log", "w") as log:
                self._processes[side] = subprocess.Popen(
                    [sys.executable, os.path.abspath(script), *arguments],
                    cwd=directory / side,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            self._answer(side)

    def _answer(self, side: str) -> list[str]:
        output = self._processes[side].stdout
        assert output
        line = output.readline()
        if not line:
            raise RuntimeError(f"{side} ended:\n{(self._directory / f'{side}.log').read_text()}")
        return line.split()

    def step(self) -> None:
        """Lets every side train one step, one after the other."""
        for side, process in self._processes.items():
            assert process.stdin
            print(file=process.stdin, flush=True)
            milliseconds, loss = self._answer(side)
            self.milliseconds[side].append(float(milliseconds))
            self.losses[side].append(loss)

    def end(self, written: str) -> dict[str, int]:
        """Ends the trainings; how many bytes are in each one's folder ``written``."""
        sizes = {}
        for side, process in self._processes.items():
            process.communicate()
            if process.returncode:
                raise RuntimeError(f"{side} ended:\n{(self._directory / f'{side}.log').read_text()}")
            files = (self._directory / side / written).rglob("*")
            sizes[side] = sum(path.stat().st_size for path in files if path.is_file())
        return sizes
