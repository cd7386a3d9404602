"""Records a training without msProbe: modules as its L0 dump does, parameters as its TrainerMon does."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import torch
from torch.utils.hooks import RemovableHandle

from trendprobe._tensor_stats import ModelMonitor
from trendprobe.recorders import before_exit, log_warning_of, recorder_for
from trendprobe.settings import TrendSettingsError, parse_settings

logger = logging.getLogger("trendprobe")

OPTIMIZER_METRICS = ("grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq", "param_origin", "param_updated")
_KEYS = ("on_full", "durability", "stats", "queue_mb", "rotate_mb")
_SOURCE = "config of trendprobe.Monitor"


@dataclasses.dataclass(frozen=True)
class Uncovered:
    """A target that has no record, and why."""

    target: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a Monitor itself took: of the training thread's time, and how many tensors it measured."""

    seconds: float
    tensors: int


class _Hook:
    """A hook that torch.compile traces to nothing, and that a copy or a pickle of the model loses.

    One for all modules, or parameters: torch.compile guards on what it is.
    """

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __call__(self, *arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._run(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that does nothing, whatever it gets, and that needs no TrendProbe where the model is loaded.
        return getattr, (contextlib.nullcontext(), "__exit__")


class _ForwardHooks:
    """The hooks of all modules, under one number.

    register_forward_hook() would give each a number of its own, for which torch.compile would compile each module anew.
    """

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._before = _Hook(before)
        self._after = _Hook(after)
        self._number = RemovableHandle(OrderedDict()).id
        self._modules: list[weakref.ref[torch.nn.Module]] = []

    def add(self, module: torch.nn.Module) -> None:
        """As register_forward_pre_hook() with keyword arguments does, and register_forward_hook() before others."""
        module._forward_pre_hooks[self._number] = self._before
        module._forward_pre_hooks_with_kwargs[self._number] = True
        module._forward_hooks[self._number] = self._after
        cast("OrderedDict[int, Any]", module._forward_hooks).move_to_end(self._number, last=False)
        module._forward_hooks_with_kwargs[self._number] = True
        module._forward_hooks_always_called[self._number] = True
        self._modules.append(weakref.ref(module))

    def remove(self) -> None:
        """Leaves nothing in any module."""
        for reference in self._modules:
            if module := reference():
                for hooks in (
                    module._forward_pre_hooks,
                    module._forward_pre_hooks_with_kwargs,
                    module._forward_hooks,
                    module._forward_hooks_with_kwargs,
                    module._forward_hooks_always_called,
                ):
                    hooks.pop(self._number, None)
        self._modules.clear()


class Monitor:
    """Records what the modules of a model take, give and pass back, and what the optimizer does to its parameters.

    The training computes the same bits as without it. Call ``step()`` after each training step, and ``close()`` at the
    end, or use it in a ``with`` statement::

        with trendprobe.Monitor(model, optimizer, path="./trend") as monitor:
            for batch in batches:
                loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.step()

    ``model`` is a module or a list of model chunks, as they are called: after DistributedDataParallel or fully_shard,
    before or after torch.compile. ``optimizer`` may be left out, or be a list of several. ``config`` has those keys of
    the block ``trend_db`` that concern recording (on_full, durability, stats, queue_mb, rotate_mb), and ``metrics``:
    those of OPTIMIZER_METRICS that are wanted, all by default. ``first_step`` is the number of the first training step,
    for a job that goes on from a checkpoint.

    Raises TrendSettingsError for a wrong ``config``. Nothing else ever raises into the training.
    """

    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        *,
        path: str = "./trend",
        config: Mapping[str, Any] | None = None,
        first_step: int = 0,
        _main_memory_is_device: bool = False,
    ) -> None:
        config = dict(config or {})
        metrics = _metrics(config.pop("metrics", None))
        for key in config:
            if key not in _KEYS:
                raise TrendSettingsError(f'{_SOURCE}: unknown key "{key}"; known are metrics, {", ".join(_KEYS)}')
        settings = parse_settings({**config, "path": path}, _SOURCE)
        self._training_step = first_step
        self._is_first_step = True
        self._is_open = False
        self._pid = os.getpid()
        self._handles: list[Any] = []
        self._modules: dict[str, int] = {}
        self._names: dict[int, str] = {}  # by id of a parameter
        self._recorder = recorder_for(settings)
        for key, value in (("framework", "pytorch"), ("level", "L0"), ("task", "statistics")):
            self._recorder.set_info(key, value)
        self._native = ModelMonitor(self._recorder, list(settings.stats), _main_memory_is_device)
        self._is_open = True
        optimizers = _listed(optimizer)
        self._metrics = metrics if optimizers else ()
        chunks = _listed(model)
        self._chunks: list[tuple[str, weakref.ref[torch.nn.Module]]] = []
        self._native.set_accumulation_hook(_Hook(self._native.after_accumulation))
        self._hooks = _ForwardHooks(self._native.before_forward, self._native.after_forward)
        for index, chunk in enumerate(chunks):
            prefix = f"{index}." if isinstance(model, (list, tuple)) else ""
            self._chunks.append((prefix, weakref.ref(chunk)))
            with self._guarded("adding hooks"):
                self._watch(chunk, prefix)
        for each in optimizers:
            self._watch_optimizer(each)
        with self._guarded("looking for compiled modules"):
            self._mark_compiled(warn=True)
        before_exit(self._submit_unended_step)

    # Hooks

    def _watch(self, model: torch.nn.Module, prefix: str) -> None:
        paths = {id(parameter): f"{prefix}{name}" for name, parameter in model.named_parameters()}
        self._names.update(paths)
        for path, module in model.named_modules():
            kind = type(module).__name__
            own = list(module.named_parameters(recurse=False))
            if path and (kind == "FullyShardedDataParallel" or (_is_container(module) and not own)):
                continue
            name = ".".join(part for part in ("Module", prefix.rstrip("."), path, kind) if part)
            identifier = self._native.add_module(module, name, not path)
            self._modules[f"{prefix}{path}"] = identifier
            try:
                self._hooks.add(module)
                for label, parameter in own:
                    # A tied one is recorded by its first name.
                    full_name = paths.pop(id(parameter), "") if "grad_unreduced" in self._metrics else ""
                    self._native.add_parameter(module, label, parameter, full_name)
            except Exception as error:  # some modules are no Python
                self._native.set_unwatched(identifier, f"it takes no hooks: {error}")

    def _watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        before = [name for name in self._metrics if name in ("grad_reduced", "exp_avg", "exp_avg_sq", "param_origin")]
        try:
            if before:
                self._handles.append(
                    optimizer.register_step_pre_hook(lambda owner, *_: self._record_parameters(owner, before))
                )
            if "param_updated" in self._metrics:
                self._handles.append(
                    optimizer.register_step_post_hook(
                        lambda owner, *_: self._record_parameters(owner, ["param_updated"])
                    )
                )
        except Exception as error:
            logger.warning("TrendProbe can't watch the optimizer %s: %s", type(optimizer).__name__, error)

    def _record_parameters(self, optimizer: torch.optim.Optimizer, metrics: Sequence[str]) -> None:
        with self._guarded("recording parameters"):
            if torch.compiler.is_compiling() or not self._is_on():
                return
            parameters = [
                (name, parameter)
                for group in optimizer.param_groups
                for parameter in group["params"]
                if (name := self._names.get(id(parameter))) is not None and parameter.requires_grad
            ]
            for metric in metrics:
                if metric == "grad_reduced":
                    tensors = [(name, parameter.grad) for name, parameter in parameters]
                elif metric in ("exp_avg", "exp_avg_sq"):
                    tensors = [
                        (name, optimizer.state[parameter].get(metric))
                        for name, parameter in parameters
                        if parameter in optimizer.state
                    ]
                else:
                    tensors = list(parameters)
                self._native.add_monitor_rows(metric, tensors)

    # Steps

    def step(self) -> None:
        """Ends a training step: hands over what was recorded since the last."""
        with self._guarded("ending a step"):
            if not self._is_on():
                return
            self._set_rank()
            was_empty = self._native.is_empty()
            self._native.step(self._training_step, True)
            self._training_step += 1
            self._log_errors()
            if self._is_first_step:
                self._is_first_step = False
                self._mark_compiled(warn=False)
                self._log_coverage(was_empty)

    def _submit_unended_step(self) -> None:
        with self._guarded("handing over the last step"):
            if self._is_on() and not self._native.is_empty():
                self._set_rank()
                self._native.step(self._training_step, False)
                self._log_errors()

    def close(self) -> None:
        """Removes all hooks. What was recorded after the last ``step()`` is kept as an incomplete step."""
        if not self._is_open:
            return
        self._submit_unended_step()
        self._is_open = False
        with self._guarded("removing hooks"):
            self._hooks.remove()
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._native.close()
            if os.getpid() == self._pid:
                self._recorder.flush()
                log_warning_of(self._recorder)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _is_on(self) -> bool:
        return self._is_open and os.getpid() == self._pid  # not in a forked child

    def _set_rank(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._recorder.set_rank(torch.distributed.get_rank())

    # What the user wants to know

    def coverage(self) -> list[Uncovered]:
        """Targets that have no record so far, after a step."""
        self._mark_compiled(warn=False)
        return [Uncovered(*each) for each in self._native.coverage()]

    def cost(self) -> Cost:
        """What the last step cost the training thread; see ``total_cost()``."""
        return Cost(*self._native.last_cost())

    def total_cost(self) -> Cost:
        """What all steps so far cost."""
        return Cost(*self._native.total_cost())

    @property
    def shard(self) -> str:
        """The file that is written; empty before the first step."""
        return self._recorder.shard

    def _mark_compiled(self, *, warn: bool) -> None:
        """Says of modules inside torch.compile why they have no records of their own."""
        count = 0
        for prefix, reference in self._chunks:
            model = reference()
            if model is None:
                continue
            for path in _compiled_paths(model):
                identifier = self._modules.get(f"{prefix}{path}")
                if identifier is not None and not self._native.has_run(identifier):
                    self._native.set_unwatched(
                        identifier,
                        "it runs inside torch.compile, where hooks are off: only its parameters are recorded",
                    )
                    count += 1
        if warn and count:
            logger.warning(
                "%d modules run inside torch.compile, where hooks are off: only their parameters are recorded", count
            )

    def _log_coverage(self, was_empty: bool) -> None:
        if was_empty:
            logger.warning(
                "nothing was recorded in the first training step: was the model called, with gradients, "
                "after the Monitor was made, and in this process?"
            )
            return
        if uncovered := self.coverage():
            logger.warning(
                "%d targets have no record after the first training step (Monitor.coverage() lists them all): %s%s",
                len(uncovered),
                "; ".join(f"{each.target}: {each.reason}" for each in uncovered[:3]),
                "; …" if len(uncovered) > 3 else "",
            )

    def _log_errors(self) -> None:
        if error := self._native.take_error():
            logger.warning("error while recording; what it concerns is left out, and the training goes on: %s", error)
        log_warning_of(self._recorder)

    @contextlib.contextmanager
    def _guarded(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            logger.warning("error while %s; the training goes on", doing, exc_info=True)


def _is_container(module: torch.nn.Module) -> bool:
    """It is never called: ModuleList and the like."""
    # A ScriptModule has no such attribute that could be asked for.
    return inspect.getattr_static(type(module), "forward", None) is torch.nn.Module.forward


def _compiled_paths(model: torch.nn.Module) -> Iterator[str]:
    """The modules that are called by compiled code, not by Python."""
    above: list[str] = []
    for path, module in model.named_modules():
        if any(not other or path == other or path.startswith(f"{other}.") for other in above):
            yield path
        elif type(module).__name__ == "OptimizedModule":
            above.append(f"{path}._orig_mod" if path else "_orig_mod")
        elif module._compiled_call_impl is not None:
            above.append(path)
            yield path


def _metrics(chosen: object) -> tuple[str, ...]:
    if chosen is None:
        return OPTIMIZER_METRICS
    if not isinstance(chosen, (list, tuple)) or not all(name in OPTIMIZER_METRICS for name in chosen):
        allowed = ", ".join(f'"{name}"' for name in OPTIMIZER_METRICS)
        raise TrendSettingsError(f'{_SOURCE}: "metrics" is {chosen!r}; expected a list of {allowed}')
    return tuple(name for name in OPTIMIZER_METRICS if name in chosen)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
