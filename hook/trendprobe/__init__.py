"""TrendProbe: streams msProbe's tensor statistics into SQLite shards while the training runs.

Call ``enable()`` before msProbe's ``PrecisionDebugger`` or ``TrainerMon`` is made, or start the script with
``python -m trendprobe.run``. Recording is switched on by a block in msProbe's own configuration file::

    "trend_db": {"enable": true, "path": "./trend", "keep_files": true}

Without that block nothing changes. ``TrendSettings`` describes every key. Without msProbe, ``Monitor`` records.
"""

from typing import TYPE_CHECKING, Any

from trendprobe._recorder import __version__
from trendprobe.attach import enable
from trendprobe.settings import TrendSettings, TrendSettingsError

if TYPE_CHECKING:
    from trendprobe.monitor import Monitor

__all__ = ["Monitor", "TrendSettings", "TrendSettingsError", "__version__", "enable"]


def __getattr__(name: str) -> Any:
    # Only Monitor needs torch, which may be missing where there is only merging and viewing.
    if name == "Monitor":
        from trendprobe.monitor import Monitor

        return Monitor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
