"""Takes the place of get_metrics(), with which msProbe's monitors on PyTorch compute the operations of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msprobe.pytorch.monitor.features import get_zeros

from trendprobe._tensor_stats import count_near_zeros, measure, measure_on_device
from trendprobe.device_values import is_in_main_memory
from trendprobe.recorders import Recording

# Fields of a Statistics. Msprobe's "zeros" is something else than theirs: the share of elements nearer to 0 than eps.
_FIELDS = {"norm": 0, "max": 1, "min": 2, "mean": 3, "nans": 4}
_COUNT = 7


class MonitorOps(list[str]):
    """The list of a monitor's operations, by which get_metrics() knows a monitor that records."""

    def __init__(self, ops: list[str], recording: Recording, keep_files: bool) -> None:
        super().__init__(ops)
        self.recording = recording
        self.keep_files = keep_files


class MetricsOfNoTensor(dict[str, Any]):
    """What msProbe fills in for an argument of a module that is no tensor: NaN for every operation."""


def measuring(get_metrics: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps get_metrics(): where a monitor's files are not wanted, one pass of ours takes the place of its operations.

    The values of tensors in main memory are numbers then. Those of others are 0-d tensors on their device, as msProbe's
    are: nothing waits for them. A tensor that can't be measured is left to msProbe.
    """

    def get_metrics_or_measure(ops: list[str], tag2tensor: dict[str, Any], eps: float, out_dict: Any = None) -> Any:
        if type(ops) is not MonitorOps or not ops.recording.is_on:
            return get_metrics(ops, tag2tensor, eps, out_dict)
        metrics_of = {} if out_dict is None else out_dict
        for tag, tensor in tag2tensor.items():
            if not isinstance(tensor, torch.Tensor):
                get_metrics(ops, {tag: tensor}, eps, metrics_of)
                metrics_of[tag] = MetricsOfNoTensor(metrics_of[tag])
                continue
            metrics = None
            if not ops.keep_files:
                try:
                    metrics = _measured(ops, tensor, eps)
                except Exception:
                    ops.recording.fail("measuring a tensor")
            if metrics is None:
                get_metrics(ops, {tag: tensor}, eps, metrics_of)
            else:
                metrics_of[tag] = metrics
        return metrics_of

    return get_metrics_or_measure


def _measured(ops: list[str], tensor: torch.Tensor, eps: float) -> dict[str, Any] | None:
    """None where the tensor can't be measured, or is not of floating-point numbers."""
    if not tensor.is_floating_point():
        return None
    if is_in_main_memory(tensor):
        values: Any = measure(tensor)
        if values is None:
            return None
        near_zeros = count_near_zeros(tensor, eps) if "zeros" in ops else None
        share = get_zeros(tensor, eps) if near_zeros is None and "zeros" in ops else (near_zeros or 0) / values[_COUNT]
    else:
        row = measure_on_device(tensor)
        if row is None:
            return None
        values = row.unbind()
        share = get_zeros(tensor, eps).to(row.dtype) if "zeros" in ops else None
    metrics: dict[str, Any] = {}
    for op in ops:
        if op in _FIELDS:
            metrics[op] = values[_FIELDS[op]]
        elif op == "zeros":
            metrics[op] = share
        elif op == "shape":
            metrics[op] = tensor.shape
        elif op == "dtype":
            metrics[op] = tensor.dtype
        elif op == "id":
            metrics[op] = tensor.detach().clone() if tensor.dim() == 0 else None
        else:
            return None  # an operation that this msProbe has and we don't know
    return metrics
