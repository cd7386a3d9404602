"""Takes the place of msProbe's DataWriter: what PrecisionDebugger collects goes to the recorder, too.

Of any framework: where the statistics come from is the subclass's matter. Which tensors are looked at, and what they
are called, is msProbe's decision alone.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

from msprobe.core.common.runtime import Runtime
from msprobe.core.dump.data_dump.json_writer import DataWriter

from trendprobe.recorders import Recording, before_exit, log_warning_of, recorder_for
from trendprobe.settings import TrendSettings

_STEP_AND_PROCESS = re.compile(r"[/\\]step(\d+)[/\\](?:rank(\d+)|proc\d+)[/\\][^/\\]*$")
_PARAMETERS_GRAD = re.compile(r"\.parameters_grad(\.\d+)?$")
_INPUT_SECTIONS = ("input_args", "input_kwargs", "input")
_MSPROBE_KEYS = {"norm": "Norm", "max": "Max", "min": "Min", "mean": "Mean"}

Entries = dict[str, dict[str, list[tuple[str, Any]]]]


class TrendDataWriter(DataWriter, ABC):  # type: ignore[misc]
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
        self._measured: list[Any] = []  # by msProbe's tensor_stat_index
        # By name in dump.json, by section: what follows the name in the target's name, and the measurement.
        self._entries: Entries = {}
        self._recomputed: set[str] = set()
        before_exit(self.submit_unended_step)

    @property
    def keeps_files(self) -> bool:
        """True if the statistics of msProbe itself are wanted."""
        return self._keep_files or self._recording.has_failed

    @property
    def is_recording(self) -> bool:
        """In this process, and until an error of our own."""
        return self._recording.is_on

    # What a framework has

    @abstractmethod
    def take_measurement(self, stat_vector: list[Any]) -> Any:
        """The measurement of the tensor whose statistics msProbe is appending in this thread; None: there is none."""

    @abstractmethod
    def values_of(self, measurement: Any) -> tuple[float | None, ...]:
        """The chosen statistics of a measurement, None where there is none."""

    def fetch(self, measurements: list[Any]) -> None:
        """Brings to the host what is still on a device."""

    def is_within_backward(self) -> bool:
        """The forward that is being recorded is a recomputation."""
        return False

    def process_group_rank(self) -> int | None:
        """The rank, if it is known."""
        return None

    @property
    def has_more(self) -> bool:
        """Something was collected since the last step that msProbe did not hand to this writer."""
        return False

    def submit_more(self, step: int, *, complete: bool) -> None:
        """Hands it over."""

    # Statistics

    def append_stat_to_buffer(self, stat_vector: list[Any]) -> int:
        """Keeps our measurement at the index that msProbe gives its own."""
        index = int(super().append_stat_to_buffer(stat_vector))
        with self._recording.guarded("keeping a measurement"):
            del self._measured[index:]
            self._measured.extend([None] * (index - len(self._measured)))
            self._measured.append(self.take_measurement(stat_vector))
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
        if self.is_within_backward() and (".forward." in name or name.endswith(".forward")):
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
        if not self._recording.is_in_its_process or not (entries or self.has_more):
            return
        with self._recording.guarded("handing over a step"):
            found = _STEP_AND_PROCESS.search(self.dump_file_path or "")
            if not found:
                raise ValueError(f"no step in the path {self.dump_file_path!r}")
            rank = int(found[2]) if found[2] else self.process_group_rank()
            if rank is not None:
                self._recorder.set_rank(rank)
            complete = complete and not self._recording.has_failed
            self.submit_more(int(found[1]), complete=complete)
            if entries:
                self._submit_entries(int(found[1]), entries, recomputed, complete=complete)
            log_warning_of(self._recorder)

    def _submit_entries(
        self,
        step: int,
        entries: Entries,
        recomputed: set[str],
        *,
        complete: bool,
    ) -> None:
        data = self.cache_data.get("data") or {}
        self.fetch([m for sections in entries.values() for section in sections.values() for _, m in section])
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
        if measurement is None:
            return (None,) * len(self._statistics)
        return measurement if isinstance(measurement, tuple) else self.values_of(measurement)
