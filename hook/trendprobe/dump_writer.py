"""Takes the place of msProbe's DataWriter: what PrecisionDebugger collects goes to the recorder, too.

Only the statistics are measured again, by our own code; which tensors are looked at, and what they are called, is
msProbe's decision alone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import torch
from msprobe.core.common.runtime import Runtime
from msprobe.core.dump.data_dump.json_writer import DataWriter

from trendprobe._tensor_stats import Statistics, measure, measure_on_device
from trendprobe.native_collector import NativeCollector
from trendprobe.recorders import Recording, before_exit, is_recording_process, log_warning_of, recorder_for
from trendprobe.settings import TrendSettings

_STEP_AND_PROCESS = re.compile(r"[/\\]step(\d+)[/\\](?:rank(\d+)|proc\d+)[/\\][^/\\]*$")
_PARAMETERS_GRAD = re.compile(r"\.parameters_grad(\.\d+)?$")
_INPUT_SECTIONS = ("input_args", "input_kwargs", "input")
# As in msProbe, integers and bools have none of these.
_OF_FLOATING_POINT = ("norm", "mean", "std")
_MSPROBE_KEYS = {"norm": "Norm", "max": "Max", "min": "Min", "mean": "Mean"}

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


class TrendDataWriter(DataWriter):  # type: ignore[misc]
    """A DataWriter of msProbe that also records.

    An error of our own never leaves a method: it is logged once, and from then on this writer only does what msProbe's
    would do.
    """

    def __init__(self, settings: TrendSettings) -> None:
        super().__init__()
        self._keep_files = settings.keep_files
        self._statistics = settings.stats
        self._recorder = recorder_for(settings)
        self._recording = Recording("dump data")
        self._measured: list[TensorMeasurement | None] = []  # by msProbe's tensor_stat_index
        self._last = threading.local()
        # By name in dump.json, by section: what follows the name in the target's name, and the measurement.
        self._entries: dict[str, dict[str, list[tuple[str, Any]]]] = {}
        self._recomputed: set[str] = set()
        self._native: NativeCollector | None = None
        before_exit(self.submit_unended_step)

    @property
    def keeps_files(self) -> bool:
        """True if the statistics of msProbe itself are wanted."""
        return self._keep_files or self._recording.has_failed

    @property
    def is_recording(self) -> bool:
        """In this process, and until an error of our own."""
        return self._recording.is_on

    def take_over(self, collector: Any) -> None:
        """Collects by our own code alone, if nobody wants more of this DataCollector, whose writer this is."""
        if self._keep_files or not NativeCollector.can_replace(collector):
            return
        with self._recording.guarded("replacing the methods of DataCollector"):
            self._native = NativeCollector(collector, self._recorder, self._statistics, self._end_recording)

    def _end_recording(self, error: Exception) -> None:
        with self._recording.guarded("collecting dump data"):
            raise error

    # Statistics

    def measure_tensor(self, tensor: torch.Tensor) -> TensorMeasurement | None:
        """Measures a tensor for the statistics that msProbe is about to append in this thread."""
        self._last.measurement = None
        with self._recording.guarded("measuring a tensor"):
            self._last.measurement = TensorMeasurement(tensor, "std" in self._statistics)
        return self._last.measurement  # type: ignore[no-any-return]

    def append_stat_to_buffer(self, stat_vector: list[Any]) -> int:
        """Keeps our measurement at the index that msProbe gives its own."""
        index = int(super().append_stat_to_buffer(stat_vector))
        with self._recording.guarded("keeping a measurement"):
            del self._measured[index:]
            self._measured.extend([None] * (index - len(self._measured)))
            self._measured.append(getattr(self._last, "measurement", None))
            self._last.measurement = None
        return index

    # Entries

    def update_data(self, new_data: dict[str, Any]) -> None:
        """Takes what msProbe collected on one call of a module or API."""
        if self.is_recording:
            with self._recording.guarded("taking an entry"):
                for name, sections in new_data.items():
                    self._take_entry(name, sections)
        super().update_data(new_data)

    def _take_entry(self, name: str, sections: dict[str, Any]) -> None:
        entry = self._entries.setdefault(name, {})
        for section, value in sections.items():
            tensors: list[tuple[str, Any]] = []
            if _PARAMETERS_GRAD.search(name):
                self._take_parameter(f".{section}", value, tensors)
            elif section == "parameters" and isinstance(value, dict):
                for parameter, tensor in value.items():
                    self._take_parameter(f".parameters.{parameter}", tensor, tensors)
            else:
                self._take_value(".input" if section in _INPUT_SECTIONS else f".{section}", value, tensors)
            entry[section] = tensors
        if torch._C._current_graph_task_id() != -1 and (".forward." in name or name.endswith(".forward")):
            self._recomputed.add(name)

    def _take_parameter(self, suffix: str, value: Any, tensors: list[tuple[str, Any]]) -> None:
        if isinstance(value, (list, tuple)):
            for index, element in enumerate(value):
                self._take_value(f"{suffix}.{index}" if index else suffix, element, tensors)
        else:
            self._take_value(suffix, value, tensors)

    def _take_value(self, suffix: str, value: Any, tensors: list[tuple[str, Any]]) -> None:
        if isinstance(value, (list, tuple)):
            for position, element in enumerate(value):
                self._take_value(f"{suffix}.{position}", element, tensors)
        elif isinstance(value, dict):
            index = value.get("tensor_stat_index")
            if isinstance(index, int):
                tensors.append((suffix, self._measured[index] if 0 <= index < len(self._measured) else None))
            elif "dtype" in value and "Max" in value:  # an array of NumPy, measured by msProbe
                tensors.append((suffix, tuple(value.get(_MSPROBE_KEYS.get(name)) for name in self._statistics)))
            else:
                for key, element in value.items():
                    if isinstance(element, (list, tuple, dict)):
                        self._take_value(f"{suffix}.{key}", element, tensors)

    # Files and steps

    def initialize_json_file(self, **kwargs: Any) -> None:
        """Begins a step's files, or only its memory without them."""
        with self._recording.guarded("describing the step"):
            for key in ("task", "level", "framework"):
                self._recorder.set_info(key, str(kwargs.get(key, "")))
        if self.keeps_files or kwargs.get("level") == "debug":
            super().initialize_json_file(**kwargs)
        elif not self.cache_data:
            self.cache_data: Any = {**kwargs, "dump_data_dir": self.dump_tensor_data_dir, "data": {}}

    def update_stack(self, name: str, stack_data: Any) -> None:
        """Call stacks go to msProbe's file only."""
        if self.keeps_files:
            super().update_stack(name, stack_data)

    def flush_data_periodically(self) -> None:
        """Writes msProbe's files, if they are wanted."""
        if self.keeps_files:
            super().flush_data_periodically()

    def write_json(self) -> None:
        """Writes msProbe's files, if they are wanted."""
        if self.keeps_files or self.cache_debug:
            super().write_json()
        else:
            self.stat_stack_list: Any = []
            self.crc32_stack_list: Any = []

    def reset_cache(self) -> None:
        """Ends a step: hands it to the recorder."""
        self.submit_step()
        super().reset_cache()

    def submit_unended_step(self) -> None:
        """Hands over what no step() of msProbe followed; between its start() and stop() the step is incomplete."""
        self.submit_step(complete=not Runtime.is_running)

    def submit_step(self, *, complete: bool = True) -> None:
        """Hands what was collected since the last call to the recorder, if anything."""
        entries, self._entries = self._entries, {}
        recomputed, self._recomputed = self._recomputed, set()
        self._measured = []
        native = self._native if self._native and not self._native.is_empty else None
        if not is_recording_process() or not (entries or native):
            return
        with self._recording.guarded("handing over a step"):
            found = _STEP_AND_PROCESS.search(self.dump_file_path or "")
            if not found:
                raise ValueError(f"no step in the path {self.dump_file_path!r}")
            rank = int(found[2]) if found[2] else _process_group_rank()
            if rank is not None:
                self._recorder.set_rank(rank)
            complete = complete and not self._recording.has_failed
            if native:
                native.submit(int(found[1]), complete=complete)
            if entries:
                self._submit_entries(int(found[1]), entries, recomputed, complete=complete)
            log_warning_of(self._recorder)

    def _submit_entries(
        self,
        step: int,
        entries: dict[str, dict[str, list[tuple[str, Any]]]],
        recomputed: set[str],
        *,
        complete: bool,
    ) -> None:
        data = self.cache_data.get("data") or {}
        self._fetch_from_devices(entries)
        self._recorder.submit_dump_step(
            step,
            self._statistics,
            [
                (
                    name,
                    name in recomputed,
                    [(suffix, self._values(m)) for section in entries[name].values() for suffix, m in section],
                )
                for name in data  # msProbe's order, without what it took back
                if name in entries
            ],
            self.cache_construct,
            complete=complete,
        )

    def _values(self, measurement: Any) -> tuple[float | None, ...]:
        if isinstance(measurement, TensorMeasurement):
            return measurement.values(self._statistics)
        return measurement if measurement is not None else (None,) * len(self._statistics)

    @staticmethod
    def _fetch_from_devices(entries: dict[str, dict[str, list[tuple[str, Any]]]]) -> None:
        """Brings what was measured on devices to the host: one copy a device."""
        waiting: dict[torch.device, list[TensorMeasurement]] = {}
        for sections in entries.values():
            for section in sections.values():
                for _, measurement in section:
                    if isinstance(measurement, TensorMeasurement) and isinstance(measurement.measured, torch.Tensor):
                        waiting.setdefault(measurement.measured.device, []).append(measurement)
        for measurements in waiting.values():
            rows = torch.stack([measurement.measured for measurement in measurements]).cpu().tolist()
            for measurement, row in zip(measurements, rows):
                measurement.measured = Statistics(row)


def _process_group_rank() -> int | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return None
