#include "offline/joined_micro_steps.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

namespace trendprobe {

void join_micro_steps(UnitRecords& records, RecordKind kind) {
  std::map<std::tuple<std::int64_t, std::uint32_t, std::string_view, std::int32_t>, std::int32_t>
      calls;
  auto targets = std::make_shared<TargetTable>();
  std::stable_sort(
      records.blocks.begin(), records.blocks.end(), [](const RecordBlock& a, const RecordBlock& b) {
        return std::tie(a.training_step, a.micro_step) < std::tie(b.training_step, b.micro_step);
      });
  for (RecordBlock& block : records.blocks) {
    for (std::uint32_t& id : block.targets) {
      const Target& target = (*records.targets)[id];
      std::int32_t call = block.micro_step;
      if (kind == RecordKind::kDump) {
        call = calls[{block.training_step, block.metric, target.name, target.vpp_stage}]++;
      }
      id = targets->intern(target.name, target.vpp_stage, call);
    }
    block.micro_step = 0;
  }
  records.targets = std::move(targets);
}

}  // namespace trendprobe
