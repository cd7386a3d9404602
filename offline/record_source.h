// Where records come from. Every input format (dump tree, monitor CSV, shard, …) is one
// RecordSource; everything after it is one code path (Merger).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offline/diagnostics.h"
#include "writer/record.h"

namespace trendprobe {

/// What is parsed in one go: a contiguous range of training steps of one rank. Small enough to hold
/// in memory.
struct ReadUnit {
  std::int32_t rank = 0;
  /// (training step, number of its micro-steps), ascending.
  std::vector<std::pair<std::int64_t, std::int32_t>> steps;
  /// Later units win where two hold the same record: ordered by this, then by the order of sources
  /// and units. Start of the process in ns since 1970, 0 where unknown.
  std::int64_t started_ns = 0;
  /// What the source needs to find the unit again.
  std::size_t id = 0;
  /// Size of the input, for progress and load balance.
  std::uint64_t bytes = 0;
  /// What to name in messages and in trendprobe_sources: the directory or file.
  std::string path;
  /// Host name, where known.
  std::string host;
};

/// The records of one unit.
struct UnitRecords {
  std::vector<Metric> metrics;
  /// Null only where there are no blocks. Units with the same targets may share a table, which
  /// saves looking up each of its names again.
  std::shared_ptr<const TargetTable> targets;
  /// (training step, micro-step, metric) ascending.
  std::vector<RecordBlock> blocks;
};

/// One input. scan() is called once, before any read(); read() may then be called from several
/// threads at once, once a unit. Bad input is reported to Diagnostics and skipped, never thrown;
/// only std::bad_alloc and programming errors propagate.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  RecordSource(const RecordSource&) = delete;
  RecordSource& operator=(const RecordSource&) = delete;

  virtual RecordKind kind() const = 0;
  /// "dump", "monitor" or "shard": the format column of trendprobe_sources.
  virtual std::string_view format() const = 0;
  /// Finds the units and counts their micro-steps, reading as little as the format allows. `jobs`
  /// threads may be used.
  virtual std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned jobs) = 0;
  virtual UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const = 0;

 protected:
  RecordSource() = default;
};

}  // namespace trendprobe
