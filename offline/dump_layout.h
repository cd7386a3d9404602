// Which record of which block each tensor of a dump step is. One training step after another has
// the same calls in the same order: names are resolved for the first of them only.
//
// Immutable, so any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "writer/dump_step.h"
#include "writer/record.h"

namespace trendprobe {

class DumpLayout {
 public:
  /// Numbers the step with number_dump_step(), and keeps how. REQUIRES: not options.as_msprobe.
  DumpLayout(const DumpStep& step, const NumberingOptions& options);

  /// True if number_dump_step() would number this step alike, given that the `construct` of both is
  /// the same.
  bool fits(const DumpStep& step) const;

  /// The step as number_dump_step() numbers it, its targets those of targets(). REQUIRES:
  /// fits(step).
  std::vector<RecordBlock> blocks_of(const DumpStep& step, std::int64_t training_step) const;
  const std::shared_ptr<const TargetTable>& targets() const { return targets_; }

 private:
  struct Entry {
    std::size_t name_end;  // in names_; it begins where the one before ends
    std::uint32_t tensor_count;
    bool is_recompute;
  };
  struct Tensor {
    std::size_t suffix_end;  // in names_
    bool has_statistic;
  };
  struct Block {
    std::int32_t micro_step;
    std::uint32_t metric;
    std::vector<std::uint32_t> targets;
    std::vector<std::uint32_t> tensors;  // of each record, its index in the step
  };

  std::string names_;  // of each entry, followed by the suffixes of its tensors
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  std::vector<Block> blocks_;
  std::shared_ptr<const TargetTable> targets_;
};

}  // namespace trendprobe
