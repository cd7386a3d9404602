"""The block trend_db of msProbe's configuration: every key, wrong values, and what a user is told."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

settings = pytest.importorskip("trendprobe.settings")


def test_no_block_means_not_enabled() -> None:
    assert settings.parse_settings(None, "config.json") == settings.TrendSettings(enable=False)


def test_a_block_that_only_enables_has_the_documented_defaults() -> None:
    parsed = settings.parse_settings({"enable": True}, "config.json")
    assert parsed == settings.TrendSettings(
        enable=True,
        path="./trend",
        keep_files=True,
        on_full="wait",
        durability="process",
        stats=("norm", "max", "min", "mean"),
        queue_mb=32,
        rotate_mb=1024,
    )


def test_the_documentation_has_every_key_its_default_and_what_is_allowed() -> None:
    text = (Path(__file__).parents[2] / "docs/recording.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", text, re.MULTILINE)
    fields = dataclasses.fields(settings.TrendSettings)
    assert [key for key, *_ in rows] == [field.name for field in fields]
    for key, allowed, default in rows:
        documented = json.loads(default.strip("`"))
        assert settings.parse_settings({key: documented}, "config.json") == settings.TrendSettings()
        assert getattr(settings.TrendSettings(), key) == (tuple(documented) if key == "stats" else documented)
        values = [json.loads(value) for value in re.findall(r"`(.+?)`", allowed)]
        if key == "stats":
            assert tuple(values) == settings.STATISTICS
        for value in values:
            settings.parse_settings({key: [value] if key == "stats" else value}, "config.json")
        for number in re.findall(r"from (\d+) to (\d+)", allowed):
            for value in number:
                settings.parse_settings({key: int(value)}, "config.json")
            with pytest.raises(settings.TrendSettingsError, match="from {} to {}".format(*number)):
                settings.parse_settings({key: int(number[1]) + 1}, "config.json")


@pytest.mark.parametrize(
    "block",
    [
        {"enable": False},
        {"enable": True, "path": "/data/run 7/层"},
        {"enable": True, "keep_files": False},
        {"enable": True, "on_full": "drop"},
        {"enable": True, "durability": "step"},
        {"enable": True, "queue_mb": 1},
        {"enable": True, "queue_mb": 65536},
        {"enable": True, "rotate_mb": 1},
        {"enable": True, "rotate_mb": 65536},
    ],
)
def test_good_values_are_taken(block: dict[str, Any]) -> None:
    parsed = settings.parse_settings(block, "config.json")
    assert {key: getattr(parsed, key) for key in block} == block


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        (["norm"], ("norm",)),
        (["zeros", "std", "mean", "norm"], ("norm", "mean", "std", "zeros")),
        (["infs", "nans", "zeros", "std", "mean", "min", "max", "norm"], settings.STATISTICS),
    ],
)
def test_statistics_have_the_order_of_every_file(chosen: list[str], kept: tuple[str, ...]) -> None:
    assert settings.parse_settings({"stats": chosen}, "config.json").stats == kept


@pytest.mark.parametrize(
    ("block", "key", "value", "allowed"),
    [
        ([], "", "[]", "an object"),
        (True, "", "True", "an object"),
        ("on", "", "'on'", "an object"),
        ({"enabled": True}, "enabled", "", "enable, path, keep_files, on_full, durability, stats, queue_mb, rotate_mb"),
        ({"enable": 1}, "enable", "1", "true and false"),
        ({"enable": "true"}, "enable", "'true'", "true and false"),
        ({"enable": None}, "enable", "None", "true and false"),
        ({"keep_files": "no"}, "keep_files", "'no'", "true and false"),
        ({"path": ""}, "path", "''", "the name of a directory"),
        ({"path": 7}, "path", "7", "the name of a directory"),
        ({"path": "a\0b"}, "path", "'a\\x00b'", "the name of a directory"),
        ({"path": "x" * 4097}, "path", "xxx", "4,096 characters"),
        ({"on_full": "ignore"}, "on_full", "'ignore'", '"wait" and "drop"'),
        ({"on_full": None}, "on_full", "None", '"wait" and "drop"'),
        ({"durability": True}, "durability", "True", '"process" and "step"'),
        ({"stats": []}, "stats", "[]", "a list of different ones of"),
        ({"stats": "norm"}, "stats", "'norm'", "a list of different ones of"),
        ({"stats": {"norm": 1}}, "stats", "{'norm': 1}", "a list of different ones of"),
        (
            {"stats": ["norm", "median"]},
            "stats",
            "median",
            '"norm", "max", "min", "mean", "std", "nans", "infs", "zeros"',
        ),
        ({"stats": ["norm", "norm"]}, "stats", "['norm', 'norm']", "different ones"),
        ({"stats": [1, ["norm"]]}, "stats", "[1, ['norm']]", "a list of different ones of"),
        ({"stats": None}, "stats", "None", "a list of different ones of"),
        ({"queue_mb": 0}, "queue_mb", "0", "from 1 to 65536"),
        ({"queue_mb": 65537}, "queue_mb", "65537", "from 1 to 65536"),
        ({"queue_mb": 1.5}, "queue_mb", "1.5", "from 1 to 65536"),
        ({"queue_mb": True}, "queue_mb", "True", "from 1 to 65536"),
        ({"queue_mb": "64"}, "queue_mb", "'64'", "from 1 to 65536"),
        ({"rotate_mb": 0}, "rotate_mb", "0", "from 1 to 65536"),
        ({"rotate_mb": 102400}, "rotate_mb", "102400", "from 1 to 65536"),
        ({"rotate_mb": None}, "rotate_mb", "None", "from 1 to 65536"),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(block: Any, key: str, value: str, allowed: str) -> None:
    with pytest.raises(settings.TrendSettingsError) as error:
        settings.parse_settings(block, "/job/config.json")
    message = str(error.value)
    assert message.startswith("/job/config.json: ") and '"trend_db"' in message
    assert key in message and value in message and allowed in message


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"task": "statistics"}', None])
def test_a_file_without_the_block_enables_nothing(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    assert not settings.read_settings(str(file)).enable


@pytest.mark.parametrize("tool", ["PrecisionDebugger", "TrainerMon"])
def test_a_wrong_value_stops_the_job_before_the_training(tool: str, tmp_path: Path) -> None:
    pytest.importorskip("msprobe")
    wrong = {"enable": True, "queue_mb": "lots"}
    dump = {"task": "statistics", "level": "L0", "dump_path": "./dump", "rank": [], "step": [], "statistics": {}}
    monitor = {"targets": {}, "format": "csv", "ops": ["norm"], "xy_distribution": True}
    (tmp_path / "config.json").write_text(
        json.dumps({**(dump if tool == "PrecisionDebugger" else monitor), "trend_db": wrong})
    )
    make = {
        "PrecisionDebugger": "PrecisionDebugger(config_path='config.json')",
        "TrainerMon": "TrainerMon('config.json', params_have_main_grad=False).set_monitor(model, optimizer, 1)",
    }[tool]
    script = f"""
import trendprobe
trendprobe.enable()
import torch
from msprobe.pytorch import PrecisionDebugger, TrainerMon
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{make}
print("training")
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert '"trend_db": "queue_mb" is \'lots\'; expected a whole number from 1 to 65536' in result.stderr
    assert "config.json" in result.stderr
    assert "training" not in result.stdout
