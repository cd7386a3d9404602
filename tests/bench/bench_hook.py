"""Times what msProbe's dump adds to a training step: alone, and with TrendProbe in place of its files.

    python tests/bench/bench_hook.py [--steps 20] [--cases l0 mix]

Trains the same GPT three times, plain, under msProbe's PrecisionDebugger, and the same with TrendProbe attached, each
in a process of its own. The three take turns, a step each, so that they share whatever else the machine does. Prints
medians over the steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from training_turns import Turns, serve_steps

SIDES = ("plain", "msprobe", "trendprobe")
CASES = {"l0": "L0", "mix": "mix"}
WARM_UP_STEPS = 3


def training_step(side: str, case: str) -> Callable[[], float]:
    """Prepares one side in the working directory; the function trains a step and returns its loss."""
    import torch
    from gpt import Training

    torch.set_num_threads(2)
    training = Training()
    if side == "plain":
        return training.step
    config: dict[str, object] = {
        "task": "statistics",
        "dump_path": "dump",
        "level": CASES[case],
        "statistics": {"data_mode": ["all"], "summary_mode": "statistics"},
    }
    if side == "trendprobe":
        import trendprobe

        config["trend_db"] = {"enable": True, "path": "dump/trend", "keep_files": False}
        trendprobe.enable()
    from msprobe.pytorch import PrecisionDebugger

    Path("config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(config_path="config.json")

    def step() -> float:
        debugger.start(training.model)
        loss = training.step()
        debugger.stop()
        debugger.step()
        return loss

    return step


def compare(case: str, steps: int) -> None:
    """Prints one table."""
    with tempfile.TemporaryDirectory() as directory:
        turns = Turns(__file__, {side: ["--serve", side, case] for side in SIDES}, Path(directory))
        for _ in range(WARM_UP_STEPS + steps):
            turns.step()
        written = turns.end("dump")
    if len({tuple(losses) for losses in turns.losses.values()}) > 1 and (
        turns.losses["trendprobe"] != turns.losses["msprobe"]
    ):
        raise RuntimeError("the losses with TrendProbe are not those of msProbe alone")
    medians = {side: statistics.median(turns.milliseconds[side][WARM_UP_STEPS:]) for side in SIDES}
    added = {side: medians[side] - medians["plain"] for side in SIDES}
    row = "{:12} {:>10} {:>10} {:>14} {:>10}"
    print(row.format(case, "ms a step", "added ms", "of msProbe's", "kB a step"))
    for side in SIDES:
        share = f"{added[side] / added['msprobe']:.3f}" if side != "plain" else ""
        kilobytes = written[side] / 1000 / (WARM_UP_STEPS + steps)
        print(row.format(side, f"{medians[side]:.1f}", f"{added[side]:.1f}", share, f"{kilobytes:.1f}"))
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_steps(lambda: training_step(*arguments.serve))
        return
    for case in arguments.cases:
        compare(case, arguments.steps)


if __name__ == "__main__":
    main()
