"""Takes the place of CSVWriterV2: what TrainerMonitorV2 collects goes to the recorder, too. Of any framework."""

from __future__ import annotations

from typing import Any

from msprobe.core.common.const import Const
from msprobe.core.common.framework_adapter import FmkAdp
from msprobe.core.monitor_v2.writer import CSVWriterV2

from trendprobe.recorders import Recording, log_warning_of, recorder_for
from trendprobe.settings import TrendSettings


class TrendCsvWriterV2(CSVWriterV2):  # type: ignore[misc]
    """A CSV writer of TrainerMonitorV2 that also records.

    An error of our own never leaves a method: it is logged once, and from then on this writer only does what msProbe's
    would do.
    """

    def __init__(self, out_dir: str, rank: int, settings: TrendSettings) -> None:
        super().__init__(out_dir, rank=rank)
        self.keep_files = settings.keep_files
        self.recording = Recording("monitor data")
        self._recorder = recorder_for(settings)
        self._recorder.set_rank(rank)

    def write_monitor_data(self, monitor_data: dict[str, Any]) -> Any:
        """Takes the rows of one monitor and training step."""
        rows = monitor_data.get("rows")
        if rows and self.recording.is_on:
            with self.recording.guarded("taking monitor records"):
                self._record(rows, int(monitor_data["step"]), str(monitor_data["slug"]))
        if self.keep_files or self.recording.has_failed:
            return super().write_monitor_data(monitor_data)
        return None

    def _record(self, rows: list[dict[str, Any]], step: int, slug: str) -> None:
        statistics = list(dict.fromkeys(op for row in rows for op in row.get("stats") or {}))
        if FmkAdp.fmk == Const.PT_FRAMEWORK:
            from trendprobe.device_values import fetch_from_devices

            values = [[row["stats"].get(op) for op in statistics] for row in rows]
            fetch_from_devices(values)
        else:
            values = [[row[op] for op in statistics] for row in self._flatten_rows(rows)]
        recorded: list[Any] = []
        for row, numbers in zip(rows, values):
            place = (int(row.get("vpp_stage", -1)), int(row.get("micro_step", 0)))
            recorded.append((row["module_name"], row.get("scope", ""), *place, numbers))
        self._recorder.submit_monitor_v2(step, slug, statistics, recorded)
        log_warning_of(self._recorder)

    @staticmethod
    def _stack_tensors(tensors: list[Any]) -> Any:
        """As msProbe's, but takes the numbers, too, that we measured before an error of our own."""
        if FmkAdp.fmk == Const.PT_FRAMEWORK:
            import torch

            tensors = [value if isinstance(value, torch.Tensor) else torch.tensor(value) for value in tensors]
        return CSVWriterV2._stack_tensors(tensors)
