// What producers of records hand them to. Separate from the recorder, so that an extension module
// can submit to a recorder that lives in another.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "writer/dump_step.h"
#include "writer/record.h"

namespace trendprobe {

/// Monitor records of one training step and metric. Views must be interned.
struct MonitorBlock {
  struct Row {
    std::string_view name;
    std::int32_t vpp_stage = 0;
    std::int32_t micro_step = 0;
    std::int32_t call = 0;
  };
  std::int64_t training_step = 0;
  Metric metric;
  std::vector<Row> rows;
  /// rows.size() × metric.statistics.size(), row after row.
  std::vector<double> values;
  /// Fills in the values that were not there when the block was handed over, as ResolveDumpStep
  /// does; may be empty.
  std::function<void(std::vector<double>&)> resolve = {};
};

/// Fills in statistics that were not there when the step was handed over: those that a device was
/// still computing. Called once, in the recorder's own thread.
using ResolveDumpStep = std::function<void(DumpStep&)>;

/// Name of the Python capsule in which one extension module passes its RecordSink* to another.
inline constexpr const char* kRecordSinkCapsule = "trendprobe.RecordSink";

/// Thread-safe.
class RecordSink {
 public:
  RecordSink() = default;
  RecordSink(const RecordSink&) = delete;
  RecordSink& operator=(const RecordSink&) = delete;
  virtual ~RecordSink() = default;

  /// Keeps a name for the life of the sink: the same name gives the same view. Views in submissions
  /// must be such names. Empty in a forked child. Throws std::bad_alloc.
  virtual std::string_view intern(std::string_view name) = 0;

  /// Hands over one training step of dump data. `complete` is false where the step ended early.
  /// Returns false if it was dropped.
  virtual bool submit(DumpStep step, std::int64_t training_step, bool complete,
                      ResolveDumpStep resolve = {}) noexcept = 0;
  /// Hands over monitor records. Blocks of one training step are committed together: once a later
  /// step begins, or when nothing has come for a while. Returns false if they were dropped.
  virtual bool submit(MonitorBlock block) noexcept = 0;
};

}  // namespace trendprobe
