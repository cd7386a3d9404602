#include "writer/module_row_numbering.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>

namespace trendprobe {
namespace {

/// The rows of one name, as indices, and of the forward ones which repeat which.
struct RowsOfName {
  bool is_backward = false;
  std::string_view module;
  /// Those that are no recomputation.
  std::vector<std::size_t> rows;
  /// (recomputation, the index in `rows` of what it repeats)
  std::vector<std::pair<std::size_t, std::size_t>> recomputed;
};

/// Splits forward rows where each backward pass has one of its own to recompute; false, and nothing
/// changed, where that does not fit.
bool split_recomputed(RowsOfName& forward, const std::vector<std::size_t>& backward) {
  if (backward.empty() || forward.rows.size() != 2 * backward.size()) return false;
  std::vector<std::size_t> first_passes;
  std::vector<std::pair<std::size_t, std::size_t>> repeats;  // recomputation, first pass
  std::deque<std::size_t> pending;
  std::size_t next = 0;
  for (const std::size_t pass : backward) {
    while (next < forward.rows.size() && forward.rows[next] < pass) {
      pending.push_back(forward.rows[next++]);
    }
    if (pending.size() < 2) return false;
    repeats.emplace_back(pending.back(), pending.front());
    first_passes.push_back(pending.front());
    pending.pop_back();
    pending.pop_front();
  }
  if (!pending.empty() || next != forward.rows.size()) return false;
  std::sort(first_passes.begin(), first_passes.end());
  for (const auto& [recomputation, first_pass] : repeats) {
    const auto place = std::lower_bound(first_passes.begin(), first_passes.end(), first_pass);
    forward.recomputed.emplace_back(recomputation,
                                    static_cast<std::size_t>(place - first_passes.begin()));
  }
  forward.rows = std::move(first_passes);
  return true;
}

std::size_t count_micro_steps(const std::map<std::string_view, RowsOfName>& names) {
  std::size_t of_root = 0;
  std::size_t least_forward = std::numeric_limits<std::size_t>::max();
  std::size_t least_backward = std::numeric_limits<std::size_t>::max();
  for (const auto& [name, of_name] : names) {
    const std::size_t count = of_name.rows.size();
    if (of_name.is_backward) {
      least_backward = std::min(least_backward, count);
    } else {
      least_forward = std::min(least_forward, count);
      if (of_name.module.empty()) of_root = std::max(of_root, count);
    }
  }
  if (of_root != 0) return of_root;
  if (least_forward != std::numeric_limits<std::size_t>::max()) return least_forward;
  return least_backward;
}

}  // namespace

std::string_view module_of_row(std::string_view name) {
  std::size_t end = std::string_view::npos;
  for (const std::string_view part : {".input.", ".output.", ".grad_input.", ".grad_output."}) {
    const std::size_t found = name.rfind(part);
    if (found != std::string_view::npos && (end == std::string_view::npos || found > end)) {
      end = found;
    }
  }
  return name.substr(0, end);
}

std::vector<ModuleRowNumber> number_module_rows(const std::vector<ModuleRow>& rows) {
  std::map<std::string_view, RowsOfName> names;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RowsOfName& of_name = names[rows[i].name];
    if (of_name.rows.empty()) {
      of_name.is_backward = rows[i].is_backward;
      of_name.module = module_of_row(rows[i].name);
    }
    of_name.rows.push_back(i);
  }
  // The backward passes of a module: the rows of its gradient that has most of them.
  std::map<std::string_view, const std::vector<std::size_t>*> backward_passes;
  for (const auto& [name, of_name] : names) {
    if (!of_name.is_backward) continue;
    const std::vector<std::size_t>*& passes = backward_passes[of_name.module];
    if (passes == nullptr || of_name.rows.size() > passes->size()) passes = &of_name.rows;
  }
  for (auto& [name, of_name] : names) {
    if (of_name.is_backward) continue;
    const auto passes = backward_passes.find(of_name.module);
    if (passes != backward_passes.end()) split_recomputed(of_name, *passes->second);
  }
  const std::size_t micro_steps = count_micro_steps(names);
  std::vector<ModuleRowNumber> numbers(rows.size());
  for (const auto& [name, of_name] : names) {
    const std::size_t calls = (of_name.rows.size() + micro_steps - 1) / micro_steps;
    const auto number = [calls, is_backward = of_name.is_backward](std::size_t n) {
      const std::size_t call = n % calls;
      return ModuleRowNumber{static_cast<std::int32_t>(n / calls),
                             static_cast<std::int32_t>(is_backward ? calls - 1 - call : call),
                             false};
    };
    for (std::size_t n = 0; n < of_name.rows.size(); ++n) numbers[of_name.rows[n]] = number(n);
    for (const auto& [recomputation, first_pass] : of_name.recomputed) {
      numbers[recomputation] = number(first_pass);
      numbers[recomputation].is_recompute = true;
    }
  }
  return numbers;
}

}  // namespace trendprobe
