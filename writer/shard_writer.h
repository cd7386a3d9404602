// Writes one shard: the records of one process, one transaction a commit. docs/format.md, "Shard".
//
// Belongs to one thread. Every method throws SqliteError when the storage fails; a failed commit
// leaves the file as it was after the commit before, and the next one may succeed (a full disk that
// got room again).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "writer/record.h"
#include "writer/sqlite_handle.h"

namespace trendprobe {

/// Who writes the shard.
struct ShardIdentity {
  std::string host;
  std::int64_t pid = 0;
  /// Start of the recording, ns since 1970. Orders the shards of a restarted rank.
  std::int64_t started_ns = 0;
  /// Part number of this file within the process's recording, from 0.
  std::int32_t part = 0;
};

/// When a committed step is safe.
enum class Durability : std::uint8_t {
  /// Once the process is killed: the data is with the operating system.
  kProcess,
  /// Once the power fails too: every commit is synced.
  kStep,
};

struct ShardOptions {
  Durability durability = Durability::kProcess;
  /// Name of a registered SQLite VFS; empty = unix-none. For fault injection.
  std::string vfs;
};

/// What one commit holds.
struct ShardCommit {
  RecordKind kind = RecordKind::kDump;
  std::int64_t training_step = 0;
  /// How many micro-steps the training step has; at least 1.
  std::int32_t micro_steps = 1;
  /// Records that were dropped or lost.
  std::uint64_t dropped = 0;
  /// False where something of this step is missing.
  bool complete = true;
  /// Blocks; their metric indices refer to `metrics`, their targets to the writer's TargetTable.
  std::span<const RecordBlock> blocks;
  std::span<const Metric> metrics;
};

class ShardWriter {
 public:
  /// Creates the file in `directory` (made, with mode 0750, if it does not exist); leaves none
  /// behind when that fails. `targets` is borrowed, may grow between commits, and must outlive the
  /// writer.
  ShardWriter(const std::filesystem::path& directory, const ShardIdentity& identity,
              const ShardOptions& options, const TargetTable& targets);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;
  /// Leaves the file as after a crash, which loses nothing; call close() for an orderly end.
  ~ShardWriter() = default;

  /// Sets a key of shard_info (docs/format.md lists them), in a transaction of its own.
  void set_info(std::string_view key, std::string_view value);
  void set_info(std::string_view key, std::int64_t value);

  /// Writes one commit and returns once it is as durable as ShardOptions asks.
  void commit(const ShardCommit& commit);

  /// Syncs, moves the log into the main file and marks the shard closed. Nothing may be called
  /// afterwards.
  void close();

  const std::filesystem::path& path() const { return database_.path(); }
  /// Bytes in the shard and its log.
  std::uint64_t size_bytes() const;

  /// `<host>-<pid>-<start in ms>-<part>.shard`
  static std::string file_name(const ShardIdentity& identity);

 private:
  void create_tables(const ShardIdentity& identity, Durability durability);
  std::array<Statement*, 6> statements() {
    return {&insert_info_, &insert_metric_, &insert_target_,
            &insert_list_, &insert_block_,  &insert_step_};
  }
  std::int64_t metric_id(const Metric& metric);
  std::int64_t list_id(const std::vector<std::uint32_t>& targets);
  void write_new_targets();

  const TargetTable& targets_;
  Database database_;
  Statement insert_info_;
  Statement insert_metric_;
  Statement insert_target_;
  Statement insert_list_;
  Statement insert_block_;
  Statement insert_step_;
  // What the file already holds. Ids added by a transaction that fails are forgotten (commit()).
  std::size_t targets_written_ = 0;
  std::vector<Metric> metrics_written_;
  std::map<std::vector<std::uint32_t>, std::int64_t> lists_written_;
  std::int64_t next_block_ = 1;
  std::vector<std::byte> encoded_;
};

}  // namespace trendprobe
