"""PrecisionDebugger's writer on PyTorch: the statistics are measured by our own code."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from trendprobe._tensor_stats import Statistics, measure, measure_on_device
from trendprobe.dump_writer import TrendDataWriter
from trendprobe.native_collector import NativeCollector
from trendprobe.settings import TrendSettings

# As in msProbe, integers and bools have none of these.
_OF_FLOATING_POINT = ("norm", "mean", "std")

Measured = Any  # Statistics, a tensor on a device, or None


class TensorMeasurement:
    """What was measured of one tensor: at once on the CPU, at the end of the step on a device."""

    __slots__ = ("is_floating_point", "measured")

    def __init__(self, tensor: torch.Tensor, with_std: bool) -> None:
        self.is_floating_point = tensor.is_floating_point() or tensor.is_complex()
        self.measured: Measured = measure(tensor, with_std)
        if self.measured is None and tensor.device.type not in ("cpu", "meta"):
            self.measured = measure_on_device(tensor, with_std)

    def values(self, statistics: Sequence[str]) -> tuple[float | None, ...]:
        """Their values, None where there is none."""
        if not isinstance(self.measured, Statistics):
            return (None,) * len(statistics)
        if self.is_floating_point:
            return tuple(getattr(self.measured, name) for name in statistics)
        return tuple(None if name in _OF_FLOATING_POINT else getattr(self.measured, name) for name in statistics)


class PytorchDataWriter(TrendDataWriter):
    """As TrendDataWriter."""

    def __init__(self, settings: TrendSettings) -> None:
        super().__init__(settings)
        self._last = threading.local()
        self._native: NativeCollector | None = None

    def take_over(self, collector: Any) -> None:
        """Collects by our own code alone, if nobody wants more of this DataCollector, whose writer this is."""
        if self._keep_files or not NativeCollector.can_replace(collector):
            return
        with self._recording.guarded("replacing the methods of DataCollector"):
            self._native = NativeCollector(collector, self._recorder, self._statistics, self._end_recording)

    def _end_recording(self, error: Exception) -> None:
        with self._recording.guarded("collecting dump data"):
            raise error

    def measure_tensor(self, tensor: torch.Tensor) -> TensorMeasurement | None:
        """Measures a tensor for the statistics that msProbe is about to append in this thread."""
        self._last.measurement = None
        with self._recording.guarded("measuring a tensor"):
            self._last.measurement = TensorMeasurement(tensor, "std" in self._statistics)
        return self._last.measurement  # type: ignore[no-any-return]

    def take_measurement(self, stat_vector: list[Any]) -> TensorMeasurement | None:
        """What measure_tensor() measured in this thread."""
        measurement = getattr(self._last, "measurement", None)
        self._last.measurement = None
        return measurement

    def values_of(self, measurement: TensorMeasurement) -> tuple[float | None, ...]:
        """The chosen statistics, None where there is none."""
        return measurement.values(self._statistics)

    def is_within_backward(self) -> bool:
        """True for both kinds of activation checkpointing."""
        return torch._C._current_graph_task_id() != -1

    def process_group_rank(self) -> int | None:
        """The rank in the default process group."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        return None

    def fetch(self, measurements: list[Any]) -> None:
        """Brings what was measured on devices to the host: one copy a device."""
        waiting: dict[torch.device, list[TensorMeasurement]] = {}
        for measurement in measurements:
            if isinstance(measurement, TensorMeasurement) and isinstance(measurement.measured, torch.Tensor):
                waiting.setdefault(measurement.measured.device, []).append(measurement)
        for of_device in waiting.values():
            rows = torch.stack([measurement.measured for measurement in of_device]).cpu().tolist()
            for measurement, row in zip(of_device, rows):
                measurement.measured = Statistics(row)

    @property
    def has_more(self) -> bool:
        """What the methods collected that stand in for those of DataCollector."""
        return self._native is not None and not self._native.is_empty

    def submit_more(self, step: int, *, complete: bool) -> None:
        """Hands it over."""
        if self._native is not None and not self._native.is_empty:
            self._native.submit(step, complete=complete)
