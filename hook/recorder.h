// Takes what was measured in the training process and streams it into a shard, from a thread of its
// own. Nothing here ever throws into the training, and a full or broken disk costs it nothing but
// what `on_full` allows.
//
// A forked child (a data loader's worker) inherits the object but never writes: every call there
// does nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "hook/record_sink.h"
#include "hook/storage.h"
#include "writer/shard_writer.h"

namespace trendprobe {

/// What submit() does when the queue is full.
enum class WhenFull : std::uint8_t {
  /// Wait until there is room: nothing is lost.
  kWait,
  /// Drop the step and say so in the shard.
  kDrop,
};

struct RecorderOptions {
  /// Where the shard is made.
  std::filesystem::path directory;
  Durability durability = Durability::kProcess;
  /// Memory that waiting steps may take.
  std::size_t queue_bytes = std::size_t{32} << 20;
  /// Size from which a shard is closed, and the next commit begins another part. A shard is twice
  /// on the disk while it is closed, and the log's index takes 2 KiB of memory a MiB.
  std::uint64_t rotate_bytes = std::uint64_t{1} << 30;
  WhenFull when_full = WhenFull::kWait;
  /// Name of a registered SQLite VFS; empty = unix-none. For fault injection.
  std::string vfs;
  /// How the storage is looked at before the first shard is made. For tests.
  StorageFacts (*look_at_storage)(const std::filesystem::path&) = storage_of;
};

/// What became of the submissions so far.
struct RecorderCounts {
  std::uint64_t committed_steps = 0;
  std::uint64_t committed_records = 0;
  /// Records that were dropped, or lost to storage errors.
  std::uint64_t lost_records = 0;
};

/// Thread-safe. The thread is started, and the file made, by the first submission.
class Recorder : public RecordSink {
 public:
  explicit Recorder(RecorderOptions options);
  /// As close().
  ~Recorder() override;

  std::string_view intern(std::string_view name) override;
  bool submit(DumpStep step, std::int64_t training_step, bool complete,
              ResolveDumpStep resolve = {}) noexcept override;
  bool submit(MonitorBlock block) noexcept override;

  /// Sets the rank; until then the shard says that it is not known.
  void set_rank(std::int32_t rank) noexcept;
  /// Sets a key of shard_info (framework, level, task, directory).
  void set_info(std::string_view key, std::string_view value) noexcept;

  /// Waits until all that was submitted is committed, or was given up.
  void flush() noexcept;
  /// Commits what waits, closes the shard, ends the thread. Later submissions do nothing.
  void close() noexcept;

  /// The oldest warning that was not taken yet: what is known of the storage at the start, or the
  /// first storage error, with the file and what to do. Empty if there is none.
  std::string take_warning() noexcept;
  RecorderCounts counts() const noexcept;
  /// The file of the shard's latest part; empty before it is made.
  std::filesystem::path shard() const noexcept;

 private:
  class Worker;
  bool is_ours() const noexcept;

  std::unique_ptr<Worker> worker_;
  std::int64_t pid_;
};

}  // namespace trendprobe
