"""Runs a training script with TrendProbe attached to msProbe, without a change to the script.

python -m trendprobe.run train.py --its --own --flags
torchrun --nproc-per-node 8 -m trendprobe.run train.py --its --own --flags
"""

from __future__ import annotations

import os
import runpy
import sys

import trendprobe

_USAGE = "usage: python -m trendprobe.run [-m MODULE | SCRIPT] [arguments of the script …]"


def main() -> None:
    """Attaches, then runs the script or module as Python itself would."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    if is_module:
        arguments = arguments[1:]
    if not arguments:
        sys.exit(f"{_USAGE}\nerror: no script was named")
    trendprobe.enable()
    sys.argv = arguments
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(arguments[0]):
        sys.exit(f"error: there is no script {arguments[0]}")
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
