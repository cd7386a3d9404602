"""Attaches TrendProbe to the installed msProbe, at places where msProbe looks a name up when it needs it."""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from trendprobe.settings import TrendSettings, parse_settings, read_settings

logger = logging.getLogger("trendprobe")

_MARK = "_trendprobe_original"
_MSPROBE_STATISTICS = ("norm", "max", "min", "mean")


def enable() -> bool:
    """Lets msProbe record into shards wherever its configuration has an enabled ``trend_db`` block.

    Call it before PrecisionDebugger, TrainerMon or TrainerMonitorV2 is made. Calling it again does nothing. Returns
    False, after a warning, if msProbe or what TrendProbe needs of it is missing; the training is not affected then.
    """
    on_pytorch = _can_measure()
    if not on_pytorch and find_spec("mindspore") is None:
        return False
    attached = [_attached("PrecisionDebugger", lambda: _attach_dump(on_pytorch=on_pytorch))]
    if on_pytorch:
        attached.append(_attached("TrainerMon", _attach_monitor))
    attached.append(_attached("TrainerMonitorV2", lambda: _attach_monitor_v2(on_pytorch=on_pytorch)))
    return any(attached)


def _can_measure() -> bool:
    """Whether the statistics of PyTorch's tensors can be had; says why not, unless MindSpore is there instead."""
    try:
        import_module("torch")  # loads the libraries that our extension is linked to
        import_module("trendprobe._tensor_stats")
    except ImportError as error:
        if find_spec("torch") is not None or find_spec("mindspore") is None:
            logger.warning(
                "TrendProbe records nothing of PyTorch: %s (it must be built where torch is installed)", error
            )
        return False
    return True


def _attached(what: str, attach: Any) -> bool:
    try:
        attach()
    except (ImportError, AttributeError) as error:
        logger.warning("TrendProbe can't attach to msProbe's %s (made for mindstudio-probe 26.2.0): %s", what, error)
        return False
    return True


def _replace(owner: Any, name: str, replacement: Any) -> None:
    """Puts ``replacement`` at owner.name, once."""
    original = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    if hasattr(original, _MARK):
        return
    made = replacement(original)
    setattr(made, _MARK, original)
    if isinstance(owner, dict):
        owner[name] = made
    else:
        setattr(owner, name, made)


def _attach_dump(*, on_pytorch: bool) -> None:
    if on_pytorch:
        import_module("msprobe.pytorch")
    import_module("concurrent.futures")  # used by msProbe's json_writer, which imports "concurrent" alone
    debugger = import_module("msprobe.core.dump.debugger.precision_debugger").BasePrecisionDebugger
    collector = import_module("msprobe.core.dump.data_dump.data_collector")
    settings = TrendSettings()
    writer_class: Any = None

    def reading_settings(initialize: Any) -> Any:
        @functools.wraps(initialize)
        def initialize_with_settings(self: Any, config_path: Any = None, *args: Any, **kwargs: Any) -> None:
            nonlocal settings, writer_class
            if not self.initialized and isinstance(config_path, str):
                settings = read_settings(config_path)
                writer_class = _dump_writer_class(type(self), on_pytorch=on_pytorch) if settings.enable else None
            initialize(self, config_path, *args, **kwargs)

        return initialize_with_settings

    def making_writer(data_writer: Any) -> Any:
        def make_writer() -> Any:
            return writer_class(settings) if writer_class else data_writer()

        return make_writer

    _replace(debugger, "__init__", reading_settings)
    _replace(collector, "DataWriter", making_writer)
    if on_pytorch:
        _measure_dump(collector.DataCollector)


def _dump_writer_class(debugger: type, *, on_pytorch: bool) -> Any:
    if any(base.__module__.startswith("msprobe.mindspore.") for base in debugger.__mro__):
        return import_module("trendprobe.mindspore_dump_writer").MindsporeDataWriter
    return import_module("trendprobe.pytorch_dump_writer").PytorchDataWriter if on_pytorch else None


def _measure_dump(data_collector: Any) -> None:
    """For PrecisionDebugger on PyTorch."""
    processor = import_module("msprobe.core.dump.data_dump.data_processor.pytorch_processor").PytorchDataProcessor
    statistics_class = import_module("msprobe.core.dump.data_dump.data_processor.base").TensorStatInfo
    from trendprobe.pytorch_dump_writer import PytorchDataWriter

    def measuring(get_stat_info: Any) -> Any:
        @functools.wraps(get_stat_info)
        def get_stat_info_and_measure(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            writer = self.data_writer
            if not isinstance(writer, PytorchDataWriter) or not writer.is_recording:
                return get_stat_info(self, data, *args, **kwargs)
            measurement = writer.measure_tensor(data)
            if measurement is None or writer.keeps_files or self.config.task not in ("statistics", "tensor"):
                return get_stat_info(self, data, *args, **kwargs)
            norm, largest, smallest, mean = measurement.values(_MSPROBE_STATISTICS)
            return statistics_class(largest, smallest, mean, norm)

        return get_stat_info_and_measure

    def taking_over(initialize: Any) -> Any:
        @functools.wraps(initialize)
        def initialize_and_take_over(self: Any, *args: Any, **kwargs: Any) -> None:
            initialize(self, *args, **kwargs)
            if isinstance(self.data_writer, PytorchDataWriter):
                self.data_writer.take_over(self)

        return initialize_and_take_over

    _replace(data_collector, "__init__", taking_over)
    _replace(processor, "get_stat_info", measuring)


def _attach_monitor() -> None:
    module_hook = import_module("msprobe.pytorch.monitor.module_hook")
    writers = import_module("msprobe.pytorch.monitor.data_writers")
    from trendprobe.monitor_metrics import measuring
    from trendprobe.monitor_writer import TrendCsvWriter

    def recording(set_config: Any) -> Any:
        @functools.wraps(set_config)
        def set_config_and_record(self: Any, *args: Any, **kwargs: Any) -> Any:
            settings = parse_settings(self.config.get("trend_db"), str(self.config_file_path))
            set_config(self, *args, **kwargs)
            # Of another class: the user's own format. None: a rank that is not monitored.
            if not settings.enable or type(getattr(self, "summary_writer", None)) is not writers.CSVWriterWithAD:
                return
            self.summary_writer = TrendCsvWriter(
                writers.WriterInput(
                    self.tensorboard_dir,
                    self.alert_rules,
                    self.unique_id,
                    self.anomaly_data_factory,
                    self.ndigits,
                    self.step_count_per_record,
                ),
                settings,
                self.rank,
            )
            self._ops = self.summary_writer.recorded(self._ops)

        return set_config_and_record

    def looking_for_backward(is_recomputation: Any) -> Any:
        def is_recomputation_within_backward(*args: Any, **kwargs: Any) -> Any:
            # A forward runs again within a backward pass only. To find out on the call stack takes msProbe longer
            # than many a module's forward.
            if not args and not kwargs and torch._C._current_graph_task_id() == -1:
                return False
            return is_recomputation(*args, **kwargs)

        return is_recomputation_within_backward

    torch = import_module("torch")
    _replace(module_hook.TrainerMon, "set_config", recording)
    _replace(module_hook, "is_recomputation", looking_for_backward)
    for module in (module_hook, import_module("msprobe.pytorch.monitor.optimizer_collect")):
        _replace(module, "get_metrics", measuring)


def _attach_monitor_v2(*, on_pytorch: bool) -> None:
    trainer = import_module("msprobe.core.monitor_v2.trainer")
    csv_writer = import_module("msprobe.core.monitor_v2.writer").CSVWriterV2
    from trendprobe.monitor_v2_writer import TrendCsvWriterV2

    def recording(initialize: Any) -> Any:
        @functools.wraps(initialize)
        def initialize_and_record(self: Any, config_path: Any, *args: Any, **kwargs: Any) -> None:
            settings = read_settings(config_path)
            initialize(self, config_path, *args, **kwargs)
            is_pytorch = self.framework == "pytorch"
            if not settings.enable or type(self.writer) is not csv_writer or (is_pytorch and not on_pytorch):
                return
            self.writer = TrendCsvWriterV2(self.output_dir, self.rank, settings)
            if is_pytorch:
                _measure_in_one_pass(self)

        return initialize_and_record

    _replace(trainer.TrainerMonitorV2, "__init__", recording)


def _measure_in_one_pass(monitor: Any) -> None:
    """For a TrainerMonitorV2 on PyTorch, which asks msProbe for get_metrics() whenever it needs it."""
    from trendprobe.monitor_metrics import MonitorOps, measuring

    _replace(import_module("msprobe.pytorch.monitor.module_metric"), "get_metrics", measuring)
    for part in monitor.monitors:
        part._ops = MonitorOps(part._ops, monitor.writer.recording, monitor.writer.keep_files)
