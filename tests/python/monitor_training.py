"""Trains one of a few small models, watched by msProbe's PrecisionDebugger or TrainerMon, or by trendprobe.Monitor.

python monitor_training.py {msprobe,trainermon,monitor} MODEL DIRECTORY STEPS MICRO_BATCHES
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, causal: bool = True) -> Tensor:
        mixed = functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=causal)
        return self.out(mixed)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.0), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x), causal=True)
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Tied weights; one block is checkpointed in each way."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(32, WIDTH)
        self.wpe = nn.Embedding(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        x = self.blocks[0](x)
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        x = checkpoint(self.blocks[2], x, use_reentrant=True)
        return self.head(self.ln_f(x))

    @staticmethod
    def draw() -> Tensor:
        return torch.randint(32, (2, 8))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm_1 = nn.BatchNorm2d(4)
        self.act = nn.ReLU()
        self.conv_2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.norm_1(self.conv_1(x)))
        return self.act(self.norm_2(self.conv_2(out)) + x)  # called twice


class Cnn(nn.Module):
    """The first convolution's input needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.body = nn.Sequential(Residual(), nn.MaxPool2d(2), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))

    @staticmethod
    def draw() -> Tensor:
        return torch.randn(3, 3, 10, 10)


class Routed(NamedTuple):
    hidden: Tensor
    weights: Tensor


class Router(nn.Module):
    """Gives several outputs: a named tuple, integers, a dict with None in it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, *, noise: dict[str, Any]) -> tuple[Routed, Tensor, dict[str, Any]]:
        logits = self.gate(x) + noise["scale"]
        weights, chosen = logits.softmax(-1).topk(2)
        return Routed(x, weights), chosen, {"loss": logits.square().mean(), "none": None}


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        routed, chosen, extra = self.router(x, noise={"scale": torch.tensor(0.1), "seed": 3})
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts[:3]):  # the last one is never called
            share = (routed.weights * (chosen == index)).sum(-1, keepdim=True)
            out = out + share * expert(routed.hidden)
        return out, [extra["loss"]]


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, WIDTH)
        self.mixture = Mixture()
        self.identity = nn.Identity()
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        mixed, losses = self.mixture(self.inner(x))
        return self.head(self.identity(mixed)) + losses[0]

    @staticmethod
    def draw() -> Tensor:
        return torch.randn(5, 6)


class Mlp(nn.Sequential):
    """For the optimizer's metrics; the gradients of no input are wanted."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))

    @staticmethod
    def draw() -> Tensor:
        return torch.randn(5, 6)


MODELS: dict[str, Callable[[], Any]] = {"gpt": Gpt, "cnn": Cnn, "moe": Moe, "mlp": Mlp}


def main() -> None:
    how, name, directory, steps, micro_batches = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = MODELS[name]()
    # Adam would make much of small differences: it is for what is the same bit for bit.
    optimizer_class = torch.optim.Adam if name == "mlp" else torch.optim.SGD
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    root = Path(directory)
    debugger = monitor = None
    if how == "msprobe":
        from msprobe.pytorch import PrecisionDebugger

        config = {
            "task": "statistics",
            "dump_path": str(root / "dump"),
            "rank": [],
            "step": [],
            "level": "L0",
            "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
        }
        (root / "config.json").write_text(json.dumps(config))
        debugger = PrecisionDebugger(config_path=str(root / "config.json"))
    elif how == "trainermon":
        from msprobe.pytorch import TrainerMon

        config = {
            "targets": {},
            "format": "csv",
            "ops": ["norm", "max", "min", "mean"],
            "ndigits": 12,
            "wg_distribution": True,
            "mv_distribution": True,
            "param_distribution": True,
        }
        (root / "config.json").write_text(json.dumps(config))
        trainer_mon = TrainerMon(str(root / "config.json"), params_have_main_grad=False)
        trainer_mon.set_monitor(model, optimizer, grad_acc_steps=int(micro_batches))
    else:
        from trendprobe import Monitor

        monitor = Monitor(model, optimizer, path=str(root / "trend"))
    for _ in range(int(steps)):
        if debugger:
            debugger.start(model)
        for _ in range(int(micro_batches)):
            (model(model.draw()).square().mean() / int(micro_batches)).backward()
        if debugger:
            debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        if debugger:
            debugger.step()
        if monitor:
            monitor.step()
    if monitor:
        monitor.close()


if __name__ == "__main__":
    main()
