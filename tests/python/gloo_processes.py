"""Runs a function in several processes that share a gloo process group."""

import datetime
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _run(rank: int, function: Callable[..., None], count: int, store: str, arguments: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=120),
    )
    try:
        function(rank, *arguments)
    finally:
        dist.destroy_process_group()


def run_processes(function: Callable[..., None], count: int, *arguments: Any) -> None:
    """Calls ``function(rank, *arguments)``, a function of a module, in ``count`` processes; raises what one raises."""
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        torch.multiprocessing.spawn(_run, args=(function, count, store, arguments), nprocs=count)
