"""The recorder of one process: hook/recorder.h. Needs no torch. Thread-safe."""

from collections.abc import Sequence

__version__: str

class Recorder:
    """Streams records into one shard, or several parts of it, from a thread of its own.

    The thread starts, and the file is made, with the first submission. No method raises an error of the storage: see
    ``take_warning()``. In a forked child nothing is ever written. A value of None is "not measured".
    """

    def __init__(
        self,
        directory: str,
        *,
        durability: str = "process",
        queue_bytes: int = 33554432,
        on_full: str = "wait",
        rotate_bytes: int = 1073741824,
    ) -> None:
        """A shard of ``rotate_bytes`` is closed, and another part begun.

        Raises ValueError for a durability but "process" and "step", or an on_full but "wait" and "drop".
        """
    def submit_dump_step(
        self,
        training_step: int,
        statistics: Sequence[str],
        entries: list[tuple[str, bool, list[tuple[str, tuple[float | None, ...]]]]],
        construct: dict[str, object],
        *,
        complete: bool = True,
    ) -> bool:
        """Hands over one training step of dump data; False if it was dropped.

        ``entries`` are (name in dump.json, is_recompute, tensors) in flush order, each tensor (what follows the module
        in the target's name, values in the order of ``statistics``). ``statistics`` are some of "norm", "max", "min",
        "mean", "std", "nans", "infs" and "zeros", in this order. ``construct`` is what construct.json would hold.

        Raises ValueError and TypeError for arguments that are none of these.
        """
    def submit_monitor(
        self,
        training_step: int,
        metric: str,
        statistics: Sequence[str],
        rows: list[tuple[str, int, int, Sequence[float | None]]],
    ) -> bool:
        """Hands over records of one metric; False if they were dropped.

        ``rows`` are (target, virtual pipeline stage, micro-step, values in the order of ``statistics``).
        """
    def submit_monitor_v2(
        self,
        training_step: int,
        slug: str,
        statistics: Sequence[str],
        rows: list[tuple[str, str, int, int, Sequence[float | None]]],
    ) -> bool:
        """Hands over one training step of one monitor of TrainerMonitorV2; False if some of it was dropped.

        ``rows`` are (module_name, scope, virtual pipeline stage or -1, micro_step or 0, values in the order of
        ``statistics``), in the order in which the training ran.
        """
    def set_rank(self, rank: int) -> None:
        """Sets the rank, unknown until then."""
    def set_info(self, key: str, value: str) -> None:
        """Sets "framework", "level", "task" or "directory" in the shard."""
    def flush(self) -> None:
        """Waits until all that was submitted is committed or was given up."""
    def close(self) -> None:
        """Commits what waits and closes the shard. Later submissions do nothing."""
    def _sink(self) -> object:
        """A capsule of the C++ object, for other extension modules; valid as long as this object."""
    def take_warning(self) -> str:
        """The oldest warning about the storage that was not taken yet; else an empty string."""
    @property
    def shard(self) -> str:
        """The file of the latest part; empty before it is made."""
    @property
    def committed_steps(self) -> int: ...
    @property
    def committed_records(self) -> int: ...
    @property
    def lost_records(self) -> int: ...
