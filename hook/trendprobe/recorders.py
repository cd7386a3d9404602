"""The recorders of this process: one for each directory of shards, closed when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from trendprobe._recorder import Recorder
from trendprobe.settings import TrendSettings

logger = logging.getLogger("trendprobe")

# Of this process: what a forked child inherited belongs to its parent.
_recorders: dict[tuple[int, str], Recorder] = {}
_at_exit: list[tuple[int, weakref.WeakMethod[Callable[[], Any]]]] = []


def recorder_for(settings: TrendSettings) -> Recorder:
    """The recorder of the settings' directory, of this process. The first settings for a directory hold."""
    directory = os.path.abspath(settings.path)
    recorder = _recorders.get((os.getpid(), directory))
    if recorder is None:
        recorder = Recorder(
            directory,
            durability=settings.durability,
            queue_bytes=settings.queue_mb << 20,
            on_full=settings.on_full,
            rotate_bytes=settings.rotate_mb << 20,
        )
        recorder.set_info("directory", os.getcwd())
        _recorders[os.getpid(), directory] = recorder
        # A child forked by multiprocessing ends without atexit.
        multiprocessing.util.Finalize(None, close_recorders, exitpriority=0)
    return recorder


class Recording:
    """Whether a writer of ours records: in the process that made it, and until an error of our own."""

    def __init__(self, of_what: str) -> None:
        self._of_what = of_what
        self._pid = os.getpid()
        self.has_failed = False

    @property
    def is_in_its_process(self) -> bool:
        """False in a forked child, such as a data loader's worker: it must not record what its parent set up."""
        return os.getpid() == self._pid

    @property
    def is_on(self) -> bool:
        """There was no error, and this is no forked child."""
        return not self.has_failed and self.is_in_its_process

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
    _at_exit.append((os.getpid(), weakref.WeakMethod(submit)))


def log_warning_of(recorder: Recorder) -> None:
    """Logs what the recorder has to say of the storage, each thing once."""
    while warning := recorder.take_warning():
        logger.warning("%s", warning)


@atexit.register
def close_recorders() -> None:
    """Submits what is left and closes every shard of this process."""
    pid = os.getpid()
    for submitting, reference in _at_exit:
        if submitting == pid and (submit := reference()):
            submit()
    _at_exit.clear()
    for key, recorder in list(_recorders.items()):
        if key[0] == pid:
            recorder.close()
            log_warning_of(recorder)
            del _recorders[key]
