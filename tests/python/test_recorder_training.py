"""A training under the real msProbe that is recorded: data loaders, every way to end, and a broken disk."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from recorder_runs import STEPS, TRAINING, run, shards

pytest.importorskip("msprobe")


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_data_loaders_record_nothing(workers: int, method: str | None, tmp_path: Path, steps_of: Callable) -> None:
    train = (
        f"train(torch.utils.data.DataLoader(Numbers(), 8, num_workers={workers}, multiprocessing_context={method!r}))"
    )
    run(tmp_path, TRAINING + f"\nif __name__ == '__main__':\n    {train}\n")
    found = steps_of()
    assert found.keys() == set(range(STEPS))
    assert len(set(found.values())) == 1
    assert len(shards(tmp_path)) == 1


TRAINING_ENDS = {
    "a handler of SIGTERM that leaves in order": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
        143,
        True,
    ),
    "exception": ("raise RuntimeError('loss is NaN')", 1, True),
    "KeyboardInterrupt": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT, True),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -signal.SIGTERM, False),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, False),
    "os._exit": ("os._exit(5)", 5, False),
}


@pytest.mark.parametrize(("end", "code", "in_order"), TRAINING_ENDS.values(), ids=TRAINING_ENDS)
def test_a_training_that_ends_in_the_middle_of_a_step(
    end: str, code: int, in_order: bool, tmp_path: Path, steps_of: Callable
) -> None:
    run(
        tmp_path,
        TRAINING
        + f"""
def end(step):
    if step == 4:
        time.sleep(0.5)  # by now the steps before are committed
        {end}
train(torch.utils.data.DataLoader(Numbers(), 8))
""",
        code=code,
    )
    found = steps_of(code=1 if in_order else 0)
    assert found.keys() == set(range(5 if in_order else 4))
    assert len({found[step] for step in range(4)}) == 1
    if in_order:  # what the step had so far is kept, and named as incomplete
        with sqlite3.connect(tmp_path / "db/dump_data.trend.db") as database:
            assert database.execute(
                "SELECT location, what FROM trendprobe_issues WHERE severity <> 'notice'"
            ).fetchall() == [("training step 4", "is incomplete: its process ended in the middle of it")]


def test_an_exception_that_the_training_catches_costs_its_step_alone(tmp_path: Path, steps_of: Callable) -> None:
    """Raised between forward and backward pass, and in the backward pass; the loop goes on with the next batch."""
    text = run(
        tmp_path,
        TRAINING
        + """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor): return tensor.clone()
    @staticmethod
    def backward(context, gradient): raise FloatingPointError("in the backward pass")

for step in range(7):
    debugger.start(model)
    try:
        output = model(torch.full((8, 4), step / 7))
        if step == 2: raise FloatingPointError("the loss is not finite")
        if step == 4: output = Fails.apply(output)
        output.square().mean().backward()
    except FloatingPointError as error:
        print("skipped", step, error)
        optimizer.zero_grad()
    debugger.stop()
    debugger.step()
""",
    )
    assert text.count("skipped") == 2
    assert "TrendProbe" not in text
    found = steps_of()
    assert found.keys() == set(range(7))
    assert found[2] == found[4] < found[0]  # the forward pass
    assert len({found[step] for step in (0, 1, 3, 5, 6)}) == 1


def test_a_keyboard_interrupt_that_is_caught_ends_in_order(tmp_path: Path, steps_of: Callable) -> None:
    text = run(
        tmp_path,
        TRAINING
        + """
def end(step):
    if step == 3: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)
try:
    train(torch.utils.data.DataLoader(Numbers(), 8))
except KeyboardInterrupt:
    debugger.stop()
    print("saved a checkpoint")
""",
    )
    assert "saved a checkpoint" in text
    assert "Traceback" not in text
    found = steps_of()  # after stop() the step is as complete as the training made it
    assert found.keys() == set(range(4))
    assert len(set(found.values())) == 1


def test_the_last_step_counts_without_a_call_of_step(tmp_path: Path, steps_of: Callable) -> None:
    run(
        tmp_path,
        TRAINING
        + """
debugger.start(model)
model(torch.ones(8, 4)).sum().backward()
debugger.stop()
""",
    )
    assert steps_of().keys() == {0}


def test_a_broken_disk_leaves_the_losses_as_they_are(tmp_path: Path) -> None:
    """No directory, a full disk from the start: the training sees nothing of it but one warning."""
    losses = []
    for path in ("./trend", "/proc/nowhere"):
        text = run(
            tmp_path,
            TRAINING.replace('"./trend"', repr(path)).replace(
                "loss.backward()", "loss.backward(); print('loss', loss.item().hex())"
            )
            + "\ntrain(torch.utils.data.DataLoader(Numbers(), 8))\n",
        )
        losses.append([line for line in text.splitlines() if line.startswith("loss")])
        assert text.count("recording failed") == (path != "./trend")
    assert losses[0] == losses[1]
    assert len(losses[0]) == STEPS
