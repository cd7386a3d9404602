// Statistics of tensors on devices, on their way to the host: they stay where they were measured
// until the step ends, then come in one asynchronous copy a device, and the recorder's thread waits
// for it, never the training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hook/tensor_stats.h"
#include "writer/dump_statistics.h"

namespace trendprobe {

/// What stands in the place of a value that a device is still computing: a NaN that names it.
/// `row` is DeviceSlab's, `field` the position among TensorStatistics' members. Copies of a double
/// keep its bits, arithmetic need not: don't compute with it.
double pending_value(std::uint32_t row, std::uint32_t field);

/// What write_dump_values() would write, pending. REQUIRES: as there.
void write_pending_values(std::uint32_t row, bool is_floating_point, DumpStatistics statistics,
                          std::span<double> values);

/// The rows of one training step, once the step has ended. Thread-safe.
class DeviceRows {
 public:
  struct Group;

  /// No rows: every pending value becomes missing.
  DeviceRows();
  explicit DeviceRows(std::vector<Group> groups);
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;
  ~DeviceRows();

  /// Waits for the copies, if they are still under way, and puts every pending value's number in
  /// its place: the missing value where there is none. Throws c10::Error where a device failed.
  void resolve(std::span<double> values);

 private:
  void fetch();

  std::mutex mutex_;
  std::vector<Group> groups_;  // empty once fetched
  std::vector<std::vector<double>> rows_;
};

/// Collects the rows of one training step. Thread-safe.
class DeviceSlab {
 public:
  enum class Outcome : std::uint8_t {
    kQueued,
    /// There is nothing to measure: measure_on_device() says when. Also while a graph is captured:
    /// what is queued then would run at every replay.
    kNothing,
    /// The device has no memory left, or lacks an operator: it would be the same the next time.
    kFailed,
  };
  struct Added {
    Outcome outcome = Outcome::kNothing;
    std::uint32_t row = 0;  ///< For pending_value().
  };

  /// Queues the measurement of a tensor on its device, behind what its current stream has to do.
  /// Nothing waits, in this thread or on the host.
  Added add(const at::Tensor& tensor, MeasureAlso also = MeasureAlso::kNothing) noexcept;

  /// Ends the step: starts one copy for each device (and type of row: a device whose rows are
  /// float32 has float64 ones of float64 tensors), into pinned memory. Nothing waits. Null if there
  /// are no rows. Throws std::bad_alloc or c10::Error; the step's rows are lost then.
  std::shared_ptr<DeviceRows> take();

 private:
  struct Rows;
  using Key = std::pair<c10::Device, at::ScalarType>;
  struct KeyLess {
    bool operator()(const Key& a, const Key& b) const;
  };

  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Rows>, KeyLess> rows_;
  std::uint32_t count_ = 0;
};

}  // namespace trendprobe
