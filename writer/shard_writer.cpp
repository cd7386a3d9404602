#include "writer/shard_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "writer/block_encoding.h"
#include "writer/shard_schema.h"
#include "writer/statistic_list.h"

namespace trendprobe {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A name in a directory is safe from a power cut once the directory is synced. That this is not
// possible everywhere is no reason to do without the file.
void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

// std::filesystem::create_directories gives 0777 less the umask.
void create_private_directories(const std::filesystem::path& directory, Durability durability) {
  std::filesystem::path so_far;
  for (const auto& part : directory) {
    const std::filesystem::path parent = so_far;
    so_far /= part;
    if (::mkdir(so_far.c_str(), S_IRWXU | S_IRGRP | S_IXGRP) == 0) {
      if (durability == Durability::kStep) sync_directory(parent);
    } else if (errno != EEXIST) {
      const int error = errno;
      // A parent that may not be written to, but exists, answers with EROFS or EACCES.
      if (!std::filesystem::is_directory(so_far)) {
        throw std::filesystem::filesystem_error("can't create the directory", so_far,
                                                std::error_code(error, std::generic_category()));
      }
    }
  }
}

void remove_files(const std::filesystem::path& path) {
  for (const char* suffix : {"-journal", "-wal", ""}) {
    std::error_code ignored;
    std::filesystem::remove(path.string() + suffix, ignored);
  }
}

Database create_database(const std::filesystem::path& directory, const ShardIdentity& identity,
                         const ShardOptions& options) {
  create_private_directories(directory, options.durability);
  return {directory / ShardWriter::file_name(identity),
          OpenOptions{.mode = OpenMode::kCreateNew, .without_locks = true, .vfs = options.vfs}};
}

}  // namespace

std::string ShardWriter::file_name(const ShardIdentity& identity) {
  std::string host = identity.host;
  for (char& c : host) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!plain) c = '_';
  }
  // Names up to 255 bytes: the numbers and the "-wal" behind them need 70.
  host.resize(std::min<std::size_t>(host.size(), 180));
  return host + "-" + std::to_string(identity.pid) + "-" +
         std::to_string(identity.started_ns / 1'000'000) + "-" + std::to_string(identity.part) +
         kShardExtension;
}

ShardWriter::ShardWriter(const std::filesystem::path& directory, const ShardIdentity& identity,
                         const ShardOptions& options, const TargetTable& targets)
    : targets_(targets), database_(create_database(directory, identity, options)) {
  try {
    create_tables(identity, options.durability);
  } catch (...) {
    // What holds no step is no shard.
    const std::filesystem::path path = database_.path();
    for (Statement* statement : statements()) *statement = Statement();
    database_ = Database();
    remove_files(path);
    throw;
  }
}

void ShardWriter::create_tables(const ShardIdentity& identity, Durability durability) {
  const bool synced = durability == Durability::kStep;
  // The schema is written through the rollback journal: a file killed within these lines holds no
  // step anyway.
  database_.execute(
      "PRAGMA page_size=4096; PRAGMA application_id=" + std::to_string(kShardApplicationId) +
      "; PRAGMA user_version=" + std::to_string(kShardFormatVersion));
  // The log is moved into the main file at close only, so that a reader of a shard in use never
  // sees a page change.
  database_.execute("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0");
  database_.execute(synced ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=OFF");
  database_.execute("BEGIN");
  database_.execute(kShardSchema);
  insert_info_ = database_.prepare(
      "INSERT INTO shard_info(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET "
      "value=excluded.value");
  insert_metric_ = database_.prepare(
      "INSERT INTO metrics(metric_id, kind, name, statistics) VALUES(?1, ?2, ?3, ?4)");
  insert_target_ = database_.prepare(
      "INSERT INTO targets(target_id, name, vpp_stage, call) VALUES(?1, ?2, ?3, ?4)");
  insert_list_ = database_.prepare("INSERT INTO target_lists(list_id, target_ids) VALUES(?1, ?2)");
  insert_block_ = database_.prepare(
      "INSERT INTO blocks(block_id, step, micro_step, metric_id, list_id, data) "
      "VALUES(?1, ?2, ?3, ?4, ?5, ?6)");
  insert_step_ = database_.prepare(
      "INSERT INTO steps(kind, step, micro_steps, records, dropped, state, committed_ns, "
      "first_block, block_count) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)");
  set_info("host", identity.host);
  set_info("pid", identity.pid);
  set_info("started_ns", identity.started_ns);
  set_info("part", std::int64_t{identity.part});
  set_info("rank", std::int64_t{-1});
  set_info("trendprobe_version", TRENDPROBE_VERSION);
  set_info("closed", std::int64_t{0});
  database_.execute("COMMIT");
}

void ShardWriter::set_info(std::string_view key, std::string_view value) {
  insert_info_.bind(0, key).bind(1, value).run();
}

void ShardWriter::set_info(std::string_view key, std::int64_t value) {
  insert_info_.bind(0, key).bind(1, value).run();
}

std::int64_t ShardWriter::metric_id(const Metric& metric) {
  for (std::size_t i = 0; i < metrics_written_.size(); ++i) {
    if (metrics_written_[i] == metric) return static_cast<std::int64_t>(i) + 1;
  }
  const auto id = static_cast<std::int64_t>(metrics_written_.size()) + 1;
  const std::string statistics = join_statistics(metric.statistics);
  insert_metric_.bind(0, id)
      .bind(1, to_string(metric.kind))
      .bind(2, metric.name)
      .bind(3, statistics)
      .run();
  metrics_written_.push_back(metric);
  return id;
}

std::int64_t ShardWriter::list_id(const std::vector<std::uint32_t>& targets) {
  const auto found = lists_written_.find(targets);
  if (found != lists_written_.end()) return found->second;
  const auto id = static_cast<std::int64_t>(lists_written_.size()) + 1;
  encode_target_ids(targets, encoded_);
  insert_list_.bind(0, id).bind_blob(1, encoded_).run();
  lists_written_.emplace(targets, id);
  return id;
}

void ShardWriter::write_new_targets() {
  for (; targets_written_ < targets_.size(); ++targets_written_) {
    const Target& target = targets_[static_cast<std::uint32_t>(targets_written_)];
    insert_target_.bind(0, static_cast<std::int64_t>(targets_written_))
        .bind(1, target.name)
        .bind(2, target.vpp_stage)
        .bind(3, target.call)
        .run();
  }
}

void ShardWriter::commit(const ShardCommit& commit) {
  const std::size_t targets_before = targets_written_;
  const std::size_t metrics_before = metrics_written_.size();
  const std::size_t lists_before = lists_written_.size();
  const std::int64_t block_before = next_block_;
  try {
    Transaction transaction(database_);
    write_new_targets();
    std::uint64_t records = 0;
    for (const RecordBlock& block : commit.blocks) {
      if (block.targets.empty()) continue;
      const std::int64_t metric = metric_id(commit.metrics[block.metric]);
      const std::int64_t list = list_id(block.targets);
      encode_values(block.values, encoded_);
      insert_block_.bind(0, next_block_++)
          .bind(1, block.training_step)
          .bind(2, block.micro_step)
          .bind(3, metric)
          .bind(4, list)
          .bind_blob(5, encoded_)
          .run();
      records += block.targets.size();
    }
    insert_step_.bind(0, to_string(commit.kind))
        .bind(1, commit.training_step)
        .bind(2, commit.micro_steps)
        .bind(3, static_cast<std::int64_t>(records))
        .bind(4, static_cast<std::int64_t>(commit.dropped))
        .bind(5, std::string_view(commit.complete ? "complete" : "incomplete"))
        .bind(6, now_ns())
        .bind(7, block_before)
        .bind(8, next_block_ - block_before)
        .run();
    transaction.commit();
  } catch (...) {
    targets_written_ = targets_before;
    metrics_written_.resize(metrics_before);
    std::erase_if(lists_written_, [lists_before](const auto& list) {
      return list.second > static_cast<std::int64_t>(lists_before);
    });
    next_block_ = block_before;
    throw;
  }
}

void ShardWriter::close() {
  // Before the log is thrown away its contents must have reached the disk, whatever the durability
  // was until now.
  database_.execute("PRAGMA synchronous=FULL");
  set_info("closed", std::int64_t{1});
  for (Statement* statement : statements()) *statement = Statement();
  database_.execute("PRAGMA journal_mode=DELETE");
  database_.close();
}

std::uint64_t ShardWriter::size_bytes() const {
  std::uint64_t total = 0;
  for (const char* suffix : {"", "-wal"}) {
    std::error_code ignored;
    const auto size = std::filesystem::file_size(path().string() + suffix, ignored);
    if (!ignored) total += size;
  }
  return total;
}

}  // namespace trendprobe
