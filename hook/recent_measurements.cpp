#include "hook/recent_measurements.h"

#include <algorithm>
#include <cstring>

namespace trendprobe {
namespace {

constexpr std::int64_t kMinElements = 4096;
constexpr std::size_t kSamples = 32;

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// Of words spread evenly over the memory, the first and the last among them.
std::uint64_t sample_of(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const auto words = static_cast<std::size_t>(tensor.nbytes()) / sizeof(std::uint64_t);
  std::uint64_t sample = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + (words - 1) * i / (kSamples - 1) * sizeof(word), sizeof(word));
    sample = (sample ^ word) * 0x9E3779B97F4A7C15U;
    sample ^= sample >> 29;
  }
  return sample;
}

}  // namespace

bool RecentMeasurements::is_kept(const at::Tensor& tensor) {
  return tensor.numel() >= kMinElements && tensor.is_contiguous() && !tensor.is_inference() &&
         !tensor.is_conj();
}

std::optional<TensorStatistics> RecentMeasurements::find(const at::Tensor& tensor) {
  if (!is_kept(tensor)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.data == tensor.const_data_ptr() && entry.type == tensor.scalar_type() &&
           entry.elements == tensor.numel() && entry.is_negative == tensor.is_neg() &&
           entry.version == version_of(tensor) && !entry.storage.expired() &&
           entry.storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
           entry.sample == sample_of(tensor);
  });
  if (found == entries_.end()) return std::nullopt;
  return found->statistics;
}

void RecentMeasurements::keep(const at::Tensor& tensor, const TensorStatistics& statistics) {
  if (!is_kept(tensor)) return;
  Entry entry{tensor.storage().getWeakStorageImpl(),
              tensor.const_data_ptr(),
              tensor.scalar_type(),
              tensor.is_neg(),
              tensor.numel(),
              version_of(tensor),
              sample_of(tensor),
              statistics};
  const std::lock_guard lock(mutex_);
  if (entries_.size() < kCount) {
    entries_.push_back(std::move(entry));
  } else {
    entries_[next_] = std::move(entry);
  }
  next_ = (next_ + 1) % kCount;
}

void RecentMeasurements::clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  next_ = 0;
}

}  // namespace trendprobe
