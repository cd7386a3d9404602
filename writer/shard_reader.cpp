#include "writer/shard_reader.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "writer/block_encoding.h"
#include "writer/format_error.h"
#include "writer/shard_schema.h"
#include "writer/statistic_list.h"

namespace trendprobe {
std::string why_incomplete(const ShardStep& step) {
  return step.dropped == 0 ? "is incomplete: its process ended in the middle of it"
                           : "is incomplete: " + std::to_string(step.dropped) +
                                 " records were dropped in the training process";
}

ShardReader::ShardReader(const std::filesystem::path& path)
    : database_(path, OpenOptions{.mode = OpenMode::kReadOnly, .without_locks = true}) {
  if (database_.query_integer("PRAGMA application_id") != kShardApplicationId) {
    fail("not a TrendProbe shard");
  }
  const std::int64_t version = database_.query_integer("PRAGMA user_version");
  if (version != kShardFormatVersion) {
    fail("shard format version " + std::to_string(version) + "; this TrendProbe (" +
         TRENDPROBE_VERSION + ") reads version " + std::to_string(kShardFormatVersion) +
         ": update it");
  }
  // One read transaction: everything below sees the same commits of a shard in use.
  database_.execute("BEGIN");
  read_info();
  read_metrics();
  read_targets();
  read_steps();
  select_blocks_ = database_.prepare(
      "SELECT step, micro_step, metric_id, list_id, data FROM blocks "
      "WHERE block_id BETWEEN ?1 AND ?2 ORDER BY block_id");
  select_list_ = database_.prepare("SELECT target_ids FROM target_lists WHERE list_id=?1");
}

void ShardReader::fail(const std::string& what) const { throw FormatError(path(), what); }

void ShardReader::read_info() {
  Statement select = database_.prepare("SELECT key, value FROM shard_info");
  while (select.step()) {
    const std::string_view key = select.text(0);
    if (key == "host") info_.host = select.text(1);
    if (key == "pid") info_.pid = select.integer(1);
    if (key == "started_ns") info_.started_ns = select.integer(1);
    if (key == "part") info_.part = select.integer32(1);
    if (key == "rank") info_.rank = select.integer32(1);
    if (key == "trendprobe_version") info_.trendprobe_version = select.text(1);
    if (key == "framework") info_.framework = select.text(1);
    if (key == "level") info_.level = select.text(1);
    if (key == "task") info_.task = select.text(1);
    if (key == "directory") info_.directory = select.text(1);
    if (key == "last_error") info_.last_error = select.text(1);
    if (key == "closed") info_.closed = select.integer(1) != 0;
  }
}

void ShardReader::read_metrics() {
  Statement select =
      database_.prepare("SELECT metric_id, kind, name, statistics FROM metrics ORDER BY metric_id");
  while (select.step()) {
    metric_ids_.push_back(select.integer(0));
    const std::string_view kind = select.text(1);
    if (kind != to_string(RecordKind::kDump) && kind != to_string(RecordKind::kMonitor)) {
      fail("metric of the unknown kind \"" + std::string(kind) + "\"");
    }
    Metric& metric = metrics_.emplace_back();
    metric.kind = kind == to_string(RecordKind::kDump) ? RecordKind::kDump : RecordKind::kMonitor;
    metric.name = select.text(2);
    metric.statistics = split_statistics(select.text(3));
  }
}

void ShardReader::read_targets() {
  Statement select =
      database_.prepare("SELECT target_id, name, vpp_stage, call FROM targets ORDER BY target_id");
  for (std::int64_t expected = 0; select.step(); ++expected) {
    const auto index = targets_.intern(select.text(1), select.integer32(2), select.integer32(3));
    if (select.integer(0) != expected || index != expected) {
      fail("target ids are not dense and distinct at target " + std::to_string(expected));
    }
  }
}

void ShardReader::read_steps() {
  Statement select = database_.prepare(
      "SELECT kind, step, micro_steps, records, dropped, state, committed_ns, first_block, "
      "block_count FROM steps ORDER BY commit_id");
  while (select.step()) {
    ShardStep& step = steps_.emplace_back();
    step.kind =
        select.text(0) == to_string(RecordKind::kDump) ? RecordKind::kDump : RecordKind::kMonitor;
    step.training_step = select.integer(1);
    step.micro_steps = std::max(1, select.integer32(2));
    step.records = static_cast<std::uint64_t>(select.integer(3));
    step.dropped = static_cast<std::uint64_t>(select.integer(4));
    step.complete = select.text(5) == "complete";
    step.committed_ns = select.integer(6);
    step.first_block = select.integer(7);
    step.block_count = select.integer(8);
  }
}

const std::vector<std::uint32_t>& ShardReader::target_list(std::int64_t list_id) {
  const auto found = lists_.find(list_id);
  if (found != lists_.end()) return found->second;
  select_list_.reset();
  select_list_.bind(0, list_id);
  std::vector<std::uint32_t> ids;
  if (!select_list_.step() || !decode_target_ids(select_list_.blob(0), ids)) {
    fail("target list " + std::to_string(list_id) + " is missing or cut");
  }
  for (const std::uint32_t id : ids) {
    if (id >= targets_.size()) {
      fail("target list " + std::to_string(list_id) + " names the unknown target " +
           std::to_string(id));
    }
  }
  return lists_.emplace(list_id, std::move(ids)).first->second;
}

std::vector<RecordBlock> ShardReader::read(const ShardStep& step) {
  std::vector<RecordBlock> blocks;
  select_blocks_.reset();
  select_blocks_.bind(0, step.first_block).bind(1, step.first_block + step.block_count - 1);
  while (select_blocks_.step()) {
    RecordBlock& block = blocks.emplace_back();
    block.training_step = select_blocks_.integer(0);
    block.micro_step = select_blocks_.integer32(1);
    const std::int64_t metric_id = select_blocks_.integer(2);
    const auto metric = std::lower_bound(metric_ids_.begin(), metric_ids_.end(), metric_id);
    if (metric == metric_ids_.end() || *metric != metric_id) {
      fail("a block of step " + std::to_string(step.training_step) + " has the unknown metric " +
           std::to_string(metric_id));
    }
    block.metric = static_cast<std::uint32_t>(metric - metric_ids_.begin());
    block.targets = target_list(select_blocks_.integer(3));
    const std::size_t count = block.targets.size() * metrics_[block.metric].statistics.size();
    if (!decode_values(select_blocks_.blob(4), count, block.values)) {
      fail("a block of step " + std::to_string(step.training_step) + " has " +
           std::to_string(select_blocks_.blob(4).size()) + " bytes for " + std::to_string(count) +
           " values");
    }
  }
  if (blocks.size() != static_cast<std::size_t>(std::max<std::int64_t>(0, step.block_count))) {
    fail("step " + std::to_string(step.training_step) + " has " + std::to_string(blocks.size()) +
         " blocks instead of " + std::to_string(step.block_count));
  }
  return blocks;
}

}  // namespace trendprobe
