"""Brings statistics from devices to the host."""

from __future__ import annotations

from typing import Any

import torch


def is_in_main_memory(tensor: torch.Tensor) -> bool:
    """False where reading a value of it would wait for a device."""
    return tensor.device.type == "cpu"


def fetch_from_devices(rows: list[list[Any]]) -> None:
    """Puts numbers in the places of 0-d tensors: one copy a device, and type of number."""
    waiting: dict[tuple[torch.device, torch.dtype], list[tuple[list[Any], int]]] = {}
    for row in rows:
        for index, value in enumerate(row):
            if not isinstance(value, torch.Tensor):
                continue
            if is_in_main_memory(value):
                row[index] = value.item()
            else:
                waiting.setdefault((value.device, value.dtype), []).append((row, index))
    for places in waiting.values():
        with torch.no_grad():
            numbers = torch.stack([row[index] for row, index in places]).cpu().tolist()
        for (row, index), number in zip(places, numbers):
            row[index] = number
