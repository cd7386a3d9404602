#include "hook/torch_tensor_stats.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/TensorWrapper.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>

#include "hook/torch_parallel_for.h"

namespace trendprobe {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Everything that a tensor of plain memory may be besides. What is not listed (sparse, quantized,
// nested, fake, batched, functional, a Python subclass that intercepts operators, and what later
// versions invent) has no such memory, or not where data_ptr() says.
constexpr DispatchKeySet kPlain = DispatchKeySet({
                                      DispatchKey::Dense,
                                      DispatchKey::ADInplaceOrView,
                                      DispatchKey::Conjugate,
                                      DispatchKey::Negative,
                                  }) |
                                  c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
                                  DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask);

std::optional<ElementType> element_type(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return ElementType::kBool;
    case at::kChar:
      return ElementType::kInt8;
    case at::kShort:
      return ElementType::kInt16;
    case at::kInt:
      return ElementType::kInt32;
    case at::kLong:
      return ElementType::kInt64;
    case at::kByte:
      return ElementType::kUInt8;
    case at::kUInt16:
      return ElementType::kUInt16;
    case at::kUInt32:
      return ElementType::kUInt32;
    case at::kUInt64:
      return ElementType::kUInt64;
    case at::kFloat8_e4m3fn:
      return ElementType::kFloat8E4M3FN;
    case at::kFloat8_e4m3fnuz:
      return ElementType::kFloat8E4M3FNUZ;
    case at::kFloat8_e5m2:
      return ElementType::kFloat8E5M2;
    case at::kFloat8_e5m2fnuz:
      return ElementType::kFloat8E5M2FNUZ;
    case at::kFloat8_e8m0fnu:
      return ElementType::kFloat8E8M0FNU;
    case at::kHalf:
      return ElementType::kFloat16;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kDouble:
      return ElementType::kFloat64;
    case at::kComplexHalf:
      return ElementType::kComplexFloat16;
    case at::kComplexFloat:
      return ElementType::kComplexFloat32;
    case at::kComplexDouble:
      return ElementType::kComplexFloat64;
    default:
      return std::nullopt;
  }
}

// Undefined if it is no tensor of plain memory on some device.
at::Tensor plain(at::Tensor tensor) {
  while (tensor.defined() && tensor.key_set().has(DispatchKey::FuncTorchGradWrapper)) {
    const auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor);
    if (wrapper == nullptr) return {};
    // A copy first: the wrapper may hold the only reference.
    at::Tensor value = wrapper->value();
    tensor = std::move(value);
  }
  if (!tensor.defined() || !kPlain.has_all(tensor.key_set()) || tensor.is_meta() ||
      tensor.layout() != at::kStrided || !tensor.has_storage() ||
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      !element_type(tensor.scalar_type()).has_value()) {
    return {};
  }
  return tensor;
}

// The storage reaches to the tensor's last element. A storage that was freed while its tensor lives
// on does not.
bool has_memory(const at::Tensor& tensor) {
  auto last = static_cast<std::uint64_t>(tensor.storage_offset());
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<std::uint64_t>(tensor.size(i) - 1) *
            static_cast<std::uint64_t>(tensor.stride(i));
  }
  return tensor.storage().data() != nullptr &&
         (last + 1) * tensor.element_size() <= tensor.storage().nbytes();
}

at::Tensor device_statistics(const at::Tensor& tensor) {
  const bool is_wide = tensor.scalar_type() == at::kDouble ||
                       tensor.scalar_type() == at::kComplexDouble || tensor.is_cpu() ||
                       tensor.is_cuda() || tensor.is_xpu();
  const at::ScalarType result_type = is_wide ? at::kDouble : at::kFloat;
  at::Tensor values = tensor.detach();
  if (at::isFloat8Type(values.scalar_type())) values = values.to(at::kFloat);
  if (values.is_complex()) {
    if (values.scalar_type() == at::kComplexHalf) values = values.to(at::kComplexFloat);
    values = values.abs();
  }
  if (at::isBarebonesUnsignedType(values.scalar_type())) values = values.to(result_type);
  const bool is_floating = values.is_floating_point();
  // The type in which the sums are kept.
  const at::ScalarType sum_type =
      is_floating && values.scalar_type() != at::kDouble ? at::kFloat : result_type;
  const at::Tensor count =
      at::full({}, tensor.numel(), at::TensorOptions().dtype(result_type).device(values.device()));
  const at::Tensor none = at::zeros_like(count);
  std::array<at::Tensor, 8> statistics = {
      at::linalg_vector_norm(is_floating ? values : values.to(sum_type), 2,
                             at::OptionalIntArrayRef(), false, sum_type),
      values.max(),
      values.min(),
      at::mean(values, sum_type),
      is_floating ? at::isnan(values).sum() : none,
      is_floating ? at::isinf(values).sum() : none,
      at::eq(values, 0).sum(),
      count,
  };
  for (at::Tensor& statistic : statistics) statistic = statistic.to(result_type);
  return at::stack(statistics);
}

}  // namespace

at::Tensor measurable(const at::Tensor& tensor) {
  at::Tensor found = plain(tensor);
  if (!found.defined() || !found.is_cpu() || found.numel() == 0 || !has_memory(found)) return {};
  return found;
}

std::optional<TensorStatistics> measure(const at::Tensor& measurable) {
  const auto type = element_type(measurable.scalar_type());
  if (!type.has_value()) return std::nullopt;
  const auto sizes = measurable.sizes();
  const auto strides = measurable.strides();
  auto statistics = measure({.data = measurable.const_data_ptr(),
                             .type = *type,
                             .sizes = {sizes.data(), sizes.size()},
                             .strides = {strides.data(), strides.size()}},
                            torch_parallel_for());
  if (statistics.has_value() && measurable.is_neg() && !measurable.is_complex()) {
    // A view that shows its memory negated.
    const double max = statistics->max;
    statistics->max = 0.0 - statistics->min;
    statistics->min = 0.0 - max;
    statistics->mean = 0.0 - statistics->mean;
  }
  return statistics;
}

at::Tensor measure_on_device(const at::Tensor& tensor) noexcept {
  try {
    const at::Tensor found = plain(tensor);
    if (!found.defined() || found.numel() == 0 || !has_memory(found)) return {};
    const at::NoGradGuard no_grad;
    // The caller's modes see, cast and replay operators of the model, not these.
    const c10::impl::ExcludeDispatchKeyGuard no_modes(
        c10::autocast_dispatch_keyset |
        DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                        DispatchKey::PythonDispatcher, DispatchKey::FuncTorchDynamicLayerFrontMode,
                        DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Functionalize}));
    return device_statistics(found);
  } catch (...) {
    return {};
  }
}

}  // namespace trendprobe
