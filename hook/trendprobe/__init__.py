"""TrendProbe: streams msProbe's tensor statistics into SQLite shards while the training runs.

Call ``enable()`` before msProbe's ``PrecisionDebugger`` or ``TrainerMon`` is made, or start the script with
``python -m trendprobe.run``. Recording is switched on by a block in msProbe's own configuration file::

    "trend_db": {"enable": true, "path": "./trend", "keep_files": true}

Without that block nothing changes. ``TrendSettings`` describes every key.
"""

from trendprobe._recorder import __version__
from trendprobe.attach import enable
from trendprobe.settings import TrendSettings, TrendSettingsError

__all__ = ["TrendSettings", "TrendSettingsError", "__version__", "enable"]
