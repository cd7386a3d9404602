// Micro-step, call and recompute of the rows of TrainerMonitorV2's module monitor, which name none
// of them: rows of one name follow one another in the order in which the training ran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

/// One row of one training step, in file order.
struct ModuleRow {
  /// `<module>.<input|output|grad_input|grad_output>.<index>`; the root's module is empty.
  /// Borrowed.
  std::string_view name;
  bool is_backward = false;
};

struct ModuleRowNumber {
  std::int32_t micro_step = 0;
  /// Number of the call within its micro-step.
  std::int32_t call = 0;
  bool is_recompute = false;
};

/// Numbers the rows of one training step of one model chunk.
///
/// A forward row is a recomputation if its name has twice as many rows as its module has backward
/// passes, and each backward pass follows at least two forward rows that none before it has used
/// up: the last of them repeats the first. The number of micro-steps is how often the root ran, or
/// where the root was not watched, how often the module did that ran least. Of a module that ran
/// more often than that, every micro-step has its even share, in the order of time (backward:
/// reversed).
std::vector<ModuleRowNumber> number_module_rows(const std::vector<ModuleRow>& rows);

/// The part of a name before `.input.`, `.output.`, `.grad_input.` or `.grad_output.`.
std::string_view module_of_row(std::string_view name);

}  // namespace trendprobe
