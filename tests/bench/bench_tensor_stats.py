"""Times the statistics of a tensor: the four calls that msProbe makes of torch, and `trendprobe._tensor_stats.measure`.

    python tests/bench/bench_tensor_stats.py [--dtypes float32] [--sizes 10 1000000] [--threads 2] [--rounds 15]

Both, and torch.sum() as the time of reading alone, take turns in one process, so that they share whatever else the
machine does. Prints medians.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable

import torch
from trendprobe._tensor_stats import measure

DTYPES = ("float32", "bfloat16", "float16")
SIZES = tuple(10**exponent for exponent in range(1, 8))
LAYOUTS = ("contiguous", "transposed")
ROW = "{:9} {:10} {:>10} {:>11} {:>11} {:>11} {:>7} {:>7} {:>7}"
# One timing covers as many calls as take about this long, so that the clock's own time does not count.
SECONDS_OF_A_TIMING = 0.002


def msprobe_calls(tensor: torch.Tensor) -> None:
    """What msProbe's get_stat_info() computes of a tensor of floating-point numbers; four tensors, no .item() yet."""
    data = tensor.detach()
    torch.max(data)
    torch.min(data)
    torch.mean(data)
    torch.norm(data)


def read_only(tensor: torch.Tensor) -> None:
    """Reads every element once."""
    torch.sum(tensor)


def seconds_of(function: Callable[[torch.Tensor], object], tensor: torch.Tensor, calls: int) -> float:
    """Seconds of one of `calls` calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        function(tensor)
    return (time.perf_counter() - begin) / calls


def medians_of(
    functions: tuple[Callable[[torch.Tensor], object], ...], tensor: torch.Tensor, rounds: int
) -> list[float]:
    """Median seconds of each function, all of them timed in turn, each round beginning with another."""
    calls = []
    for function in functions:
        first = min(seconds_of(function, tensor, 1) for _ in range(3))
        calls.append(max(1, round(SECONDS_OF_A_TIMING / first)))
    timings: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds):
        for i in range(len(functions)):
            which = (i + turn) % len(functions)
            timings[which].append(seconds_of(functions[which], tensor, calls[which]))
    return [statistics.median(each) for each in timings]


def tensor_of(size: int, dtype: torch.dtype, layout: str) -> torch.Tensor:
    """About `size` elements: all of them side by side, or a transposed matrix, as square as can be."""
    if layout == "contiguous":
        return torch.randn(size).to(dtype)
    rows = math.isqrt(size)
    return torch.randn(rows, size // rows).to(dtype).t()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="ELEMENTS")
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, choices=LAYOUTS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if min(options.sizes) < 1 or options.threads < 1 or options.rounds < 1:
        parser.error("sizes, threads and rounds are at least 1")

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {platform.processor() or platform.machine()}")
    print("four: torch.max, min, mean and norm; ours: measure(); sum: torch.sum() alone; medians\n")
    print(ROW.format("dtype", "layout", "elements", "four µs", "ours µs", "sum µs", "four/", "ours", "sum"))
    print(ROW.format("", "", "", "", "", "", "ours", "GB/s", "GB/s"))
    for dtype in options.dtypes:
        for layout in options.layouts:
            for size in options.sizes:
                tensor = tensor_of(size, getattr(torch, dtype), layout)
                four, ours, read = medians_of((msprobe_calls, measure, read_only), tensor, options.rounds)
                gigabytes = tensor.numel() * tensor.element_size() / 1e9
                print(
                    ROW.format(
                        dtype,
                        layout,
                        f"{tensor.numel():,}",
                        f"{four * 1e6:,.1f}",
                        f"{ours * 1e6:,.2f}",
                        f"{read * 1e6:,.1f}",
                        f"{four / ours:.1f}",
                        f"{gigabytes / ours:.2f}",
                        f"{gigabytes / read:.2f}",
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
