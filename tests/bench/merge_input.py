"""Writes dump and monitor trees of any size, made from trees that the real msProbe wrote (tests/data).

    python tests/bench/merge_input.py dump DIRECTORY --layers 15 --steps 20 --ranks 20
    python tests/bench/merge_input.py monitor DIRECTORY --layers 20 --steps 10 --ranks 8

The model's last layer is repeated until there are as many as asked for; what its layers have in common stays as it is.
Each file gets numbers of its own: the real ones times random factors, written as msProbe writes them. Everything else
in the files, names, order, types, shapes, is msProbe's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data"
DUMP_TREES = {"mix": "pt_mix_proc", "L0": "pt_L0_ddp2"}
MONITOR_TREE = "mon_full_1rank"
LAYER = re.compile(r"\blayers\.(\d+)\b")
API_CALL = re.compile(r"^(?!Module\.)(.*)\.(\d+)(\.(?:forward|backward))$")
STATISTICS = {"Max", "Min", "Mean", "Norm"}
PLACE = "@number@"
MONITOR_NUMBERS = {"norm", "min", "max", "mean", "zeros", "id"}


class NumberedText:
    """A text with places for floating-point numbers."""

    def __init__(self, parts: list[str], numbers: list[float]) -> None:
        assert len(parts) == len(numbers) + 1
        self.parts = parts
        self.numbers = np.array(numbers)

    def with_numbers(self, numbers: np.ndarray) -> str:
        """The text with other numbers, in the shortest form that reads back the same (Python's, and so msProbe's)."""
        texts = map(repr, numbers.tolist())
        return "".join(itertools.chain.from_iterable(zip(self.parts, texts, strict=False))) + self.parts[-1]


def unpack(name: str, directory: str) -> Path:
    """One of the trees under tests/data."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return Path(directory, name, "data")


def layer_of(name: str) -> int | None:
    """The number of the model's layer that a name belongs to, if any."""
    found = LAYER.search(name)
    return int(found[1]) if found else None


class DumpTree:
    """dump.json and construct.json of one step, with more layers."""

    def __init__(self, directory: Path, layers: int) -> None:
        dump = json.loads((directory / "dump.json").read_text())
        construct: dict[str, str | None] = json.loads((directory / "construct.json").read_text())
        self._construct = construct
        self._last = max(layer for layer in map(layer_of, construct) if layer is not None)
        self._copies = range(max(1, layers - self._last))
        self._calls: dict[tuple[str, str, int], int] = {}  # (API, its number, copy): the number in the larger model
        self._next_call: dict[str, int] = defaultdict(int)

        # Both files in one order of calls: an API's number in the larger model is that of its first appearance.
        data = {self._renamed(name, copy): dump["data"][name] for name, copy in self._repeated(dump["data"])}
        nodes = {}
        for name, copy in self._repeated(construct):
            parent = construct[name]
            nodes[self._renamed(name, copy)] = parent if parent is None else self._renamed(parent, copy)
        self.construct = json.dumps(nodes, indent=1)
        numbers: list[float] = []
        text = json.dumps({**dump, "data": _without_numbers(data, numbers)}, indent=1)
        self.dump = NumberedText(text.split(f'"{PLACE}"'), numbers)

    def _repeats(self, name: str) -> bool:
        """Whether the name is of the last layer: a module in it, or an API that one of its modules calls."""
        seen: str | None = name
        while seen is not None and not seen.startswith("Module."):
            seen = self._construct.get(seen)
        return seen is not None and layer_of(seen) == self._last

    def _repeated(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
        """The names with their copies: each run through the last layer comes once a copy, backwards from the end."""
        for repeats, group in itertools.groupby(names, self._repeats):
            run = list(group)
            if not repeats:
                yield from ((name, 0) for name in run)
                continue
            backwards = any(".backward" in name for name in run)
            for copy in reversed(self._copies) if backwards else self._copies:
                yield from ((name, copy) for name in run)

    def _renamed(self, name: str, copy: int) -> str:
        if not self._repeats(name):
            copy = 0
        api = API_CALL.match(name)
        if api is None:
            return name if copy == 0 else LAYER.sub(f"layers.{self._last + copy}", name)
        key = (api[1], api[2], copy)
        if key not in self._calls:
            self._calls[key] = self._next_call[api[1]]
            self._next_call[api[1]] += 1
        return f"{api[1]}.{self._calls[key]}{api[3]}"


def _without_numbers(value: object, numbers: list[float]) -> object:
    """The value with PLACE for each finite floating-point statistic, which goes to `numbers`."""
    if isinstance(value, list):
        return [_without_numbers(element, numbers) for element in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, object] = {}
    for key, member in value.items():
        if key in STATISTICS and isinstance(member, float) and np.isfinite(member):
            numbers.append(member)
            result[key] = PLACE
        else:
            result[key] = _without_numbers(member, numbers)
    return result


def write_dump(directory: Path, level: str, layers: int, steps: int, ranks: int) -> None:
    """Writes step<N>/rank<R>/{dump,construct}.json."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as unpacked:
        source = sorted(unpack(DUMP_TREES[level], unpacked).glob("step1/*"))[0]
        tree = DumpTree(source, layers)
    for step in range(steps):
        for rank in range(ranks):
            target = directory / f"step{step}" / f"rank{rank}"
            target.mkdir(parents=True)
            # The statistics of a float32 tensor are float32 numbers.
            factors = random.normal(1, 0.2, len(tree.dump.numbers))
            numbers = (tree.dump.numbers * factors).astype(np.float32).astype(np.float64)
            (target / "dump.json").write_text(tree.dump.with_numbers(numbers))
            (target / "construct.json").write_text(tree.construct)


def monitor_text(file: Path, layers: int) -> NumberedText:
    """A CSV file with more layers and places for the numbers, the step among them."""
    header, *rows = file.read_text().splitlines(keepends=True)
    columns = header.rstrip("\n").split(",")
    unquoted = columns.index("shape")
    name, step = columns.index("name"), columns.index("step")
    is_number = [column in MONITOR_NUMBERS for column in columns[:unquoted]]
    last = max((layer for layer in map(layer_of, rows) if layer is not None), default=-1)
    numbers: list[float] = []
    text = [header]
    for repeats, group in itertools.groupby(rows, lambda row: layer_of(row) == last):
        run = [row.split(",", unquoted) for row in group]
        for copy in range(max(1, layers - last) if repeats else 1):
            for cells in run:
                copied = list(cells)
                copied[step] = "@step@"
                if repeats:
                    copied[name] = LAYER.sub(f"layers.{last + copy}", cells[name])
                for i, cell in enumerate(cells[:unquoted]):
                    if is_number[i] and i != step and ("." in cell or "e" in cell):
                        numbers.append(float(cell))
                        copied[i] = PLACE
                text.append(",".join(copied))
    return NumberedText("".join(text).split(PLACE), numbers)


def write_monitor(directory: Path, layers: int, steps: int, ranks: int) -> None:
    """Writes <time>-rank<R>-<id>/<metric>_<step>-<step>.csv."""
    random = np.random.default_rng(0)
    texts: list[dict[str, NumberedText]] = []  # of the first step and of any later one
    with tempfile.TemporaryDirectory() as unpacked:
        source = next(unpack(MONITOR_TREE, unpacked).iterdir())
        for step in range(2):
            files = source.glob(f"*_{step}-{step}.csv")
            texts.append({file.name.rsplit("_", 1)[0]: monitor_text(file, layers) for file in sorted(files)})
    for rank in range(ranks):
        target = directory / f"Dec01_22-40-19-rank{rank}-{rank:08x}"
        target.mkdir(parents=True)
        for step in range(steps):
            for metric, text in texts[min(step, 1)].items():
                # msProbe rounds to 12 digits behind the point.
                numbers = np.round(text.numbers * random.normal(1, 0.2, len(text.numbers)), 12)
                content = text.with_numbers(numbers).replace("@step@", str(step))
                (target / f"{metric}_{step}-{step}.csv").write_text(content)


def main() -> None:
    """Writes what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("dump", "monitor"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--level", choices=sorted(DUMP_TREES), default="mix", help="of the dump")
    parser.add_argument("--layers", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=20)
    options = parser.parse_args()
    if options.kind == "dump":
        write_dump(options.directory, options.level, options.layers, options.steps, options.ranks)
    else:
        write_monitor(options.directory, options.layers, options.steps, options.ranks)


if __name__ == "__main__":
    main()
