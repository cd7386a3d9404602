"""Takes the place of msProbe's CSV writer: what TrainerMon collects goes to the recorder, too."""

from __future__ import annotations

from typing import Any

from msprobe.pytorch.monitor.data_writers import BaseWriterWithAD, CSVWriterWithAD, WriterInput

from trendprobe.device_values import fetch_from_devices
from trendprobe.monitor_metrics import MetricsOfNoTensor, MonitorOps
from trendprobe.recorders import Recording, before_exit, log_warning_of, recorder_for
from trendprobe.settings import TrendSettings

# Columns of its CSV that are no statistics.
_NO_STATISTICS = ("shape", "dtype", "id")


class TrendCsvWriter(CSVWriterWithAD):  # type: ignore[misc]
    """A CSV writer of msProbe, alert rules included, that also records.

    An error of our own never leaves a method: it is logged once, and from then on this writer only does what msProbe's
    would do.
    """

    def __init__(self, writer_input: WriterInput, settings: TrendSettings, rank: int) -> None:
        super().__init__(writer_input)
        self._keep_files = settings.keep_files
        self._recorder = recorder_for(settings)
        self._recording = Recording("monitor data")
        self._recorder.set_rank(rank)
        # Rows by step, metric and statistics. Until the step has ended: so that there is one block a metric, and one
        # copy from a device.
        self._waiting: dict[tuple[int, str, tuple[str, ...]], list[Any]] = {}
        before_exit(self.submit_waiting)

    def recorded(self, ops: list[str]) -> MonitorOps:
        """The monitor's operations, so marked that get_metrics() does what this writer needs."""
        return MonitorOps(ops, self._recording, self._keep_files)

    def write_metrics(self, ops: list[str], metric_value: Any, step: int, prefix: str = "", **kwargs: Any) -> None:
        """Takes the records of one metric and training step, and applies msProbe's alert rules to them."""
        if metric_value and self._recording.is_on:
            with self._recording.guarded("taking monitor records"):
                self._take(ops, metric_value, step, prefix)
        if self._keep_files or self._recording.has_failed:
            super().write_metrics(ops, metric_value, step, prefix, **kwargs)
        elif metric_value and self.ad_rules:
            self._apply_rules(ops, metric_value, step)

    def clear_anomalies(self) -> None:
        """Msprobe has written the last metric of a step: hands the step over."""
        self.submit_waiting()
        super().clear_anomalies()

    def _take(self, ops: list[str], metric_value: dict[str, dict[str, Any]], step: int, prefix: str) -> None:
        statistics = tuple(op for op in ops if op not in _NO_STATISTICS)
        for tag, metrics in metric_value.items():
            if type(metrics) is MetricsOfNoTensor:
                continue  # as the merge leaves out its row
            # '<vpp>:<name>[:<micro-step>]/rank<R>/<kind>', or of a collective '<operation>/rank<R>/<pre or post>_<i>'
            target, _, kind = tag.partition("/")
            metric = prefix
            stage, *rest = target.split(":")
            if rest:
                row = (rest[0], int(stage), int(rest[1]) if len(rest) > 1 else 0)
            else:
                metric, row = "cc", (f"{target}.{kind.rpartition('/')[2]}", 0, 0)
            values = [metrics.get(op) for op in statistics]
            self._waiting.setdefault((int(step), metric, statistics), []).append((*row, values))

    def submit_waiting(self) -> None:
        """Hands over what was taken since the last call."""
        waiting, self._waiting = self._waiting, {}
        if not waiting or not self._recording.is_on:
            return
        with self._recording.guarded("handing over monitor records"):
            fetch_from_devices([row[3] for rows in waiting.values() for row in rows])
            for (step, metric, statistics), rows in waiting.items():
                self._recorder.submit_monitor(step, metric, statistics, rows)
            log_warning_of(self._recorder)

    def _apply_rules(self, ops: list[str], metric_value: dict[str, dict[str, Any]], step: int) -> None:
        tags = [(tag, op) for tag in metric_value for op in ops]
        values = [metric_value[tag].get(op) for tag, op in tags]
        fetch_from_devices([values])
        for tag, value in zip(tags, values):
            if value is not None:
                BaseWriterWithAD.add_scalar(self, tag, value, step)
