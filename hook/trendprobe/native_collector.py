"""Stands in for the methods of msProbe's DataCollector that its hooks call, where nobody wants msProbe's own files.

Nearly all that a step costs under msProbe is spent in those methods: a dictionary a tensor, four operators a tensor,
call stacks. `_tensor_stats.DumpCollector` does their work without any of it; this module tells it what msProbe's
configuration asks for, and does what is rare: values of unusual types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from msprobe.core.common.const import Const
from msprobe.core.common.megatron_utils import get_micro_step, is_megatron
from msprobe.core.common.utils import is_jagged_tensor, is_keyed_jagged_tensor, is_keyed_tensor

from trendprobe._tensor_stats import DumpCollector

_REPLACED = (
    "forward_input_data_collect",
    "forward_output_data_collect",
    "backward_data_collect",
    "params_data_collect",
    "update_api_or_module_name",
)
_LEVELS = (Const.LEVEL_L0, Const.LEVEL_L1, Const.LEVEL_MIX)


class NativeCollector:
    """Does the work of one DataCollector of PyTorch, from its making on."""

    def __init__(
        self, collector: Any, recorder: Any, statistics: Sequence[str], on_error: Callable[[Exception], Any]
    ) -> None:
        self._collector = collector
        self._processor = collector.data_processor
        self._on_error = on_error
        config = collector.config
        allowed = self._processor.is_dump_for_data_mode
        by_risk = collector.scope is None and _chooses_by_risk(config)
        self._native = DumpCollector(
            recorder,
            collector,
            statistics=list(statistics),
            forward_input=allowed(Const.FORWARD, Const.INPUT),
            forward_output=allowed(Const.FORWARD, Const.OUTPUT),
            backward_input=allowed(Const.BACKWARD, Const.INPUT),
            backward_output=allowed(Const.BACKWARD, Const.OUTPUT),
            construct=getattr(config, "extra_info", True) and config.level != Const.LEVEL_L1,
            apis_in_construct=config.level == Const.LEVEL_MIX,
            should_collect=collector.should_collect if collector.scope or by_risk else None,
            should_collect_by_name=by_risk,
            scope=collector.scope,
            has_ignore_rule=self._has_ignore_rule,
            apply_ignore_rule=self._apply_ignore_rule,
            tensors_in=self._tensors_in,
            plain_tensor=self._plain_tensor,
            micro_step=_megatron_micro_step,
            on_error=self._give_back,
        )
        for name in _REPLACED:
            setattr(collector, name, getattr(self._native, name))

    @staticmethod
    def can_replace(collector: Any) -> bool:
        """False where msProbe's own methods do more than collect statistics: they save tensors, or collect nothing."""
        config = collector.config
        return (
            config.framework == Const.PT_FRAMEWORK
            and config.task == Const.STATISTICS
            and config.level in _LEVELS
            and not getattr(config, "tensor_list", None)
            and not getattr(config, "slice_info", None)
        )

    @property
    def is_empty(self) -> bool:
        """Nothing was collected since the last step."""
        return self._native.is_empty

    def submit(self, training_step: int, *, complete: bool) -> None:
        """Hands the step to the recorder, if anything was collected."""
        self._native.submit(training_step, complete=complete)

    def _give_back(self, error: Exception) -> None:
        """After an error of our own msProbe's methods do their work again."""
        for name in _REPLACED:
            self._collector.__dict__.pop(name, None)
        self._on_error(error)

    # What is rare

    def _has_ignore_rule(self, name: str) -> bool:
        return self._processor._resolve_ignore_rule(name, Const.FORWARD) is not None

    def _apply_ignore_rule(self, name: str, value: Any, input_or_output: str) -> Any:
        self._processor.update_api_or_module_name(name)
        return self._processor._apply_ignore_rules(value, Const.FORWARD, input_or_output)

    def _tensors_in(self, value: Any) -> list[tuple[str, Any]] | None:
        """The tensors in a value that is neither tensor, tuple, list nor dict, as (end of the name, tensor).

        Of an array of NumPy its statistics, as msProbe computes them. None where no value of this type has any.
        """
        if not _may_hold_tensors(value):
            return None
        found: list[tuple[str, Any]] = []

        def take(element: Any, keys: list[Any]) -> None:
            suffix = "".join(f".{key}" for key in keys)
            if isinstance(element, torch.Tensor):
                if not keys or keys[-1] not in self._processor.torch_object_key:
                    found.append((suffix, element))
            elif isinstance(element, torch.distributed.P2POp):
                found.append((f"{suffix}.tensor", element.tensor))
            elif isinstance(element, numpy.ndarray):
                statistics = self._processor._analyze_ndarray(element, suffix)
                found.append((suffix, tuple(statistics[key] for key in ("Norm", "Max", "Min", "Mean"))))

        self._processor.recursive_apply_transform(value, take)
        return found

    def _plain_tensor(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What msProbe measures in place of a DTensor, a nested tensor or one of vmap's batches."""
        handler = self._processor.tensor_handler
        plain = handler.convert_common_tensor(tensor)
        return None if handler.is_empty_data(plain) else plain


def _chooses_by_risk(config: Any) -> bool:
    return config.level in (Const.LEVEL_L1, Const.LEVEL_MIX) and getattr(config, "risk_level", None) not in (
        None,
        "",
        Const.RISK_LEVEL_ALL,
    )


def _may_hold_tensors(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list, dict, numpy.ndarray, torch.distributed.P2POp))
        or dataclasses.is_dataclass(type(value))
        or is_jagged_tensor(value)
        or is_keyed_jagged_tensor(value)
        or is_keyed_tensor(value)
    )


def _megatron_micro_step() -> int | None:
    return get_micro_step() if is_megatron() else None
