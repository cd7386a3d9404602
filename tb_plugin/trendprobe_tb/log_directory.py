"""Finds the trend databases below TensorBoard's log directories.

TensorBoard's own run discovery looks at event files only, so the directories are walked here: in a thread of its own,
because a log directory on a network file system can take minutes; bounded in depth and number of directories; never
through a symbolic link that leaves the log directory. What the page calls a database id is a path relative to its log
directory, and only ids that such a walk found can be opened.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trendprobe_tb.request_error import RequestError

__all__ = ["DatabaseFile", "Listing", "LogDirectory", "file_version", "parse_logdir_spec"]

SUFFIX: Final = ".trend.db"
MAX_DEPTH: Final = 32
MAX_DIRECTORIES: Final = 100_000
MAX_FILES: Final = 10_000
# A listing younger than this is served as it is. TensorBoard asks is_active() at every reload of its plugin list.
FRESH_SECONDS: Final = 5.0


@dataclass(frozen=True)
class DatabaseFile:
    """A trend database as the last look at the file system found it.

    Attributes:
        id: Path relative to the log directory, with `/`; preceded by the name of the log directory under --logdir_spec.
        path: Where the file is. Never shown to a user.
        root: Real path of the log directory that the file must stay in.
        size: Bytes.
        modified: Seconds since 1970.
        version: Changes whenever the file is replaced or written to.

    """

    id: str
    path: str
    root: str
    size: int
    modified: float
    version: str


@dataclass(frozen=True)
class Listing:
    """Outcome of a walk.

    Attributes:
        files: By id, sorted.
        notes: What was left out and why, for the user.
        complete: False while the first walk is still under way.

    """

    files: Mapping[str, DatabaseFile]
    notes: tuple[str, ...]
    complete: bool


def parse_logdir_spec(spec: str) -> dict[str, str]:
    """Split TensorBoard's `--logdir_spec`, `name:/path,name:/path`, into {name: path}.

    A part without a name gets its number, as in TensorBoard.
    """
    roots: dict[str, str] = {}
    for number, part in enumerate(part for part in spec.split(",") if part.strip()):
        name, colon, path = part.partition(":")
        # "/a:b" is a path with a colon, not a name: names have no slash.
        if not colon or "/" in name or "\\" in name:
            name, path = str(number), part
        roots[name.strip()] = path.strip()
    return roots


class LogDirectory:
    """The trend databases below a set of log directories. Thread-safe.

    Args:
        roots: {prefix: directory}. The prefix is put before the ids of the directory's files ("" for --logdir).

    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        self._roots = {prefix: os.path.realpath(os.path.expanduser(path)) for prefix, path in roots.items() if path}
        self._condition = threading.Condition()
        self._listing = Listing({}, (), complete=False)
        self._listed_at = float("-inf")
        self._walking = False

    def listing(self, wait_seconds: float, max_age_seconds: float = FRESH_SECONDS) -> Listing:
        """Return the databases found by the last walk; start a new one when that is old.

        Args:
            wait_seconds: How long to wait for a walk before answering with what is known.
            max_age_seconds: A walk that started longer ago is old.

        """
        deadline = time.monotonic() + wait_seconds
        with self._condition:
            oldest = time.monotonic() - max_age_seconds
            while self._listed_at < oldest or not self._listing.complete:
                if not self._walking:
                    self._walking = True
                    threading.Thread(target=self._walk, name="trendprobe-scan", daemon=True).start()
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._condition.wait(remaining):
                    break
            return self._listing

    def has_databases(self) -> bool:
        """Tell whether any database is known; wait a moment for the very first walk, never for a later one."""
        listing = self.listing(wait_seconds=0.0)
        if not listing.complete:
            listing = self.listing(wait_seconds=0.5, max_age_seconds=float("inf"))
        return bool(listing.files)

    def find(self, database_id: str) -> DatabaseFile:
        """Return the database with this id, as the file system has it now.

        Raises:
            RequestError: 404 when no walk found it, when it is gone, or when it is now a link out of the directory.

        """
        file = self._listing.files.get(database_id)
        if file is None:
            file = self.listing(10.0, max_age_seconds=1.0).files.get(database_id)
        if file is not None:
            file = _look(file.id, file.path, file.root)
        if file is None:
            raise RequestError(
                404,
                "unknown_database",
                f"No trend database {database_id[:200]!r} below the log directory. Choose one of the list.",
            )
        return file

    def _walk(self) -> None:
        started_at = time.monotonic()
        files: dict[str, DatabaseFile] = {}
        notes: list[str] = []
        try:
            for prefix, root in self._roots.items():
                for file in _databases_below(prefix, root, notes):
                    if len(files) >= MAX_FILES:
                        notes.append(f"More than {MAX_FILES} trend databases: the rest is left out.")
                        break
                    files[file.id] = file
        finally:
            with self._condition:
                self._listing = Listing(dict(sorted(files.items())), tuple(notes), complete=True)
                self._listed_at = started_at
                self._walking = False
                self._condition.notify_all()


def _databases_below(prefix: str, root: str, notes: list[str]) -> Iterator[DatabaseFile]:
    pending = [(root, prefix, 0)]
    directories = 0
    while pending:
        directory, name, depth = pending.pop()
        directories += 1
        if directories > MAX_DIRECTORIES:
            notes.append(f"More than {MAX_DIRECTORIES} directories: the rest is not searched.")
            return
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            # The log directory itself may appear later; that is the page's empty state, not a note.
            if directory != root:
                notes.append(f"{name}: can't be listed ({error.strerror}).")
            continue
        for entry in entries:
            entry_id = f"{name}/{entry.name}" if name else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if depth + 1 >= MAX_DEPTH:
                        notes.append(f"{entry_id}: deeper than {MAX_DEPTH} directories, not searched.")
                    else:
                        pending.append((entry.path, entry_id, depth + 1))
                elif entry.name.endswith(SUFFIX):
                    file = _look(entry_id, entry.path, root)
                    if file is None:
                        notes.append(f"{entry_id}: not a regular file inside the log directory, left out.")
                    else:
                        yield file
            except OSError as error:
                notes.append(f"{entry_id}: {error.strerror}.")


def _look(file_id: str, path: str, root: str) -> DatabaseFile | None:
    """Return the file as it is now; None if it is gone, no regular file, or outside `root` once links are followed."""
    real = os.path.realpath(path)
    if os.path.commonpath([real, root]) != root or not os.path.isfile(real):
        return None
    try:
        status = os.stat(real)
    except OSError:
        return None
    return DatabaseFile(file_id, real, root, status.st_size, status.st_mtime, file_version(status))


def file_version(status: os.stat_result) -> str:
    """Return what changes whenever a file is replaced or written to."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"
