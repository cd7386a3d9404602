"""Trains small models under msProbe's PrecisionDebugger, one after the other, each in a process forked for it.

    python attached_trainings.py TRAININGS.json

The file holds a list of objects:

    {"directory": ..., "model": "gpt" | "cnn" | "moe" | "unusual", "ranks": 1, "micro_batches": 1, "steps": 2,
     "config": msProbe's configuration, "trendprobe": true, "data2db": false, "failing_values": false,
     "megatron": false}

Each training writes losses and a digest of its parameters and of the random numbers' state into losses.<rank>.txt, and
msProbe's files into the folder "dump" of its directory. With data2db msProbe's own parser reads them, into
"msprobe_db". A process that has torch and msProbe loaded forks in no time, a new one needs seconds to load them.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import dataclasses
import hashlib
import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import msprobe.pytorch
import numpy
import torch
import torch.distributed as dist
from msprobe.core.common.megatron_utils import wrap_megatron_step
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.proj(functional.scaled_dot_product_attention(query, key, value, is_causal=True)) * scale
        return x + self.mlp(x)


class Gpt(nn.Module):
    """Tied embeddings, a frozen one, and both kinds of checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(32, WIDTH)
        self.wpe = nn.Embedding(8, WIDTH)
        self.wpe.weight.requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, seed: Tensor) -> Tensor:
        tokens = (seed.abs() * 7).long() % 32
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        scale = torch.tensor(0.5)
        x = self.blocks[0](x, scale=scale)
        x = checkpoint(self.blocks[1], x, scale=scale, use_reentrant=False)
        x = checkpoint(lambda y: self.blocks[2](y, scale=scale), x, use_reentrant=True)
        return self.head(x).log_softmax(-1)[..., 0]


class Cnn(nn.Module):
    """Residual, with BatchNorm and Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(4, 1)

    def forward(self, seed: Tensor) -> Tensor:
        x = self.stem(seed[:, None, None].expand(-1, -1, 8, -1))
        for norm, convolution in zip(self.norms, self.convolutions):
            x = x + convolution(functional.relu(norm(x)))
        return self.head(self.dropout(x.mean((2, 3))))


@dataclasses.dataclass
class Routing:
    weights: Tensor
    chosen: Tensor
    count: int


class Mixed(NamedTuple):
    x: Tensor
    balance: Tensor


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Routing:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        return Routing(weights, chosen, 2)


class MoeBlock(nn.Module):
    """A dataclass goes in, a named tuple with a second, unused-by-some output comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, inputs: dict[str, Tensor]) -> Mixed:
        x = inputs["x"]
        routing = self.router(x)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (routing.weights * (routing.chosen == number)).sum(-1, keepdim=True)
            out = out + expert(x) * share
        return Mixed(x + out, routing.weights.var())


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(MoeBlock() for _ in range(2))

    def forward(self, seed: Tensor) -> Tensor:
        x = self.embed(seed)
        balance = torch.zeros(())
        for block in self.blocks:
            x, extra = block({"x": x})
            balance = balance + extra
        return x.mean(-1) + balance


class Carrier(nn.Module):
    """Takes and gives back everything that arguments of a module can be."""

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return arguments, named


class Unusual(nn.Module):
    """Arguments of every type that msProbe looks into, and many that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.carrier = Carrier()

    def forward(self, seed: Tensor) -> Tensor:
        x = self.embed(seed)
        complicated = torch.complex(x.detach(), x.detach())
        distributed = x.detach()
        if dist.is_initialized():
            mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
            distributed = dist.tensor.DTensor.from_local(x.detach(), mesh)
        self.carrier(
            x.detach(),
            [x.detach() * 2, (x.detach() * 3, None, True, 3, 2.5, "text", ...)],
            Mixed(x.detach() + 1, x.detach().sum()),
            Routing(x.detach(), torch.arange(4), 2),
            collections.OrderedDict(first=x.detach(), second=[x.detach() - 1]),
            torch.max(x.detach(), dim=-1),
            numpy.arange(6.0).reshape(2, 3),
            numpy.float32(2.5),
            numpy.array(["a"]),
            slice(1, 2),
            x.shape,
            x.dtype,
            x.device,
            torch.channels_last,
            object(),
            len,
            x.detach().bool(),
            torch.tensor(3),
            torch.empty(0),
            torch.empty(2, device="meta"),
            torch.full((2, 2), float("nan")),
            torch.tensor([float("inf"), -1.0]),
            x.detach().bfloat16(),
            x.detach().double(),
            complicated,
            distributed,
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            x.detach().t().t()[::2].transpose(0, 1),
            nn.Parameter(x.detach()),
            mask=x.detach() > 0,
            dtype=x.detach(),
            nested={"deep": {"deeper": [x.detach()]}, 7: x.detach()},
        )
        return torch.func.vmap(lambda row: functional.relu(row))(x).sum(-1)


MODELS = {"gpt": Gpt, "cnn": Cnn, "moe": Moe, "unusual": Unusual}


def loss_of(model: nn.Module, seed: Tensor) -> Tensor:
    return model(seed).square().mean()


def train(training: dict[str, Any], rank: int) -> None:
    """Runs one rank of a training."""
    ranks = training.get("ranks", 1)
    torch.set_num_threads(1)
    torch.manual_seed(5)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=ranks)
    model: nn.Module = MODELS[training["model"]]()
    if ranks > 1:
        model = DistributedDataParallel(model, find_unused_parameters=training["model"] == "moe")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    if training.get("trendprobe", True):
        import trendprobe

        trendprobe.enable()
        if training.get("failing_values"):
            fail_from_second_step()
    debugger = None
    if training.get("config"):
        Path(f"config.{rank}.json").write_text(json.dumps(training["config"]))
        debugger = msprobe.pytorch.PrecisionDebugger(config_path=f"config.{rank}.json")
    micro_batches = training.get("micro_batches", 1)
    forward_step, backward_step = loss_of, Tensor.backward
    if training.get("megatron"):
        # As msProbe does with Megatron's functions of these names.
        forward_step = wrap_megatron_step(forward_step)
        backward_step = wrap_megatron_step(backward_step, is_forward=False)
    with open(f"losses.{rank}.txt", "w") as losses:
        for step in range(training.get("steps", 2)):
            if debugger:
                debugger.start(model)
            for micro_batch in range(micro_batches):
                generator = torch.Generator().manual_seed(100 * step + 10 * micro_batch + rank)
                loss = forward_step(model, torch.randn(4, 8, generator=generator))
                backward_step(loss)
                losses.write(f"{loss.item().hex()}\n")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if debugger:
                debugger.stop()
                debugger.step()
        digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        losses.write(digest.hexdigest())
    if ranks > 1:
        dist.destroy_process_group()


def fail_from_second_step() -> None:
    """Breaks our own code, not msProbe's, at a value that is no plain tuple, list or dict."""
    from msprobe.core.common.runtime import Runtime
    from trendprobe import native_collector

    working = native_collector.NativeCollector._tensors_in

    def tensors_in(self: Any, value: Any) -> Any:
        if Runtime.current_iter > 0:
            raise LookupError("broken on purpose")
        return working(self, value)

    native_collector.NativeCollector._tensors_in = tensors_in  # type: ignore[method-assign]


def forked(function: Any, *arguments: Any) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def in_directory(directory: str, function: Any, *arguments: Any) -> None:
    """In a forked process: a failure becomes its exit code."""
    os.chdir(directory)
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()  # as a process that was not forked does


def parse_with_msprobe() -> None:
    from msprobe.core.compare.data2db import _data2db_command, _data2db_service_parser

    parser = argparse.ArgumentParser()
    _data2db_service_parser(parser)
    _data2db_command(parser.parse_args(["--data", "dump", "--db", "msprobe_db", "--micro_step", "False"]))


def main() -> None:
    for training in json.loads(Path(sys.argv[1]).read_text()):
        os.makedirs(training["directory"])
        processes = [
            forked(in_directory, training["directory"], train, training, rank)
            for rank in range(training.get("ranks", 1))
        ]
        for process in processes:
            process.join()
        if training.get("data2db"):
            processes.append(forked(in_directory, training["directory"], parse_with_msprobe))
            processes[-1].join()
        if any(process.exitcode for process in processes):
            sys.exit(f"failed: {training}")


if __name__ == "__main__":
    main()
