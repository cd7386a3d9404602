"""The recorders of this process: one for each directory of shards, closed when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from trendprobe._recorder import Recorder
from trendprobe.settings import TrendSettings

logger = logging.getLogger("trendprobe")

_recorders: dict[str, Recorder] = {}
_at_exit: list[weakref.WeakMethod[Callable[[], Any]]] = []
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
            rotate_bytes=settings.rotate_mb << 20,
        )
        recorder.set_info("directory", os.getcwd())
        _recorders[directory] = recorder
    return recorder


def is_recording_process() -> bool:
    """False in a forked child, such as a data loader's worker: it must not record."""
    return os.getpid() == _pid


class Recording:
    """Whether a writer of ours records: in the process that made it, and until an error of our own."""

    def __init__(self, of_what: str) -> None:
        self._of_what = of_what
        self.has_failed = False

    @property
    def is_on(self) -> bool:
        """There was no error, and this is no forked child."""
        return not self.has_failed and is_recording_process()

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Keeps every error from the training: the first is logged, and ends the recording."""
        try:
            yield
        except Exception:
            self.fail(doing)

    def fail(self, doing: str) -> None:
        """Logs the error that is being handled, if it is the first, and ends the recording."""
        if not self.has_failed:
            self.has_failed = True
            logger.warning(
                "error while %s: TrendProbe records no more %s; the training goes on",
                doing,
                self._of_what,
                exc_info=True,
            )


def before_exit(submit: Callable[[], Any]) -> None:
    """Calls ``submit``, a method, when the process ends in order, before the shards are closed.

    Its object is not kept alive by this.
    """
    _at_exit.append(weakref.WeakMethod(submit))


def log_warning_of(recorder: Recorder) -> None:
    """Logs what the recorder has to say of the storage, each thing once."""
    while warning := recorder.take_warning():
        logger.warning("%s", warning)


@atexit.register
def close_recorders() -> None:
    """Submits what is left and closes every shard of this process."""
    if not is_recording_process():
        return
    for reference in _at_exit:
        if submit := reference():
            submit()
    _at_exit.clear()
    for recorder in _recorders.values():
        recorder.close()
        log_warning_of(recorder)
    _recorders.clear()
