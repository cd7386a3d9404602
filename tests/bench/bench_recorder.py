"""Times the recorder alone: a record in the training thread, the writer thread, a commit, and memory.

    python tests/bench/bench_recorder.py [--records 2000] [--rounds 5] [--directory DIR]

Its C++ path, without Python and torch: the hooks' way from values to a shard. All measurements take turns, each in a
process of its own, so that they share whatever else the machine does. Prints medians over the rounds, and their range.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

ROW = "{:44} {:>10} {:>21} {:>12}"
# Name, measurement, its steps and arguments, which of the numbers it prints, goal.
LINES = (
    ("a record in the training thread, at rest, ns", "producer", 400, (), 0, "<= 300"),
    ("  while the step before is written, ns", "producer", 400, (), 1, "<= 300"),
    ("writer thread, records/s", "writer", 500, (), 0, ">= 1,000,000"),
    ("commit of a step, durability process, ms", "commit", 200, ("process",), 0, "< 5"),
    ("  floor: write() of the same bytes, ms", "commit", 200, ("process",), 1, ""),
    ("commit of a step, durability step, ms", "commit", 200, ("step",), 0, "< 5"),
    ("  floor: write() and fdatasync(), ms", "commit", 200, ("step",), 1, ""),
    ("memory, steps faster than the writer, MiB", "memory", 3000, (), 0, "<= 64"),
)


def measure(parts: str, directory: Path, what: str, steps: int, records: int, *arguments: str) -> list[float]:
    """Runs one measurement in an empty directory; the numbers that it prints."""
    place = Path(tempfile.mkdtemp(dir=directory))
    try:
        command = [parts, what, str(place / "trend"), str(steps), str(records), *arguments]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        return [float(number) for number in output.split()]
    finally:
        shutil.rmtree(place)


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    build = Path(__file__).parents[2] / "build/ci"
    parser.add_argument("--recorder-parts", default=str(build / "tests" / "recorder_parts"))
    parser.add_argument("--records", type=int, default=2000, help="records of a step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="where shards are written (default: TMPDIR)")
    options = parser.parse_args()
    if options.records < 4 or options.rounds < 1:
        parser.error("there are at least 4 records and 1 round")

    found: dict[tuple[object, ...], list[list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for _ in range(options.rounds):
            for what, steps, arguments in dict.fromkeys(line[1:4] for line in LINES):
                found.setdefault((what, *arguments), []).append(
                    measure(options.recorder_parts, Path(directory), what, steps, options.records, *arguments)
                )
    print(f"steps of {options.records:,} records; medians of {options.rounds} rounds\n")
    print(ROW.format("", "median", "range", "goal"))
    for name, what, _, arguments, index, goal in LINES:
        values = [numbers[index] for numbers in found[(what, *arguments)]]
        print(
            ROW.format(name, number(statistics.median(values)), f"{number(min(values))} .. {number(max(values))}", goal)
        )


if __name__ == "__main__":
    main()
