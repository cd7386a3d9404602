"""`trendprobe.Monitor` against plain training: losses, gradients, parameters and random numbers, bit for bit."""

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from gloo_processes import run_processes  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from trendprobe import Monitor  # noqa: E402

Outcome = list[Tensor]


class Residual(nn.Module):
    """In-place activations, BatchNorm, a dropout, a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.drop(self.act(self.norm(self.conv(x))))
        out += x
        return self.act(out)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Residual(4), nn.Conv2d(4, 4, 1), Residual(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed)[0]
        return x + self.mlp(self.norm(x)) * scale  # the norm is called twice


class Transformer(nn.Module):
    """Tied weights, a frozen embedding, a shared module, checkpointing."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.positions = nn.Embedding(6, 8).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(8) for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        scale = torch.tensor(0.5)
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x, scale=scale)
            else:
                x = checkpoint(lambda x, layer=layer: layer(x, scale=scale), x, use_reentrant=self.reentrant)
        return self.head(x)


def images() -> Tensor:
    return torch.randn(4, 3, 6, 6)


def tokens() -> Tensor:
    return torch.randint(11, (3, 6))


def plain(_model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def train(
    make: Callable[[], nn.Module],
    draw: Callable[[], Tensor],
    watch: Callable[..., Any] | None,
    path: Path,
    *,
    seed: int = 0,
    steps: int = 2,
    micro_batches: int = 2,
    amp: bool = False,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Outcome:
    """Everything that the training computed."""
    torch.manual_seed(seed)
    model = wrap(make())
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=amp, init_scale=8.0)
    outcome: Outcome = []
    monitor = watch(model, optimizer, path=str(path)) if watch else contextlib.nullcontext()
    with monitor as running:
        for _ in range(steps):
            for _ in range(micro_batches):
                with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                    loss = model(draw()).float().square().mean()
                scaler.scale(loss).backward()
                outcome.append(loss.detach())
            outcome += [_local(p.grad).clone() for p in parameters if p.grad is not None]
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                outcome.append(model(draw()).clone())
            optimizer.zero_grad()
            if running:
                running.step()
        if running:
            assert running.cost().tensors > 0
    outcome += [_local(value).clone() for value in model.state_dict().values()]
    outcome.append(torch.get_rng_state())
    return outcome


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_identical(ours: Outcome, theirs: Outcome) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(_bytes(a), _bytes(b))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "in-place activations and BatchNorm": (ConvNet, images),
    "tied weights and a frozen embedding": (Transformer, tokens),
    "non-reentrant checkpointing": (lambda: Transformer(False), tokens),
    "reentrant checkpointing": (lambda: Transformer(True), tokens),
}


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_same_bits(name: str, amp: bool, tmp_path: Path) -> None:
    make, draw = MODELS[name]
    ours = train(make, draw, Monitor, tmp_path, amp=amp)
    assert_identical(ours, train(make, draw, None, tmp_path, amp=amp))


def test_same_bits_for_200_seeds(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 12)
            self.act = nn.ReLU(inplace=True)
            self.branches = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
            self.last = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.first(x))
            return self.last(x + sum(branch(x) for branch in self.branches))

    def draw() -> Tensor:
        return torch.randn(7, 6)

    for seed in range(200):
        ours = train(Net, draw, Monitor, tmp_path, seed=seed, steps=1)
        assert_identical(ours, train(Net, draw, None, tmp_path, seed=seed, steps=1))


def _train_distributed(rank: int, directory: str, how: str) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def wrap(model: nn.Module) -> nn.Module:
        if how == "DDP":
            return DistributedDataParallel(model)
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        return model

    def draw() -> Tensor:
        return torch.randint(11, (3, 6))

    path = Path(directory)
    results = [train(Transformer, draw, watch, path, seed=3, micro_batches=1, wrap=wrap) for watch in (Monitor, None)]
    assert_identical(*results)


@pytest.mark.parametrize("how", ["DDP", "FSDP2"])
def test_same_bits_on_two_ranks(how: str, tmp_path: Path) -> None:
    run_processes(_train_distributed, 2, str(tmp_path), how)


def test_a_watched_model_can_be_copied_and_saved(tmp_path: Path) -> None:
    model = Transformer()
    with Monitor(model, path=str(tmp_path)) as monitor:
        copied = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        pickled = pickle.loads(pickle.dumps(model))
        batch = tokens()
        for other in (copied, loaded, pickled):
            other(batch).sum().backward()
            assert torch.equal(other.embedding.weight, model.embedding.weight)
        monitor.step()
        assert monitor.cost().tensors == 0  # none of them is watched
        model(batch).sum().backward()
        monitor.step()
        assert monitor.cost().tensors > 0
    assert b"trendprobe" not in file.getvalue()


def _hooks(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        for name, value in vars(module).items():
            if "hook" in name and isinstance(value, dict):
                yield from value.items()
        for parameter in module.parameters(recurse=False):
            yield from (parameter._post_accumulate_grad_hooks or {}).items()
            yield from (parameter._backward_hooks or {}).items()


def test_nothing_stays_when_it_is_closed(tmp_path: Path) -> None:
    model = Transformer()
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    monitor = Monitor(model, optimizer, path=str(tmp_path))
    assert list(_hooks(model))
    output = model(tokens())
    monitor.close()
    monitor.close()
    assert not list(_hooks(model))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    output.sum().backward()  # through hooks of the graph that outlive the monitor
    monitor.step()
    assert model.embedding.weight.grad is not None
