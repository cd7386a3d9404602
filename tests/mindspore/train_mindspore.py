"""Trains a small net on MindSpore's CPU under msProbe: python [-m trendprobe.run] train_mindspore.py WHAT CONFIG

WHAT is dump (PrecisionDebugger) or monitor (TrainerMonitorV2). Prints losses and parameters bit for bit.
"""

import importlib.util
import sys

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

STEPS = 3

assert importlib.util.find_spec("torch") is None  # the point of this environment


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.fc = nn.Dense(8, 8)
        self.act = nn.GELU()

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return x + self.act(self.fc(self.norm(x)))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.CellList([Block(), Block()])
        self.head = nn.Dense(8, 11)

    def construct(self, tokens: ms.Tensor) -> ms.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def norm(x: ms.Tensor, *_: object, **__: object) -> ms.Tensor:
    """MindSpore's own has no kernel for the CPU; msProbe calls it."""
    x = x.to(ms.float32)
    return ops.sqrt(ops.reduce_sum(x * x))


def main() -> None:
    what, config = sys.argv[1:]
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    ms.set_deterministic(True)
    mint.norm = norm
    ms.set_seed(5)
    numbers = np.random.RandomState(5)
    net = Net()
    for parameter in net.get_parameters():
        parameter.set_data(ms.Tensor(numbers.randn(*parameter.shape).astype(np.float32) * 0.3))
    optimizer = nn.Adam(net.trainable_params(), 0.01)

    def loss_of(tokens: ms.Tensor) -> ms.Tensor:
        return ops.cross_entropy(net(tokens).reshape(-1, 11), tokens.reshape(-1))

    gradients_of = ms.value_and_grad(loss_of, None, optimizer.parameters)
    if what == "dump":
        from msprobe.mindspore import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=config)
    else:
        from msprobe.core.monitor_v2.trainer import TrainerMonitorV2

        monitor = TrainerMonitorV2(config, fr="mindspore")
        monitor.start(model=net, optimizer=optimizer)
    for _ in range(STEPS):
        if what == "dump":
            debugger.start(net)
        loss, gradients = gradients_of(ms.Tensor(numbers.randint(0, 11, (2, 5)).astype(np.int32)))
        optimizer(gradients)
        if what == "dump":
            debugger.stop()
            debugger.step()
        else:
            monitor.step()
        print("loss", float(loss.asnumpy()).hex())
    if what == "monitor":
        monitor.stop()
    for parameter in net.get_parameters():
        print("parameter", parameter.name, parameter.asnumpy().tobytes().hex())


if __name__ == "__main__":
    main()
