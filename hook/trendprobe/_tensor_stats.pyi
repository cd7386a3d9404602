"""Statistics of torch tensors in one pass over their memory. Import torch first.

Neither function raises anything but TypeError for wrong arguments, and neither changes training: no autograd graph, no
version counter, no random numbers, no dispatch modes, no synchronization with a device. Both may be called from any
thread.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch

from trendprobe._recorder import Recorder

@final
class Statistics(tuple[float, float, float, float, int, int, int, int]):
    """Statistics of one tensor. Complex elements are measured by their absolute values, False and True as 0 and 1."""

    norm: float
    """L2 norm; NaN if an element is NaN.

    Summed in float64, then rounded to float32 for types of at most 32 bits (64 for complex). So it is right where
    `torch.norm` overflows (float16: beyond 65,504), and the norm of a 0-d tensor is its absolute value.
    """
    max: float
    """Greatest element; NaN if an element is NaN. An integer beyond 2**53 is rounded."""
    min: float
    """Least element, in the same way."""
    mean: float
    """Mean, in the same way as the norm; NaN also if both infinities occur."""
    nans: int
    """Elements that are NaN."""
    infs: int
    """Elements that are infinite."""
    zeros: int
    """Elements that are 0 or -0."""
    count: int  # type: ignore[assignment]  # not the method of tuple
    """Elements."""
    std: float | None
    """Standard deviation as of `torch.std`, rounded as the norm: NaN of one element, and where one is not finite.

    None if it was not asked for. Not part of the tuple.
    """

    def __new__(cls, values: Iterable[float], /) -> Statistics:
        """Of the tuple's values, which `std` may follow."""

def measure(tensor: object, with_std: bool = False, /) -> Statistics | None:
    """Measure a tensor in main memory; its standard deviation, too, where that is asked for.

    The same memory gives the same bits, whatever the processor and the number of threads. Python's lock is released
    while a tensor of 16,384 or more elements is measured.

    Returns None if there is nothing to measure: an empty tensor; one on another device (see `measure_on_device`);
    meta, fake, sparse, quantized and nested tensors; vmap's batches; subclasses that intercept operators, such as
    DTensor (pass its `to_local()`); freed storage; types of less than a byte; anything that is no tensor. A tensor
    inside torch.func.grad() is measured.
    """

def measure_on_device(tensor: torch.Tensor, with_std: bool = False, /) -> torch.Tensor | None:
    """Queue the measurement of a tensor on its own device, and do not wait for it.

    Returns a 1-D tensor on that device with the fields of `Statistics` in their order, `std` the last where it is
    asked for: float64, or float32 where the
    device is known for nothing wider, counts rounded to that type. It is the device's own arithmetic, so the last
    digits differ from `measure`. Float16 and bfloat16 are summed in float32. Temporary tensors take at most 64 MiB.
    Works for main memory too.

    Returns None for what `measure` returns None for, devices aside, and where the device lacks an operator.
    """

def count_near_zeros(tensor: object, limit: float, /) -> int | None:
    """How many elements have a magnitude below `limit`: `(torch.abs(tensor) < limit).sum()`, in one pass.

    None unless `measure` takes the tensor, and it is a floating-point one of 16, 32 or 64 bits whose elements fill one
    piece of memory.
    """

class DeviceRows:
    """What one `DeviceSlab` held, on its way to the host. Thread-safe."""

    def statistics(self, row: int) -> list[float]:
        """A row: the fields of `Statistics`. Waits for the copy the first time; RuntimeError where a device failed."""

class DeviceSlab:
    """Measures tensors on their devices and brings the results to the host in one copy a device. Thread-safe."""

    def __init__(self) -> None: ...
    def add(self, tensor: torch.Tensor) -> int | None:
        """Queue a tensor's measurement, as `measure_on_device` does; None where there is none. Waits for nothing.

        Returns the row's number.
        """
    def take(self) -> DeviceRows | None:
        """Start the copies and begin anew; None if there is no row. Waits for nothing."""

@final
class DumpCollector:
    """Collects dump data in place of a DataCollector of msProbe, whose methods have the same names.

    hook/dump_collector.h documents every argument. No method raises an Exception: errors go to ``on_error``.
    """

    def __init__(
        self,
        recorder: Recorder,
        collector: Any,
        *,
        statistics: Sequence[str],
        forward_input: bool,
        forward_output: bool,
        backward_input: bool,
        backward_output: bool,
        construct: bool,
        apis_in_construct: bool,
        should_collect: Callable[[str, int], bool] | None,
        should_collect_by_name: bool,
        scope: Any,
        has_ignore_rule: Callable[[str], bool],
        apply_ignore_rule: Callable[[str, Any, str], Any],
        tensors_in: Callable[[Any], list[tuple[str, Any]] | None],
        plain_tensor: Callable[[torch.Tensor], torch.Tensor | None],
        micro_step: Callable[[], int | None],
        on_error: Callable[[Exception], Any],
    ) -> None: ...
    def forward_input_data_collect(self, name: str, module: Any, pid: int, inputs_outputs: Any) -> None: ...
    def forward_output_data_collect(self, name: str, module: Any, pid: int, inputs_outputs: Any) -> None: ...
    def backward_data_collect(self, name: str, module: Any, pid: int, inputs_outputs: Any) -> None: ...
    def params_data_collect(self, name: str, parameter: str, pid: int, gradient: Any, index: str) -> None: ...
    def update_api_or_module_name(self, name: str) -> None: ...
    @property
    def is_empty(self) -> bool:
        """No tensor was measured since the last step."""

    def submit(self, training_step: int, *, complete: bool) -> bool:
        """Hand the step to the recorder, if anything was collected. Returns False if it was dropped."""

class ModelMonitor:
    """Records what modules take, give and pass back: hook/model_monitor.h. What follows is called by `Monitor`.

    `before_forward`, `after_forward`, `after_accumulation` and `add_monitor_rows` raise nothing: see `take_error`.
    """

    def __init__(self, recorder: Recorder, statistics: Sequence[str], main_memory_is_device: bool = False) -> None:
        """Raises ValueError for unknown statistics. `main_memory_is_device` is for tests."""
    def add_module(self, module: torch.nn.Module, name: str, is_root: bool) -> int:
        """Adds a module, which is not kept alive, under msProbe's name; returns its number."""
    def add_parameter(self, module: torch.nn.Module, name: str, parameter: torch.Tensor, path: str) -> None:
        """Adds a parameter of a module, and a hook where it gets gradients.

        `path` is its name in the model where it is to be recorded as grad_unreduced, or empty.
        """
    def set_accumulation_hook(self, hook: Callable[[torch.Tensor], None], /) -> None:
        """Sets what is registered on parameters, before `add_parameter`; it calls `after_accumulation`."""
    def set_unwatched(self, module: int, reason: str) -> None:
        """Says why no call of a module is seen."""
    def before_forward(self, module: torch.nn.Module, arguments: object, named: object, /) -> None:
        """A forward pre-hook with keyword arguments."""
    def after_forward(self, module: torch.nn.Module, arguments: object, named: object, result: object, /) -> None:
        """A forward hook with keyword arguments, always called."""
    def after_accumulation(self, parameter: torch.Tensor, /) -> None:
        """A post-accumulate hook of a parameter."""
    def add_monitor_rows(self, metric: str, tensors: Sequence[tuple[str, object]], /) -> None:
        """Measures tensors; what is none is left out."""
    def step(self, training_step: int, complete: bool) -> bool:
        """Hands over what was recorded; False if the recorder dropped it."""
    def close(self) -> None:
        """Removes the parameters' hooks, and forgets what was not handed over."""
    def is_empty(self) -> bool:
        """Nothing was recorded since the last step."""
    def has_run(self, module: int) -> bool:
        """A call of the module was recorded."""
    def coverage(self) -> list[tuple[str, str]]:
        """Targets without a record, and why."""
    def last_cost(self) -> tuple[float, int]:
        """Seconds and measured tensors of the last step."""
    def total_cost(self) -> tuple[float, int]:
        """Of all steps."""
    def take_error(self) -> str:
        """The first error, if it was not taken yet; else an empty string."""
