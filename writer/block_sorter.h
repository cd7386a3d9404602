// Collects the records of one training step into blocks, one a (micro-step, metric).
//
// Belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "writer/dump_step.h"

namespace trendprobe {

class BlockSorter {
 public:
  explicit BlockSorter(std::int64_t training_step) : training_step_(training_step) {}

  /// Appends a record to the block of its micro-step and metric.
  void add(std::int32_t micro_step, DumpMetric metric, std::uint32_t target,
           std::span<const double> values) {
    const std::pair key(micro_step, static_cast<std::uint32_t>(metric));
    if (last_ == nullptr || key != last_key_) {
      last_ = &blocks_[key];
      last_key_ = key;
    }
    last_->targets.push_back(target);
    last_->values.insert(last_->values.end(), values.begin(), values.end());
  }

  /// The blocks, micro-steps ascending, metrics in the order of dump_metrics(). Leaves the sorter
  /// empty.
  std::vector<RecordBlock> take() {
    std::vector<RecordBlock> result;
    result.reserve(blocks_.size());
    for (auto& [key, block] : blocks_) {
      block.training_step = training_step_;
      block.micro_step = key.first;
      block.metric = key.second;
      result.push_back(std::move(block));
    }
    blocks_.clear();
    last_ = nullptr;
    return result;
  }

 private:
  std::int64_t training_step_;
  std::map<std::pair<std::int32_t, std::uint32_t>, RecordBlock> blocks_;
  std::pair<std::int32_t, std::uint32_t> last_key_;
  RecordBlock* last_ = nullptr;  // a map: adding keys moves no block
};

}  // namespace trendprobe
