// One process's dump data of one training step, as msProbe collects it, and how it becomes records.
//
// The hook fills a DumpStep while the step runs; the offline parser fills one from dump.json and
// construct.json. Everything after that – metric, target name, micro-step, call index – is decided
// here, once, for both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "writer/dump_statistics.h"
#include "writer/name_mapping.h"
#include "writer/record.h"

namespace trendprobe {

/// Metrics of dump data, in the order of msProbe's metric ids. The enumerator is the index into
/// dump_metrics().
enum class DumpMetric : std::uint8_t { kForward, kBackward, kRecompute, kParametersGrad };
std::vector<Metric> dump_metrics(DumpStatistics statistics = {});

/// One tensor of a dump entry.
struct DumpTensor {
  /// What follows the module's name in the target's name: ".input.0", ".input.scale",
  /// ".output.1.0", ".parameters.weight", ".weight".
  std::string_view suffix;
  /// msProbe's data2db reads it: a supported type and dtype, directly in input_args, output, input,
  /// parameters or parameters_grad.
  bool read_by_msprobe = false;
};

/// True if anything was measured; a tensor whose values are all missing is no record.
bool has_statistic(std::span<const double> values);

/// One key of dump.json: `Module.<path>.<Class>.forward.<call>` and the like.
struct DumpEntry {
  std::string_view name;
  bool is_recompute = false;
  std::uint32_t first_tensor = 0;
  std::uint32_t tensor_count = 0;
};

/// One key of construct.json.
struct ConstructNode {
  std::string_view name;
  /// No parent: a root.
  std::optional<std::string_view> parent;
  /// Megatron's counter of forward_step or backward_step calls, where there is one.
  std::optional<std::int32_t> megatron_micro_step;
};

/// All of one training step of one process. Views borrow from whoever fills it (a mapped file, the
/// recorder's arena).
struct DumpStep {
  /// In flush order.
  std::vector<DumpEntry> entries;
  std::vector<DumpTensor> tensors;
  /// Which statistics every tensor has.
  DumpStatistics statistics;
  /// tensors.size() × statistics.size(), tensor after tensor; kMissing where there is none.
  std::vector<double> values;
  /// In file order.
  std::vector<ConstructNode> construct;
  /// False where there is no construct.json (extra_info false) or it holds nothing (level L1):
  /// micro-steps can't be told apart.
  bool has_construct = false;

  std::span<const double> values_of(std::size_t tensor) const {
    return {values.data() + tensor * statistics.size(), statistics.size()};
  }
};

struct NumberingOptions {
  /// False: every record of a training step is in micro-step 0 and calls keep msProbe's numbers
  /// (`--micro_step false`).
  bool micro_steps = true;
  /// Number exactly as msProbe's data2db does, faults included.
  bool as_msprobe = false;
  NameMapping mapping;
};

/// The number of micro-steps of a step, from construct.json alone (its `construct` filled, entries
/// may be empty). At least 1.
std::int32_t count_micro_steps(const DumpStep& step, const NumberingOptions& options);

/// A training step as records.
struct NumberedDumpStep {
  /// As count_micro_steps() counts them.
  std::int32_t micro_steps = 1;
  /// One a (micro-step, metric) that has records, micro-steps ascending, metrics in the order of
  /// dump_metrics(), records in flush order. Metric indices are those of dump_metrics().
  std::vector<RecordBlock> blocks;
};

/// Turns a step into records; targets are interned in `targets`.
NumberedDumpStep number_dump_step(const DumpStep& step, std::int64_t training_step,
                                  const NumberingOptions& options, TargetTable& targets);

}  // namespace trendprobe
