// What every source of records yields and every format stores: targets, metrics, and blocks of
// records.
//
// Plain values without invariants of their own; copyable, not synchronised.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trendprobe {

/// Which of msProbe's two collectors a record comes from. Each kind has its own trend database.
enum class RecordKind : std::uint8_t { kDump, kMonitor };

/// "dump" or "monitor".
std::string_view to_string(RecordKind kind);

/// What was measured. Unique by all three fields.
struct Target {
  std::string name;
  /// Virtual pipeline stage (model chunk).
  std::int32_t vpp_stage = 0;
  /// Number of the call within its micro-step; msProbe's schema calls this column micro_step.
  std::int32_t call = 0;

  auto operator<=>(const Target&) const = default;
};

/// A metric and the statistics that each of its records holds, in this order.
struct Metric {
  RecordKind kind = RecordKind::kDump;
  std::string name;
  std::vector<std::string> statistics;

  bool operator==(const Metric&) const = default;
};

/// The index of a metric in a list of distinct ones, to which it is added if it is new.
std::uint32_t intern_metric(std::vector<Metric>& metrics, const Metric& metric);

/// The records of one (training step, micro-step, metric) of one process, in the order in which
/// they were collected.
struct RecordBlock {
  std::int64_t training_step = 0;
  std::int32_t micro_step = 0;
  /// Index into the producer's list of metrics.
  std::uint32_t metric = 0;
  /// Indices into the producer's TargetTable, one a record.
  std::vector<std::uint32_t> targets;
  /// targets.size() × number of statistics, record after record; kMissing where not measured.
  std::vector<double> values;
};

/// Interns targets: gives each distinct target a dense index from 0 in the order of first
/// appearance. Not synchronised; references and indices stay valid while the table lives. Movable,
/// not copyable.
class TargetTable {
 public:
  TargetTable() = default;
  TargetTable(TargetTable&&) = default;
  TargetTable& operator=(TargetTable&&) = default;

  /// The target's index; a new one if it was never seen.
  std::uint32_t intern(std::string_view name, std::int32_t vpp_stage, std::int32_t call);
  std::uint32_t intern(const Target& target) {
    return intern(target.name, target.vpp_stage, target.call);
  }

  const Target& operator[](std::uint32_t index) const { return targets_[index]; }
  std::size_t size() const { return targets_.size(); }

 private:
  struct Key {
    std::string_view name;  // views the string in targets_
    std::int32_t vpp_stage;
    std::int32_t call;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };

  std::deque<Target> targets_;  // a deque: growing it moves no string
  std::unordered_map<Key, std::uint32_t, KeyHash> index_;
};

}  // namespace trendprobe
