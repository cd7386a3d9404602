"""Times merging: `trendprobe merge`, msProbe's own `data2db`, and the parts that no merge can do without.

    python tests/bench/bench_merge.py [--cases dump monitor shards scale memory] [--quick] [--msprobe-share 0.25]

All sides take turns on the same files in one run, so that they share whatever else the machine does. Prints medians of
wall and CPU time, and the largest peak of resident memory (of the largest process, where there are several).

  dump     mix level, 20 steps × 20 ranks, 0.5 GB
  monitor  260,000 rows of 8 ranks
  shards   64 shards of 200,000 records, written by the hook's own writer
  scale    twice and four times the steps, ranks, and targets a file: does time grow with them?
  memory   ten times the dump: 5 GB, which the directory must have room for; ours alone

The floors: "read" reads the same input with the same readers on as many threads and throws it away; "write" writes the
same rows and tiles in the order of their keys.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CASES = ("dump", "monitor", "shards", "scale", "memory")
ROW = "{:26} {:>9} {:>9} {:>9} {:>12} {:>9} {:>9}"
LAYERS = 16
STEPS = 20
RANKS = 20
NONE = float("nan")


@dataclass
class Cost:
    """Of one run of a command: seconds of wall and CPU time, and the peak of resident memory of its largest process."""

    wall: float
    cpu: float
    peak_mib: float


def run(command: Sequence[object], accepted: Sequence[int] = (0,)) -> Cost:
    """Runs a command to its end. This process must stay small: a child's peak begins with its parent's memory."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begin
        if process.returncode not in accepted:
            output.seek(0)
            sys.exit(f"{command} ended with {process.returncode}:\n{output.read().decode(errors='replace')}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def run_floor(command: Sequence[object]) -> Cost:
    """Runs merge_parts, which prints the seconds that count."""
    result = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return Cost(float(result.stdout), NONE, NONE)


def median(costs: Sequence[Cost]) -> Cost:
    """Medians of the times, the largest of the peaks."""
    return Cost(
        statistics.median(cost.wall for cost in costs),
        statistics.median(cost.cpu for cost in costs),
        max(cost.peak_mib for cost in costs),
    )


def in_turn(sides: dict[str, Callable[[], Cost]], rounds: int) -> dict[str, Cost]:
    """Runs all sides in turn, each round beginning with another."""
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            costs[name].append(sides[name]())
    return {name: median(each) for name, each in costs.items()}


def number(value: float, digits: int = 2) -> str:
    """A number for the table; a dash for none."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


class MergeBenchmark:
    """The cases, and the programs and the directory that they use."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._directory = directory

    def run(self, case: str) -> None:
        """Makes the data of a case, runs it and prints its table."""
        getattr(self, f"_run_{case}")()
        shutil.rmtree(self._directory)
        self._directory.mkdir()

    def _run_dump(self) -> None:
        steps = 4 if self._options.quick else STEPS
        data = self._write_input("dump", layers=LAYERS, steps=steps, ranks=RANKS)
        self._compare(data, "dump", steps, lambda path, share: int(path.parts[0][4:]) < share * steps)

    def _run_monitor(self) -> None:
        steps = 3 if self._options.quick else 9
        data = self._write_input("monitor", layers=20, steps=steps, ranks=8)
        self._compare(data, "monitor", steps, lambda path, share: int(path.stem.split("-")[-1]) < share * steps)

    def _run_shards(self) -> None:
        data = self._directory / "shards"
        shards = 8 if self._options.quick else 64
        run([self._options.merge_parts, "shards", data, shards, 100, 1000])
        self._compare(data, "dump", 0, None)

    def _run_scale(self) -> None:
        self._scale("steps", [{"steps": 5 * factor, "ranks": 4, "layers": LAYERS} for factor in (1, 2, 4)])
        self._scale("ranks", [{"steps": 5, "ranks": 4 * factor, "layers": LAYERS} for factor in (1, 2, 4)])
        self._scale("targets a file", [{"steps": 2, "ranks": 2, "layers": 60 * factor} for factor in (1, 2, 4, 8)])

    def _scale(self, axis: str, sizes: Sequence[dict[str, int]]) -> None:
        inputs = [self._write_input("dump", name=f"scale{i}", **size) for i, size in enumerate(sizes)]
        sides: dict[str, Callable[[], Cost]] = {}
        for i, data in enumerate(inputs):
            sides[str(i)] = lambda data=data, i=i: self._merge(data, f"db{i}", "both")
        costs = in_turn(sides, self._options.rounds)
        print(f"\n## More {axis}\n")
        form = "{:>7} {:>7} {:>10} {:>12} {:>9} {:>9} {:>14} {:>9}"
        print(form.format("steps", "ranks", "targets", "records", "wall s", "CPU s", "CPU µs/record", "peak MiB"))
        for i, size in enumerate(sizes):
            records = self._records(f"db{i}", "dump")
            a_file = records // (size["steps"] * size["ranks"])
            cost = costs[str(i)]
            cells = (number(cost.wall), number(cost.cpu), number(cost.cpu / records * 1e6), number(cost.peak_mib, 0))
            print(form.format(size["steps"], size["ranks"], f"{a_file:,}", f"{records:,}", *cells), flush=True)
        for path in (*inputs, *self._directory.glob("db*")):
            shutil.rmtree(path)

    def _run_memory(self) -> None:
        steps = STEPS * (2 if self._options.quick else 10)
        needed = steps * RANKS * 1.6e6
        free = shutil.disk_usage(self._directory).free
        if free < 1.5 * needed:
            print(f"\n## Memory\n\nLeft out: {self._directory} has {free / 1e9:.0f} GB, too few for {needed / 1e9:.0f}")
            return
        data = self._write_input("dump", layers=LAYERS, steps=steps, ranks=RANKS)
        costs = in_turn(
            {layout: lambda layout=layout: self._merge(data, "db", layout) for layout in ("both", "tiles")},
            1,
        )
        self._print_head("Memory", data, self._records("db", "dump"))
        for layout, cost in costs.items():
            self._print_row(f"merge, {layout}", cost, self._records("db", "dump"))

    def _compare(self, data: Path, kind: str, steps: int, keeps: Callable[[Path, float], bool] | None) -> None:
        """Merges `data` with all sides in turn; msProbe can't read what `keeps` is None for."""
        options = self._options
        share = max(1, round(options.msprobe_share * steps)) / steps if steps else 0.0
        for layout in ("both", "tiles"):  # the floors need what they write anew
            self._merge(data, f"db-{layout}", layout)
        records = self._records("db-both", kind)
        sides: dict[str, Callable[[], Cost]] = {
            "merge, both": lambda: self._merge(data, "db-both", "both"),
            "merge, tiles": lambda: self._merge(data, "db-tiles", "tiles"),
            "floor: read": lambda: run_floor([options.merge_parts, "read", data, options.jobs]),
        }
        for layout in ("both", "tiles"):
            database = self._directory / f"db-{layout}" / f"{kind}_data.trend.db"
            command = [options.merge_parts, "write", database, self._directory / "again.db"]
            sides[f"floor: write, {layout}"] = lambda command=command: run_floor(command)
        if keeps is not None and options.msprobe:
            part = data
            if share < 1:
                part = self._directory / "part"
                for file in data.rglob("*"):
                    if file.is_file() and keeps(file.relative_to(data), share):
                        target = part / file.relative_to(data)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        os.link(file, target)
            sides["msProbe"] = lambda: self._msprobe(part)
        costs = in_turn(sides, options.rounds)
        if "msProbe" in costs and share < 1:
            start = run([options.msprobe, "data2db", "--help"]).wall
            whole = costs["msProbe"]
            whole.wall = start + (whole.wall - start) / share
            whole.cpu = start + (whole.cpu - start) / share
        remark = ""
        if "msProbe" in costs and share < 1:
            remark = f"; msProbe read {share:.0%} of the steps, its times but its start of {start:.1f} s are scaled up"
        self._print_head(data.name, data, records, remark)
        floor = {
            layout: max(costs["floor: read"].wall, costs[f"floor: write, {layout}"].wall)
            for layout in ("both", "tiles")
        }
        for name, cost in costs.items():
            layout = name.rpartition(" ")[2]
            theirs = (
                costs["msProbe"].wall / cost.wall if name.startswith("merge") and "msProbe" in costs else float("nan")
            )
            ours = cost.wall / floor[layout] if name.startswith("merge") else float("nan")
            self._print_row(name, cost, records, theirs, ours)

    def _print_head(self, title: str, data: Path, records: int, remark: str = "") -> None:
        files = [file for file in data.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files) / 1e6
        print(f"\n## {title}: {len(files):,} files, {size:,.0f} MB, {records:,} records{remark}\n")
        print(ROW.format("", "wall s", "CPU s", "peak MiB", "records/s", "msProbe/", "× floor"))

    @staticmethod
    def _print_row(
        name: str, cost: Cost, records: int, theirs: float = float("nan"), ours: float = float("nan")
    ) -> None:
        cells = (number(cost.wall), number(cost.cpu), number(cost.peak_mib, 0), number(records / cost.wall, 0))
        print(ROW.format(name, *cells, number(theirs, 1), number(ours)), flush=True)

    def _write_input(self, kind: str, name: str | None = None, **size: int) -> Path:
        target = self._directory / (name or kind)
        arguments = [f"--{key}={value}" for key, value in size.items()]
        run([sys.executable, Path(__file__).with_name("merge_input.py"), kind, target, *arguments])
        return target

    def _merge(self, data: Path, database: str, layout: str) -> Cost:
        options = self._options
        target = self._directory / database
        shutil.rmtree(target, ignore_errors=True)
        arguments = ("--data", data, "--db", target, "--layout", layout, "--jobs", options.jobs, "--quiet")
        return run([options.trendprobe, "merge", *arguments])

    def _msprobe(self, data: Path) -> Cost:
        target = self._directory / "db-msprobe"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        return run([self._options.msprobe, "data2db", "--data", data, "--db", target])

    def _records(self, database: str, kind: str) -> int:
        path = self._directory / database / f"{kind}_data.trend.db"
        with sqlite3.connect(path) as connection:
            (records,) = connection.execute("SELECT value FROM trendprobe_info WHERE key='records'").fetchone()
        return int(records)


def program(name: str, *places: Path) -> str | None:
    """A program beside this Python, in one of the places, or on the path."""
    for place in (Path(sys.executable).parent, *places):
        if (place / name).exists():
            return str(place / name)
    return shutil.which(name)


def main() -> None:
    """Prints the tables."""
    build = Path(__file__).parents[2] / "build" / "ci"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES[:-1])
    parser.add_argument("--quick", action="store_true", help="a fifth of the data, once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--msprobe-share", type=float, default=1.0, help="the part of the steps that msProbe gets")
    parser.add_argument("--directory", type=Path, help="where the data is made and removed (default: a temporary one)")
    parser.add_argument(
        "--trendprobe", default=os.environ.get("TRENDPROBE") or program("trendprobe", build / "offline")
    )
    parser.add_argument("--merge-parts", default=str(build / "tests" / "merge_parts"))
    parser.add_argument("--msprobe", default=program("msprobe"), help="the command; empty = leave msProbe out")
    options = parser.parse_args()
    if options.rounds < 1 or options.jobs < 1 or not 0 < options.msprobe_share <= 1:
        parser.error("rounds and jobs are at least 1, the share is above 0 and at most 1")
    if options.quick:
        options.rounds = 1
    print(f"{options.jobs} threads, medians of {options.rounds} rounds, load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory(prefix="trendprobe-bench-", dir=options.directory) as directory:
        inner = Path(directory, "case")
        inner.mkdir()
        benchmark = MergeBenchmark(options, inner)
        for case in options.cases:
            benchmark.run(case)


if __name__ == "__main__":
    main()
