"""Trains a small GPT under msProbe, with two faults planted: the job that TrendProbe's demo looks at.

The model reads bytes of this very file, so that nothing has to be downloaded, and every number depends on the seed
alone. Start it alone, or once a rank with torchrun:

    python examples/train_gpt.py --dump-config examples/msprobe_dump.json
    torchrun --nproc-per-node 2 -m trendprobe.run examples/train_gpt.py --dump-config examples/msprobe_dump.json
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger, TrainerMon, seed_all
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

VOCABULARY = 256  # bytes
CONTEXT = 32
BATCH = 4
WIDTH = 64
HEADS = 4
BLOCKS = 6
CHECKPOINTED_BLOCK = 1
NAN_BLOCK = 2
SPIKE_BLOCK = 4
SPIKE_FACTOR = 1000.0


class Attention(nn.Module):
    """Causal self-attention over (batch, time, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`."""
        batch, time, _ = x.shape
        query, key, value = self.qkv(x).view(batch, time, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, time, WIDTH))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """The position-wise two-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.proj = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`."""
        return self.proj(self.act(self.fc(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape of `x`."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """A GPT with tied input and output embeddings and one checkpointed block."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits, (batch, time, vocabulary), of int64 `tokens`, (batch, time)."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for index, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if index == CHECKPOINTED_BLOCK else block(x)
        return self.head(self.ln_f(x))  # type: ignore[no-any-return]


class PlantedFaults:
    """Breaks chosen passes of the model on purpose; every other pass stays as it is."""

    def __init__(self, model: Gpt) -> None:
        self.nan = False
        self.spike = False
        nan_block, spike_block = model.blocks[NAN_BLOCK], model.blocks[SPIKE_BLOCK]
        assert isinstance(nan_block, Block)
        # In the module's own forward: msProbe's dump reads the output before any forward hook could change it.
        self._activate = nan_block.mlp.act.forward
        nan_block.mlp.act.forward = self._activate_with_nan  # type: ignore[assignment,method-assign]
        spike_block.register_forward_hook(self._plant_spike)

    def _activate_with_nan(self, x: Tensor) -> Tensor:
        output = self._activate(x)
        if not self.nan:
            return output
        mask = torch.zeros_like(output, dtype=torch.bool)
        mask[0, 0, 0] = True
        return output.masked_fill(mask, float("nan"))

    def _plant_spike(self, _module: nn.Module, _inputs: object, output: Tensor) -> None:
        if self.spike and output.requires_grad:
            output.register_hook(lambda gradient: gradient * SPIKE_FACTOR)  # type: ignore[no-untyped-call]


class ByteBatches:
    """Random windows of this file's bytes; each rank draws its own."""

    def __init__(self, seed: int, rank: int) -> None:
        self._corpus = torch.tensor(list(Path(__file__).read_bytes()))
        self._generator = torch.Generator().manual_seed(seed * 1000 + rank)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Returns (tokens, next tokens), int64, (batch, time) both."""
        starts = torch.randint(len(self._corpus) - CONTEXT, (BATCH, 1), generator=self._generator)
        windows = self._corpus[starts + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Trains a small GPT under msProbe, with planted faults.")
    parser.add_argument("--steps", type=int, default=8, help="training steps (default: %(default)s)")
    parser.add_argument("--micro-batches", type=int, default=2, help="micro-batches a step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="of parameters and all else"
    )
    parser.add_argument("--dump-config", help="configuration of msProbe's PrecisionDebugger; none: no dump")
    parser.add_argument("--monitor-config", help="configuration of msProbe's TrainerMon; none: no monitor")
    parser.add_argument("--nan-step", type=int, default=-1, help="plant a NaN in the first micro-batch of this step")
    parser.add_argument("--nan-rank", type=int, default=0, help="the rank that gets the NaN (default: %(default)s)")
    parser.add_argument("--spike-step", type=int, default=-1, help="multiply a gradient by 1000 in this step")
    parser.add_argument("--spike-rank", type=int, default=0, help="the rank that gets it (default: %(default)s)")
    parser.add_argument("--loss-file", help="write every loss here, bit for bit; {rank} is replaced")
    return parser.parse_args()


def skip_unless_finite(optimizer: torch.optim.Optimizer, gradient_norm: Tensor) -> None:
    """Makes the next optimizer.step() leave everything as it is if the gradients are not finite.

    The same signal that torch.amp.GradScaler gives to a fused optimizer. step() itself is still called: TrainerMon
    counts the training steps by these calls.
    """
    optimizer.found_inf = (~torch.isfinite(gradient_norm)).float()  # type: ignore[attr-defined]


def train(arguments: argparse.Namespace, rank: int, world_size: int) -> None:
    """Trains, one line a step on rank 0."""
    seed_all(arguments.seed)
    gpt = Gpt().to(getattr(torch, arguments.dtype))
    faults = PlantedFaults(gpt)
    model: Any = DistributedDataParallel(gpt) if world_size > 1 else gpt
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3, fused=True)
    batches = ByteBatches(arguments.seed, rank)

    debugger = PrecisionDebugger(config_path=arguments.dump_config) if arguments.dump_config else None
    if arguments.monitor_config:
        monitor = TrainerMon(arguments.monitor_config, params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, grad_acc_steps=arguments.micro_batches)

    loss_file = open(arguments.loss_file.format(rank=rank), "w") if arguments.loss_file else None  # noqa: SIM115
    with loss_file or contextlib.nullcontext():
        for step in range(arguments.steps):
            if debugger:
                debugger.start(model)
            losses: list[float] = []
            for micro_batch in range(arguments.micro_batches):
                faults.nan = (step, rank, micro_batch) == (arguments.nan_step, arguments.nan_rank, 0)
                faults.spike = (step, rank) == (arguments.spike_step, arguments.spike_rank)
                tokens, targets = batches.draw()
                last = micro_batch == arguments.micro_batches - 1
                with contextlib.nullcontext() if last or world_size == 1 else model.no_sync():
                    logits = model(tokens)
                    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                    (loss / arguments.micro_batches).backward()
                losses.append(loss.item())
            if debugger:
                debugger.stop()
            norm = torch.nn.utils.get_total_norm([p.grad for p in gpt.parameters() if p.grad is not None])
            skip_unless_finite(optimizer, norm)
            optimizer.step()
            optimizer.zero_grad()
            if debugger:
                debugger.step()
            if rank == 0:
                print(f"step {step}: loss {sum(losses) / len(losses):.4f}, gradient norm {norm:.4g}", flush=True)
            if loss_file:
                loss_file.writelines(f"{step},{index},{loss.hex()}\n" for index, loss in enumerate(losses))
        if loss_file:
            digest = hashlib.sha256()
            for parameter in gpt.parameters():
                digest.update(parameter.detach().view(torch.uint8).numpy().tobytes())
            loss_file.write(f"parameters,sha256,{digest.hexdigest()}\n")


def main() -> None:
    """Joins the process group that torchrun prepared, if any, and trains."""
    arguments = parse_arguments()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    try:
        train(arguments, int(os.environ.get("RANK", "0")), world_size)
    finally:
        if world_size > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
