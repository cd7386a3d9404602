"""Starts monitored_training.py: its sides and ranks at the same time, each run in a directory of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("monitored_training.py")


class MonitoredRun:
    """A run under way; `attached`: with TrendProbe."""

    def __init__(
        self, directory: Path, config: dict[str, Any], *, version: int, ranks: int, micro_batches: int, attached: bool
    ) -> None:
        self.directory = directory
        self.ranks = ranks
        (directory / "out").mkdir(parents=True)  # msProbe makes only what is in it
        (directory / "monitor.json").write_text(json.dumps(config))
        launcher = ["-m", "trendprobe.run"] if attached else []
        arguments = ["monitor.json", str(version), str(micro_batches)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, *launcher, SCRIPT, *arguments, str(rank), str(ranks), directory / "store"],
                cwd=directory,
                env={**os.environ, "MONITOR_OUTPUT_DIR": str(directory / "monitor"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(ranks)
        ]

    def wait(self) -> None:
        """Until it has ended; fails where it failed."""
        self.output = [process.communicate(timeout=300)[0] for process in self._processes]
        for process, output in zip(self._processes, self.output, strict=True):
            assert process.returncode == 0, output

    def result(self, rank: int) -> dict[str, Any]:
        return json.loads((self.directory / f"result{rank}.json").read_text())
