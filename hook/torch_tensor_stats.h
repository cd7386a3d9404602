// Statistics of torch's tensors.
//
// Nothing here changes training: no autograd graph, no version counter, no random numbers, no
// dispatch modes of the caller's, no synchronisation with a device. Thread-safe; the Python lock is
// not needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "hook/tensor_stats.h"

namespace trendprobe {

/// The tensor whose memory is to be measured: `tensor` itself, or what torch.func.grad() has
/// wrapped. Undefined where there is no such memory in main memory: other devices, meta and fake
/// tensors, tensor subclasses with __torch_dispatch__, sparse, quantized and nested ones, vmap's
/// batches, freed storages (FSDP), sub-byte types.
at::Tensor measurable(const at::Tensor& tensor);

/// Measures what measurable() returned. Nothing for an empty tensor. Throws std::bad_alloc.
std::optional<TensorStatistics> measure(const at::Tensor& measurable,
                                        MeasureAlso also = MeasureAlso::kNothing);

/// While one lives, its thread's operators make no autograd graph, and are not seen, cast or
/// replayed by the caller's modes: those are for operators of the model.
class OutsideModes {
 public:
  OutsideModes();
  OutsideModes(const OutsideModes&) = delete;
  OutsideModes& operator=(const OutsideModes&) = delete;
  ~OutsideModes() = default;

 private:
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_modes_;
};

/// The same statistics computed by the tensor's own device, as a 1-D tensor there, in the order of
/// TensorStatistics' members (without `std` unless it is asked for): float64, or float32 where the
/// device has nothing wider. Counts are rounded to that type. The work is queued on the current
/// stream, and nothing waits for it. Its temporaries take at most 64 MiB, however large the tensor
/// is. Undefined where `tensor` can't be measured (see measurable(), any device taken) or the
/// device lacks an operator. Throws nothing.
at::Tensor measure_on_device(const at::Tensor& tensor,
                             MeasureAlso also = MeasureAlso::kNothing) noexcept;

/// As measure_on_device(), but throws what the device's operators throw: c10::OutOfMemoryError,
/// c10::NotImplementedError.
at::Tensor queue_measurement(const at::Tensor& tensor, MeasureAlso also = MeasureAlso::kNothing);

}  // namespace trendprobe
