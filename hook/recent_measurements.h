// Statistics of tensors that were measured a moment ago: what one module gives is, as a rule, what
// the next one takes, and need not be read again.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "hook/tensor_stats.h"

namespace trendprobe {

/// Remembers the last few tensors. Thread-safe. Keeps no tensor's memory alive.
///
/// A tensor counts as unchanged as autograd itself judges it: the same memory, which was not freed
/// meanwhile, and the same version. Writes that evade the version (through .data, or a view of
/// NumPy's) are found where they change any of a few dozen elements spread over the tensor.
class RecentMeasurements {
 public:
  /// The statistics of a tensor that has not changed since keep(). REQUIRES: measurable() gave it.
  std::optional<TensorStatistics> find(const at::Tensor& tensor);
  /// Small tensors are not kept: they are measured as fast. Throws std::bad_alloc.
  void keep(const at::Tensor& tensor, const TensorStatistics& statistics);
  void clear();

 private:
  static constexpr std::size_t kCount = 16;

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* data = nullptr;
    at::ScalarType type = at::kFloat;
    bool is_negative = false;
    std::int64_t elements = 0;
    std::uint32_t version = 0;
    std::uint64_t sample = 0;
    TensorStatistics statistics;
  };

  static bool is_kept(const at::Tensor& tensor);

  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
};

}  // namespace trendprobe
