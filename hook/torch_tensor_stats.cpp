#include "hook/torch_tensor_stats.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/functorch/TensorWrapper.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <vector>

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

// What is measured at once: the operators' temporaries take up to 12 bytes an element, and a tensor
// may be as large as the memory that is left.
constexpr std::int64_t kMaxBlock = std::int64_t{1} << 22;

// Views of at most kMaxBlock elements that make up the tensor; contiguous ones where it is.
void append_blocks(const at::Tensor& tensor, std::vector<at::Tensor>& blocks) {
  if (tensor.numel() <= kMaxBlock) {
    blocks.push_back(tensor);
    return;
  }
  std::int64_t outermost = 0;
  for (std::int64_t i = 1; i < tensor.dim(); ++i) {
    if (tensor.size(outermost) == 1 ||
        (tensor.size(i) > 1 && tensor.stride(i) > tensor.stride(outermost))) {
      outermost = i;
    }
  }
  const std::int64_t size = tensor.size(outermost);
  append_blocks(tensor.narrow(outermost, 0, size / 2), blocks);
  append_blocks(tensor.narrow(outermost, size / 2, size - size / 2), blocks);
}

// The elements as numbers that every operator takes: floating-point ones of at least 16 bits, exact
// as far as `widest` is.
at::Tensor numbers_of(at::Tensor elements, at::ScalarType widest) {
  if (elements.is_complex()) {
    // A conjugate would be copied before it loses its sign again.
    if (elements.is_conj()) elements = elements.conj();
    if (elements.scalar_type() == at::kComplexHalf) elements = elements.to(at::kComplexFloat);
    return elements.abs();
  }
  // Once, not in every operator.
  elements = elements.resolve_neg();
  if (at::isFloat8Type(elements.scalar_type())) return elements.to(at::kFloat);
  if (elements.is_floating_point()) return elements;
  return elements.to(elements.element_size() < 4 ? at::kFloat : widest);
}

// The mean square of the differences from the mean. Torch's own brings a number to the host.
at::Tensor variance_of(const at::Tensor& numbers, const at::Tensor& mean, at::ScalarType sum_type,
                       at::ScalarType result_type) {
  const at::Tensor differences = numbers.to(sum_type) - mean;
  const at::Tensor norm = at::linalg_vector_norm(differences, 2).to(result_type);
  const at::Tensor error = at::mean(differences).to(result_type);  // of the mean, which was rounded
  // Rounding may have made it negative where all numbers are the same.
  return (norm * norm / static_cast<double>(numbers.numel()) - error * error).clamp_min(0);
}

// A row in the order of TensorStatistics' members, but with the variance, not the standard
// deviation.
at::Tensor block_statistics(const at::Tensor& block, at::ScalarType result_type, MeasureAlso also) {
  const at::Tensor numbers = numbers_of(block, result_type);
  const at::ScalarType sum_type = numbers.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor count =
      at::full({}, block.numel(), at::TensorOptions().dtype(result_type).device(numbers.device()));
  const bool is_integer = at::isIntegralType(block.scalar_type(), /*includeBool=*/true);
  const at::Tensor none = at::zeros_like(count);
  std::vector<at::Tensor> statistics = {
      at::linalg_vector_norm(numbers, 2, at::OptionalIntArrayRef(), false, sum_type),
      numbers.max(),
      numbers.min(),
      at::mean(numbers, sum_type),
      is_integer ? none : at::isnan(numbers).sum(),
      is_integer ? none : at::isinf(numbers).sum(),
      at::eq(numbers, 0).sum(),
      count,
  };
  if (also == MeasureAlso::kStandardDeviation) {
    statistics.push_back(variance_of(numbers, statistics[3], sum_type, result_type));
  }
  for (at::Tensor& statistic : statistics) statistic = statistic.to(result_type);
  return at::stack(statistics);
}

// The rows of a tensor's blocks as one, every element counted `repeats` times.
at::Tensor combined(const std::vector<at::Tensor>& rows, std::int64_t repeats, MeasureAlso also) {
  const at::Tensor blocks = at::stack(rows, 1);
  const at::Tensor counts = blocks[7];
  const at::Tensor count = counts.sum();
  const at::Tensor mean = (blocks[3] * (counts / count)).sum();
  std::vector<at::Tensor> statistics = {
      at::linalg_vector_norm(blocks[0], 2) * std::sqrt(static_cast<double>(repeats)),
      blocks[1].max(),
      blocks[2].min(),
      mean,
      blocks[4].sum() * repeats,
      blocks[5].sum() * repeats,
      blocks[6].sum() * repeats,
      count * repeats,
  };
  if (also == MeasureAlso::kStandardDeviation) {
    const at::Tensor difference = blocks[3] - mean;
    statistics.push_back(((blocks[8] + difference * difference) * (counts / count)).sum());
  }
  return at::stack(statistics);
}

at::Tensor device_statistics(const at::Tensor& tensor, MeasureAlso also) {
  const bool is_wide = at::toRealValueType(tensor.scalar_type()) == at::kDouble ||
                       tensor.is_cpu() || tensor.is_cuda() || tensor.is_xpu();
  const at::ScalarType result_type = is_wide ? at::kDouble : at::kFloat;
  at::Tensor distinct = tensor.detach();
  std::int64_t repeats = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0 || tensor.size(i) == 1) continue;
    repeats *= tensor.size(i);
    distinct = distinct.narrow(i, 0, 1);
  }
  std::vector<at::Tensor> blocks;
  append_blocks(distinct, blocks);
  for (at::Tensor& block : blocks) block = block_statistics(block, result_type, also);
  at::Tensor row =
      blocks.size() == 1 && repeats == 1 ? blocks.front() : combined(blocks, repeats, also);
  if (also == MeasureAlso::kNothing) return row;
  // 1 / 0 where there is one element, whose variance is 0.
  const auto count = static_cast<double>(tensor.numel());
  return at::cat({row.narrow(0, 0, 8), (row.narrow(0, 8, 1) * (count / (count - 1))).sqrt()});
}

}  // namespace

at::Tensor measurable(const at::Tensor& tensor) {
  at::Tensor found = plain(tensor);
  if (!found.defined() || !found.is_cpu() || found.numel() == 0 || !has_memory(found)) return {};
  return found;
}

std::optional<TensorStatistics> measure(const at::Tensor& measurable, MeasureAlso also) {
  const auto type = element_type(measurable.scalar_type());
  if (!type.has_value()) return std::nullopt;
  const auto sizes = measurable.sizes();
  const auto strides = measurable.strides();
  auto statistics = measure({.data = measurable.const_data_ptr(),
                             .type = *type,
                             .sizes = {sizes.data(), sizes.size()},
                             .strides = {strides.data(), strides.size()}},
                            torch_parallel_for(), also);
  if (statistics.has_value() && measurable.is_neg() && !measurable.is_complex()) {
    // A view that shows its memory negated.
    const double max = statistics->max;
    statistics->max = 0.0 - statistics->min;
    statistics->min = 0.0 - max;
    statistics->mean = 0.0 - statistics->mean;
  }
  return statistics;
}

OutsideModes::OutsideModes()
    : no_modes_(c10::autocast_dispatch_keyset |
                DispatchKeySet(
                    {DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                     DispatchKey::PythonDispatcher, DispatchKey::FuncTorchDynamicLayerFrontMode,
                     DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Functionalize})) {}

at::Tensor queue_measurement(const at::Tensor& tensor, MeasureAlso also) {
  const at::Tensor found = plain(tensor);
  if (!found.defined() || found.numel() == 0 || !has_memory(found)) return {};
  const OutsideModes outside;
  return device_statistics(found, also);
}

at::Tensor measure_on_device(const at::Tensor& tensor, MeasureAlso also) noexcept {
  try {
    return queue_measurement(tensor, also);
  } catch (...) {
    return {};
  }
}

}  // namespace trendprobe
