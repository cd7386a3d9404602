#include "offline/dump_layout.h"

#include <span>
#include <string_view>
#include <utility>

namespace trendprobe {
DumpLayout::DumpLayout(const DumpStep& step, const NumberingOptions& options) {
  for (const DumpEntry& entry : step.entries) {
    names_.append(entry.name);
    entries_.push_back({names_.size(), entry.tensor_count, entry.is_recompute});
    for (std::uint32_t i = 0; i < entry.tensor_count; ++i) {
      const std::size_t tensor = entry.first_tensor + i;
      names_.append(step.tensors[tensor].suffix);
      tensors_.push_back({names_.size(), has_statistic(step.values_of(tensor))});
    }
  }
  // Each tensor's own index in place of its values tells where they go.
  DumpStep indexed = step;
  const std::size_t width = step.statistics.size();
  for (std::size_t i = 0; i < indexed.tensors.size(); ++i) {
    if (has_statistic(step.values_of(i))) {
      indexed.values[i * width] = static_cast<double>(i);
    }
  }
  auto targets = std::make_shared<TargetTable>();
  for (RecordBlock& block : number_dump_step(indexed, 0, options, *targets).blocks) {
    Block& kept = blocks_.emplace_back();
    kept.micro_step = block.micro_step;
    kept.metric = block.metric;
    kept.targets = std::move(block.targets);
    kept.tensors.reserve(kept.targets.size());
    for (std::size_t i = 0; i < block.values.size(); i += width) {
      kept.tensors.push_back(static_cast<std::uint32_t>(block.values[i]));
    }
  }
  targets_ = std::move(targets);
}

bool DumpLayout::fits(const DumpStep& step) const {
  if (step.entries.size() != entries_.size() || step.tensors.size() != tensors_.size()) {
    return false;
  }
  const std::string_view names = names_;
  std::size_t begin = 0;
  const auto is_next = [&](std::string_view name, std::size_t end) {
    const bool is_same = names.substr(begin, end - begin) == name;
    begin = end;
    return is_same;
  };
  std::size_t next_tensor = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const DumpEntry& entry = step.entries[i];
    const Entry& known = entries_[i];
    if (entry.first_tensor != next_tensor || entry.tensor_count != known.tensor_count ||
        entry.is_recompute != known.is_recompute || !is_next(entry.name, known.name_end)) {
      return false;
    }
    for (std::uint32_t k = 0; k < entry.tensor_count; ++k, ++next_tensor) {
      if (has_statistic(step.values_of(next_tensor)) != tensors_[next_tensor].has_statistic ||
          !is_next(step.tensors[next_tensor].suffix, tensors_[next_tensor].suffix_end)) {
        return false;
      }
    }
  }
  return true;
}

std::vector<RecordBlock> DumpLayout::blocks_of(const DumpStep& step,
                                               std::int64_t training_step) const {
  std::vector<RecordBlock> blocks;
  blocks.reserve(blocks_.size());
  for (const Block& known : blocks_) {
    RecordBlock& block = blocks.emplace_back();
    block.training_step = training_step;
    block.micro_step = known.micro_step;
    block.metric = known.metric;
    block.targets = known.targets;
    block.values.reserve(known.tensors.size() * step.statistics.size());
    for (const std::uint32_t tensor : known.tensors) {
      const std::span<const double> values = step.values_of(tensor);
      block.values.insert(block.values.end(), values.begin(), values.end());
    }
  }
  return blocks;
}

}  // namespace trendprobe
