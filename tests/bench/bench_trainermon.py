"""Times what monitoring adds to a training step: msProbe's TrainerMon alone, and with TrendProbe in place of its files.

    python tests/bench/bench_trainermon.py [--steps 20] [--threads 2]

Trains the same GPT three times, plain, under TrainerMon with all metrics on, and the same with TrendProbe attached,
each in a process of its own. The three take turns, a step each, so that they share whatever else the machine does.
Prints medians over the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from training_turns import Turns, serve_steps

SIDES = ("plain", "msprobe", "trendprobe")
WARM_UP_STEPS = 3


def training_step(side: str, threads: int) -> Callable[[], float]:
    """Prepares one side in the working directory; the function trains a step and returns its loss."""
    import torch
    from gpt import Training

    torch.set_num_threads(threads)
    training = Training()
    if side == "plain":
        return training.step
    config: dict[str, object] = {
        "targets": {},
        "format": "csv",
        "ops": ["norm", "min", "max", "mean", "zeros", "nans"],
        "all_xy": True,
        "xy_distribution": True,
        "wg_distribution": True,
        "mv_distribution": True,
        "param_distribution": True,
        "mg_direction": True,
    }
    if side == "trendprobe":
        import trendprobe

        config["trend_db"] = {"enable": True, "path": "written/trend", "keep_files": False}
        trendprobe.enable()
    Path("monitor.json").write_text(json.dumps(config))
    Path("written").mkdir()
    os.environ["MONITOR_OUTPUT_DIR"] = "written/monitor"
    from msprobe.pytorch import TrainerMon

    monitor = TrainerMon("monitor.json", params_have_main_grad=False)
    monitor.set_monitor(training.model, training.optimizer)
    return training.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch (default: %(default)s)")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_steps(lambda: training_step(arguments.serve, arguments.threads))
        return
    with tempfile.TemporaryDirectory() as directory:
        options = ["--threads", str(arguments.threads)]
        turns = Turns(__file__, {side: ["--serve", side, *options] for side in SIDES}, Path(directory))
        for _ in range(WARM_UP_STEPS + arguments.steps):
            turns.step()
        written = turns.end("written")
    if turns.losses["trendprobe"] != turns.losses["msprobe"]:
        raise RuntimeError("the losses with TrendProbe are not those of msProbe alone")
    medians = {side: statistics.median(turns.milliseconds[side][WARM_UP_STEPS:]) for side in SIDES}
    added = {side: medians[side] - medians["plain"] for side in SIDES}
    row = "{:12} {:>10} {:>10} {:>14} {:>10}"
    print(row.format("TrainerMon", "ms a step", "added ms", "of msProbe's", "kB a step"))
    for side in SIDES:
        share = f"{added[side] / added['msprobe']:.3f}" if side != "plain" else ""
        kilobytes = written[side] / 1000 / (WARM_UP_STEPS + arguments.steps)
        print(row.format(side, f"{medians[side]:.1f}", f"{added[side]:.1f}", share, f"{kilobytes:.1f}"))


if __name__ == "__main__":
    main()
