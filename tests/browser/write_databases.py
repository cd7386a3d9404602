"""Writes the databases that the browser tests look at, with the Python writer of tests/python.

usage: write_databases.py DIRECTORY [--large RANKS MODULES STEPS]

What is in them is plain enough that a test can say by itself what the page must show: see `small()`. --large adds
large.trend.db, for measuring and for looking at.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from trend_database_files import MISSING, MetricValues, TrendContents, write_msprobe, write_trendprobe


def gpt_names(layers: int) -> list[str]:
    """The tensors of a GPT in network order, as msProbe calls them."""
    block = (
        ("ln_1.LayerNorm", "output.0"),
        ("attn.c_attn.Linear", "input.0"),
        ("attn.c_attn.Linear", "output.0"),
        ("attn.c_proj.Linear", "output.0"),
        ("attn.CausalSelfAttention", "output.0"),
        ("ln_2.LayerNorm", "output.0"),
        ("mlp.c_fc.Linear", "output.0"),
        ("mlp.gelu.GELU", "output.0"),
        ("mlp.c_proj.Linear", "output.0"),
        ("mlp.MLP", "output.0"),
    )
    names = ["Module.module.transformer.wte.Embedding.output.0", "Module.module.transformer.wpe.Embedding.output.0"]
    for layer in range(layers):
        names += [f"Module.module.transformer.h.{layer}.{path}.{tensor}" for path, tensor in block]
    return [*names, "Module.module.transformer.ln_f.LayerNorm.output.0", "Module.module.lm_head.Linear.output.0"]


def small() -> TrendContents:
    """Make 2 ranks, 64 modules, 16 steps.

    forward: norm = 1 + module / 10 + rank / 100 + step / 1000, but for module 5: NaN on rank 1 from step 4 on;
    module 7: +infinity on rank 0 at step 4; module 8: -infinity there; module 9: nothing collected on rank 1. max and
    min are norm and -norm, mean is 0. parameters_grad has the last three modules only; its step 15 is all missing.
    """
    names = gpt_names(6)
    steps, ranks, targets = 16, 2, len(names)
    s, r, t = np.ogrid[0:steps, 0:ranks, 0:targets]
    norm = (1 + t / 10 + r / 100 + s / 1000).astype("<f4").astype("<f8")
    norm[4:, 1, 5] = np.nan
    norm[4, 0, 7] = np.inf
    norm[4, 0, 8] = -np.inf
    norm[:, 1, 9] = MISSING
    states = ~np.isfinite(norm)
    forward = {"norm": norm}
    for name, values in (("max", norm.copy()), ("min", -norm), ("mean", np.zeros_like(norm))):
        # The states are the same in all statistics; "missing" would not survive arithmetic.
        values[states] = norm[states]
        forward[name] = values
    gradients = np.exp(-s / 4.0) * np.ones((steps, ranks, 3)) * 10.0 ** np.arange(-3, 0)
    gradients[15] = MISSING
    return TrendContents(
        # Ids run against the network's order.
        targets=[(name, 0, 0) for name in reversed(names)],
        positions=list(range(targets))[::-1],
        # Two micro-steps a training step; training starts at 100.
        steps=[(step, 100 + step // 2, step % 2) for step in range(steps)],
        ranks=[(rank, f"node{rank}") for rank in range(ranks)],
        metrics={
            "forward": MetricValues([targets - 1 - place for place in range(targets)], forward),
            "parameters_grad": MetricValues([2, 1, 0], {"norm": gradients, "mean": -gradients}),
        },
        tags={"forward": [("module", "wte.Embedding", [targets - 1])]},
    )


def large(ranks: int, modules: int, steps: int) -> TrendContents:
    """A plausible training: norms that grow with depth, a spike, NaN that spreads, a rank that lags."""
    generator = np.random.default_rng(7)
    names = gpt_names(-(-modules // 10))[:modules]
    s, _, t = np.ogrid[0:steps, 0:ranks, 0:modules]
    shape = (steps, ranks, modules)
    norm = np.exp(0.5 * np.sin(t / 7.0) + t / modules * 3 - s / steps + 0.05 * generator.normal(size=shape))
    spike, rank = steps // 3, ranks // 2
    norm[spike, :, modules // 2 :] *= 40
    norm[steps // 2 :, rank, modules // 3 :] = np.nan
    norm[spike, min(3, ranks - 1), modules // 5] = np.inf
    norm[:, :, 17 % modules] = MISSING
    norm[0, ranks - 1, :] = MISSING
    mean = generator.normal(size=shape) * 0.02
    mean[~np.isfinite(norm)] = norm[~np.isfinite(norm)]
    metrics = {
        name: MetricValues(range(modules), {"norm": (norm * factor).astype("<f4"), "mean": mean.astype("<f4")})
        for name, factor in (("forward", 1.0), ("backward", 1e-5))
    }
    for metric in metrics.values():
        metric.values = {name: values.astype("<f8") for name, values in metric.values.items()}
    return TrendContents(
        targets=[(name, 0, 0) for name in names],
        positions=range(modules),
        steps=[(step, step, 0) for step in range(steps)],
        ranks=[(rank, f"node{rank // 8:03}") for rank in range(ranks)],
        metrics=metrics,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--large", nargs=3, type=int, metavar=("RANKS", "MODULES", "STEPS"))
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    contents = small()
    (directory / "runs" / "today").mkdir(parents=True, exist_ok=True)
    write_trendprobe(directory / "runs" / "today" / "dump_data.trend.db", contents)
    (directory / "older").mkdir(exist_ok=True)
    write_msprobe(directory / "older" / "dump_data.trend.db", contents)
    (directory / "zz_broken.trend.db").write_text("This is not a database.")
    if arguments.large:
        write_trendprobe(directory / "large.trend.db", large(*arguments.large), layout="tiles")


if __name__ == "__main__":
    main()
