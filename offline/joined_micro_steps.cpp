#include "offline/joined_micro_steps.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

namespace trendprobe {
namespace {

/// What stays of a record's key: training step, metric, name, virtual pipeline stage.
using Key = std::tuple<std::int64_t, std::uint32_t, std::string_view, std::int32_t>;
/// Micro-step and call → the new call.
using Calls = std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t>;

Key key_of(const RecordBlock& block, const Target& target) {
  return {block.training_step, block.metric, target.name, target.vpp_stage};
}

std::map<Key, Calls> monitor_calls(const UnitRecords& records) {
  std::map<Key, Calls> calls;
  for (const RecordBlock& block : records.blocks) {
    for (const std::uint32_t id : block.targets) {
      const Target& target = (*records.targets)[id];
      calls[key_of(block, target)].try_emplace({block.micro_step, target.call});
    }
  }
  for (auto& [key, of_target] : calls) {
    std::int32_t next = 0;
    for (auto& [place, call] : of_target) {
      call = std::max(place.first, next);
      next = call + 1;
    }
  }
  return calls;
}

}  // namespace

void join_micro_steps(UnitRecords& records, RecordKind kind) {
  if (records.blocks.empty()) return;
  auto targets = std::make_shared<TargetTable>();
  std::stable_sort(
      records.blocks.begin(), records.blocks.end(), [](const RecordBlock& a, const RecordBlock& b) {
        return std::tie(a.training_step, a.micro_step) < std::tie(b.training_step, b.micro_step);
      });
  std::map<Key, Calls> calls_of_monitor;
  if (kind == RecordKind::kMonitor) calls_of_monitor = monitor_calls(records);
  std::map<Key, std::int32_t> dump_calls;
  for (RecordBlock& block : records.blocks) {
    for (std::uint32_t& id : block.targets) {
      const Target& target = (*records.targets)[id];
      const Key key = key_of(block, target);
      const std::int32_t call = kind == RecordKind::kMonitor
                                    ? calls_of_monitor[key][{block.micro_step, target.call}]
                                    : dump_calls[key]++;
      id = targets->intern(target.name, target.vpp_stage, call);
    }
    block.micro_step = 0;
  }
  records.targets = std::move(targets);
}

}  // namespace trendprobe
