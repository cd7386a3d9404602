"""The block ``trend_db`` of msProbe's configuration files."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

KEY = "trend_db"


class TrendSettingsError(ValueError):
    """The block holds a wrong key or value; the message names it and what is allowed."""


@dataclasses.dataclass(frozen=True)
class TrendSettings:
    """What and how to record. The defaults are those of a block that only says ``"enable": true``."""

    enable: bool = False
    path: str = "./trend"
    """Directory of the shards, relative to the working directory of the training."""
    keep_files: bool = True
    """False: msProbe's own JSON and CSV are not written, and its own statistics are not computed."""
    on_full: str = "wait"
    """When the queue is full: "wait" until there is room, or "drop" the step and say so in the shard."""
    durability: str = "process"
    """A committed step survives a killed process ("process"), or also a power cut ("step")."""
    stats: tuple[str, ...] = ("norm", "max", "min", "mean")
    """Statistics of what PrecisionDebugger collects, in the order in which every file has them."""
    queue_mb: int = 32
    """Memory for steps that wait to be written, in MiB."""
    rotate_mb: int = 1024
    """Size in MiB from which a shard is closed and the process goes on in a further part."""


# In the order of every file: first those of msProbe.
STATISTICS = ("norm", "max", "min", "mean", "std", "nans", "infs", "zeros")
_CHOICES = {"on_full": ("wait", "drop"), "durability": ("process", "step")}


def parse_settings(block: object, source: str) -> TrendSettings:
    """Checks the block that was found in ``source``, the name of a file; None means that there was no block.

    Raises TrendSettingsError.
    """
    if block is None:
        return TrendSettings()
    if not isinstance(block, dict):
        raise TrendSettingsError(f'{source}: "{KEY}" is {block!r}; expected an object such as {{"enable": true}}')
    fields = {field.name: field for field in dataclasses.fields(TrendSettings)}
    for key, value in block.items():
        if key not in fields:
            raise TrendSettingsError(f'{source}: "{KEY}" has the unknown key "{key}"; known are {", ".join(fields)}')
        _check(f'{source}: "{KEY}": "{key}"', key, value)
    settings = TrendSettings(**block)
    return dataclasses.replace(settings, stats=tuple(name for name in STATISTICS if name in settings.stats))


def _check(what: str, key: str, value: object) -> None:
    if key in ("enable", "keep_files"):
        if not isinstance(value, bool):
            raise TrendSettingsError(f"{what} is {value!r}; allowed are true and false")
    elif key == "path":
        if not isinstance(value, str) or not value or "\0" in value or len(value) > 4096:
            raise TrendSettingsError(f"{what} is {value!r}; expected the name of a directory, up to 4,096 characters")
    elif key in ("queue_mb", "rotate_mb"):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65536:
            raise TrendSettingsError(f"{what} is {value!r}; expected a whole number from 1 to 65536")
    elif key == "stats":
        if (
            not isinstance(value, list)
            or not value
            or not all(name in STATISTICS for name in value)
            or len(set(value)) < len(value)
        ):
            allowed = ", ".join(f'"{name}"' for name in STATISTICS)
            raise TrendSettingsError(f"{what} is {value!r}; expected a list of different ones of {allowed}")
    elif value not in _CHOICES[key]:
        allowed = " and ".join(f'"{choice}"' for choice in _CHOICES[key])
        raise TrendSettingsError(f"{what} is {value!r}; allowed are {allowed}")


def read_settings(config_path: str) -> TrendSettings:
    """Reads the block of a configuration file of msProbe.

    A file that can't be read, or is no JSON, has no block: msProbe itself reports it. Raises TrendSettingsError.
    """
    try:
        with open(config_path, encoding="utf-8") as file:
            config: Any = json.load(file)
    except (OSError, ValueError):
        return TrendSettings()
    return parse_settings(config.get(KEY) if isinstance(config, dict) else None, config_path)
