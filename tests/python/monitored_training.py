"""A training for the tests of msProbe's monitors: a small net with what is hard to monitor, two ranks or one.

python [-m trendprobe.run] monitored_training.py CONFIG MONITOR MICRO_BATCHES RANK WORLD_SIZE STORE

MONITOR is 1 (TrainerMon) or 2 (TrainerMonitorV2). Writes result<rank>.json into the working directory: losses and
parameters bit for bit, and what it knows of its own gradients.
"""

import contextlib
import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS, NAN_STEP, BATCH, WIDTH, TOKENS = 4, 2, 2, 8, 11


class Transposed(nn.Module):
    """Its output does not fill its memory in order, and repeats it."""

    def forward(self, x: Tensor, times: int) -> tuple[Tensor, int, Tensor]:
        return x.transpose(0, 1), times, x[:, :1].expand(-1, 3, -1)


class HalfPrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        # Numbers that only count as zero where eps is rounded to 16 bits.
        return self.linear(functional.relu(x).bfloat16() * 1e-7).float() * 1e3


class Block(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU(inplace=in_place)
        self.proj = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.proj(self.act(self.fc(self.norm(x))))


class Net(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(in_place), Block(in_place)])
        self.narrow = HalfPrecision()
        self.transposed = Transposed()
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks[0](self.embedding(tokens))
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        turned, _, repeated = self.transposed(self.narrow(x), times=3)
        return self.head(turned.transpose(0, 1)) + repeated.mean()


def main() -> None:
    config, version, micro_batches, rank, world_size, store = sys.argv[1:]
    rank, world_size, micro_batches = int(rank), int(world_size), int(micro_batches)
    torch.manual_seed(7)
    if world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    net = Net(in_place=version == "1")  # TrainerMonitorV2's own backward hooks break such activations
    model = DistributedDataParallel(net) if world_size > 1 else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    if version == "1":
        from msprobe.pytorch import TrainerMon

        monitor = TrainerMon(config, params_have_main_grad=False)
        monitor.set_monitor(model, optimizer, grad_acc_steps=micro_batches)
    else:
        from msprobe.core.monitor_v2.trainer import TrainerMonitorV2

        monitor = TrainerMonitorV2(config, fr="pytorch")
        monitor.start(model=model, optimizer=optimizer, grad_acc_steps=micro_batches)

    generator = torch.Generator().manual_seed(rank)
    losses, shared_losses, gradients = [], [], {}
    for step in range(STEPS):
        for micro_batch in range(micro_batches):
            tokens = torch.randint(TOKENS, (BATCH, 5), generator=generator)
            alone = world_size > 1 and micro_batch < micro_batches - 1
            with model.no_sync() if alone else contextlib.nullcontext():
                loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()) / micro_batches
                if step == NAN_STEP:
                    loss = loss * float("nan" if micro_batch == 0 else 1)
                loss.backward()
            if alone or world_size == 1:
                gradients[f"{step},{micro_batch}"] = {
                    name: parameter.grad.double().norm().item() for name, parameter in net.named_parameters()
                }
            losses.append(loss.item().hex())
        shared = loss.detach().clone()
        if world_size > 1:
            dist.all_reduce(shared)
        shared_losses.append((loss.item(), shared.item()))
        if step == NAN_STEP:
            for parameter in net.parameters():
                parameter.grad.nan_to_num_()
        optimizer.step()
        optimizer.zero_grad()
    if version == "2":
        monitor.stop()
    digest = hashlib.sha256()
    for parameter in net.parameters():
        digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    result = {"losses": losses, "digest": digest.hexdigest(), "shared": shared_losses, "gradients": gradients}
    Path(f"result{rank}.json").write_text(json.dumps(result))
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
