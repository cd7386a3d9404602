"""Attaches TrendProbe to the installed msProbe, at places where msProbe looks a name up when it needs it."""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import Any

from trendprobe.settings import TrendSettings, parse_settings, read_settings

logger = logging.getLogger("trendprobe")

_MARK = "_trendprobe_original"
_MSPROBE_STATISTICS = ("norm", "max", "min", "mean")


def enable() -> bool:
    """Lets msProbe record into shards wherever its configuration has an enabled ``trend_db`` block.

    Call it before PrecisionDebugger or TrainerMon is made. Calling it again does nothing. Returns False, after a
    warning, if msProbe or what TrendProbe needs of it is missing; the training is not affected then.
    """
    try:
        import_module("torch")  # loads the libraries that our extension is linked to
        import_module("trendprobe._tensor_stats")
    except ImportError as error:
        logger.warning("TrendProbe records nothing: %s (it must be built where torch is installed)", error)
        return False
    attached = [_attached("PrecisionDebugger", _attach_dump), _attached("TrainerMon", _attach_monitor)]
    return any(attached)


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


def _attach_dump() -> None:
    import_module("msprobe.pytorch")
    debugger = import_module("msprobe.core.dump.debugger.precision_debugger").BasePrecisionDebugger
    collector = import_module("msprobe.core.dump.data_dump.data_collector")
    processor = import_module("msprobe.core.dump.data_dump.data_processor.pytorch_processor").PytorchDataProcessor
    statistics_class = import_module("msprobe.core.dump.data_dump.data_processor.base").TensorStatInfo
    from trendprobe.dump_writer import TrendDataWriter

    settings = TrendSettings()

    def reading_settings(initialize: Any) -> Any:
        @functools.wraps(initialize)
        def initialize_with_settings(self: Any, config_path: Any = None, *args: Any, **kwargs: Any) -> None:
            nonlocal settings
            if not self.initialized and isinstance(config_path, str):
                settings = read_settings(config_path)
            initialize(self, config_path, *args, **kwargs)

        return initialize_with_settings

    def making_writer(data_writer: Any) -> Any:
        def make_writer() -> Any:
            return TrendDataWriter(settings) if settings.enable else data_writer()

        return make_writer

    def measuring(get_stat_info: Any) -> Any:
        @functools.wraps(get_stat_info)
        def get_stat_info_and_measure(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            writer = self.data_writer
            if not isinstance(writer, TrendDataWriter) or not writer.is_recording:
                return get_stat_info(self, data, *args, **kwargs)
            measurement = writer.measure_tensor(data)
            if measurement is None or writer.keeps_files or self.config.task not in ("statistics", "tensor"):
                return get_stat_info(self, data, *args, **kwargs)
            norm, largest, smallest, mean = measurement.values(_MSPROBE_STATISTICS)
            return statistics_class(largest, smallest, mean, norm)

        return get_stat_info_and_measure

    _replace(debugger, "__init__", reading_settings)
    def taking_over(initialize: Any) -> Any:
        @functools.wraps(initialize)
        def initialize_and_take_over(self: Any, *args: Any, **kwargs: Any) -> None:
            initialize(self, *args, **kwargs)
            if isinstance(self.data_writer, TrendDataWriter):
                self.data_writer.take_over(self)

        return initialize_and_take_over

    _replace(collector, "DataWriter", making_writer)
    _replace(collector.DataCollector, "__init__", taking_over)
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
