// Reads a shard: closed, left by a killed process, or still being written. Takes no lock and writes
// nothing.
//
// What is read is the commits up to some moment. Belongs to one thread. Throws SqliteError
// (storage, damage) and FormatError (no shard, newer version, contents that break docs/format.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "writer/record.h"
#include "writer/sqlite_handle.h"

namespace trendprobe {

/// shard_info, its missing keys left at these defaults.
struct ShardInfo {
  std::string host;
  std::int64_t pid = 0;
  std::int64_t started_ns = 0;
  std::int32_t part = 0;
  /// -1: never known.
  std::int32_t rank = -1;
  std::string trendprobe_version;
  std::string framework;
  std::string level;
  std::string task;
  std::string directory;
  std::string last_error;
  /// False while it is being written, or after a crash.
  bool closed = false;
};

/// One commit: a row of `steps`.
struct ShardStep {
  RecordKind kind = RecordKind::kDump;
  std::int64_t training_step = 0;
  std::int32_t micro_steps = 1;
  std::uint64_t records = 0;
  std::uint64_t dropped = 0;
  bool complete = true;
  std::int64_t committed_ns = 0;
  std::int64_t first_block = 0;
  std::int64_t block_count = 0;
};

/// Why a step that is not complete is not, for a message: "is incomplete: …".
std::string why_incomplete(const ShardStep& step);

class ShardReader {
 public:
  explicit ShardReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return database_.path(); }
  const ShardInfo& info() const { return info_; }
  const std::vector<Metric>& metrics() const { return metrics_; }
  const TargetTable& targets() const { return targets_; }
  /// In the order of the commits.
  const std::vector<ShardStep>& steps() const { return steps_; }

  /// The blocks of one commit, in the order in which they were written. Metric indices are those of
  /// metrics(), targets those of targets().
  std::vector<RecordBlock> read(const ShardStep& step);

 private:
  void read_info();
  void read_metrics();
  void read_targets();
  void read_steps();
  const std::vector<std::uint32_t>& target_list(std::int64_t list_id);
  [[noreturn]] void fail(const std::string& what) const;

  Database database_;
  ShardInfo info_;
  std::vector<Metric> metrics_;
  std::vector<std::int64_t> metric_ids_;  // of metrics_, ascending
  TargetTable targets_;
  std::vector<ShardStep> steps_;
  Statement select_blocks_;
  Statement select_list_;
  std::unordered_map<std::int64_t, std::vector<std::uint32_t>> lists_;
};

}  // namespace trendprobe
