"""The recorders of this process: one for each directory of shards, closed when the process ends."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable

from trendprobe._recorder import Recorder
from trendprobe.settings import TrendSettings

logger = logging.getLogger("trendprobe")

_recorders: dict[str, Recorder] = {}
_at_exit: list[Callable[[], None]] = []
_pid = os.getpid()


def recorder_for(settings: TrendSettings) -> Recorder:
    """The recorder of the settings' directory. The first settings for a directory hold."""
    directory = os.path.abspath(settings.path)
    recorder = _recorders.get(directory)
    if recorder is None:
        recorder = Recorder(
            directory,
            durability=settings.durability,
            queue_bytes=settings.queue_mb << 20,
            on_full=settings.on_full,
        )
        recorder.set_info("directory", os.getcwd())
        _recorders[directory] = recorder
    return recorder


def is_recording_process() -> bool:
    """False in a forked child, such as a data loader's worker: it must not record."""
    return os.getpid() == _pid


def before_exit(submit: Callable[[], None]) -> None:
    """Calls ``submit`` when the process ends in order, before the shards are closed."""
    _at_exit.append(submit)


def log_warning_of(recorder: Recorder) -> None:
    """Logs a storage error that the recorder had, once."""
    if warning := recorder.take_warning():
        logger.warning("recording failed: %s", warning)


@atexit.register
def close_recorders() -> None:
    """Submits what is left and closes every shard of this process."""
    if not is_recording_process():
        return
    for submit in _at_exit:
        submit()
    _at_exit.clear()
    for recorder in _recorders.values():
        recorder.close()
        log_warning_of(recorder)
    _recorders.clear()
