"""Takes the place of msProbe's CSV writer: what TrainerMon collects goes to the recorder, too."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from msprobe.pytorch.monitor.data_writers import CSVWriterWithAD, WriterInput

from trendprobe._tensor_stats import measure
from trendprobe.recorders import Recording, log_warning_of, recorder_for
from trendprobe.settings import TrendSettings

# Operations of msProbe's monitor that one pass of ours gives, too. Its "zeros" is the share of elements nearer to
# zero than eps, which is something else than a count of zeros.
_MEASURED = {"norm": "norm", "max": "max", "min": "min", "mean": "mean", "nans": "nans"}
# Columns of its CSV that are no statistics.
_NO_STATISTICS = ("shape", "dtype", "id")


class MonitorMetrics(dict[str, Any]):
    """msProbe's {operation: 0-d tensor} of one tensor, with what we measured beside it."""

    measured: dict[str, float] | None = None
    is_of_tensor = True
    """False for an argument of a module that is no tensor: msProbe fills all operations with NaN."""


def measuring(
    get_metrics: Callable[..., Any], is_recording: Callable[[], bool], keeps_files: Callable[[], bool]
) -> Any:
    """Wraps msProbe's get_metrics(), which computes the operations of a set of tensors: adds our measurement.

    Without msProbe's files its own operations are not run where ours give the same.
    """

    def get_metrics_and_measure(ops: list[str], tag2tensor: Any, eps: float, out_dict: Any = None) -> Any:
        out_dict = {} if out_dict is None else out_dict
        if not is_recording():
            return get_metrics(ops, tag2tensor, eps, out_dict)
        own_ops = ops
        with contextlib.suppress(Exception):  # without our measurement msProbe's numbers are recorded
            if not keeps_files():
                own_ops = [op for op in ops if op not in _MEASURED]
            for tag, tensor in tag2tensor.items():
                metrics = out_dict[tag] = MonitorMetrics(out_dict.get(tag) or {})
                metrics.is_of_tensor = isinstance(tensor, torch.Tensor)
                statistics = measure(tensor) if isinstance(tensor, torch.Tensor) else None
                if statistics is not None:
                    metrics.measured = {op: float(getattr(statistics, name)) for op, name in _MEASURED.items()}
        if own_ops is ops:
            return get_metrics(ops, tag2tensor, eps, out_dict)
        for tag, tensor in tag2tensor.items():
            measured = getattr(out_dict.get(tag), "measured", None)
            if measured is None:
                get_metrics(ops, {tag: tensor}, eps, out_dict)
                continue
            own: dict[str, Any] = {}
            get_metrics(own_ops, {tag: tensor}, eps, own)
            # In the order of ops: msProbe pairs names and values by position.
            for op in ops:
                out_dict[tag][op] = torch.tensor(measured[op]) if op in _MEASURED else own[tag][op]
        return out_dict

    return get_metrics_and_measure


class TrendCsvWriter(CSVWriterWithAD):  # type: ignore[misc]
    """A CSV writer of msProbe, alert rules included, that also records.

    An error of our own never leaves a method: it is logged once, and from then on this writer only does what msProbe's
    would do.
    """

    def __init__(self, writer_input: WriterInput, settings: TrendSettings, rank: int | None) -> None:
        super().__init__(writer_input)
        self._keep_files = settings.keep_files
        self._recorder = recorder_for(settings)
        self._recording = Recording("monitor data")
        if rank is not None:
            self._recorder.set_rank(rank)

    def write_csv(self, prefix: str, step: int) -> None:
        """Writes msProbe's file, if it is wanted."""
        if self._keep_files or self._recording.has_failed:
            super().write_csv(prefix, step)
        else:
            self.context_dict: Any = defaultdict(list)

    def write_metrics(self, ops: list[str], metric_value: Any, step: int, prefix: str = "", **kwargs: Any) -> None:
        """Takes the records of one metric and training step."""
        if self._recording.is_on and metric_value:
            with self._recording.guarded("taking monitor records"):
                self._record(ops, metric_value, step, prefix)
        super().write_metrics(ops, metric_value, step, prefix, **kwargs)

    def _record(self, ops: list[str], metric_value: dict[str, dict[str, Any]], step: int, prefix: str) -> None:
        statistics = [op for op in ops if op not in _NO_STATISTICS]
        rows: list[tuple[str, int, int, Sequence[float | None]]] = []
        for tag, metrics in metric_value.items():
            if not getattr(metrics, "is_of_tensor", True):
                continue  # as the merge leaves out its row
            # '<vpp>:<name>[:<micro-step>]/rank<R>/<kind>'
            stage, name, *micro_step = tag.split("/")[0].split(":")
            measured = getattr(metrics, "measured", None) or {}
            values = [measured[op] if op in measured else _number(metrics.get(op)) for op in statistics]
            rows.append((name, int(stage), int(micro_step[0]) if micro_step else 0, values))
        self._recorder.submit_monitor(int(step), prefix, statistics, rows)
        log_warning_of(self._recorder)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    return float(value.item() if isinstance(value, torch.Tensor) else value)
