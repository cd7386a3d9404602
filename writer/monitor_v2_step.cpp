#include "writer/monitor_v2_step.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>

#include "writer/module_row_numbering.h"

namespace trendprobe {
namespace {

constexpr std::string_view kRecompute = "recompute";
constexpr std::string_view kUnreduced = "unreduced";

/// TrainerMon's metric of a row. A slug or scope that it does not have keeps its own name.
std::string metric_of(std::string_view slug, std::string_view scope) {
  if (slug == "module") {
    if (scope == "forward") return "actv";
    if (scope == "backward") return "actv_grad";
  }
  if (slug == "weight_grad" && (scope == kUnreduced || scope == "reduced")) {
    return "grad_" + std::string(scope);
  }
  if (slug == "optimizer" || slug == "param") {
    return std::string(scope.empty() ? slug : scope);
  }
  return std::string(slug);
}

/// TrainerMon's name of what was measured.
std::string target_of(std::string_view name, std::string_view slug, std::string_view scope) {
  std::string target(name);
  if (slug == "optimizer" && target.ends_with("." + std::string(scope))) {
    target.resize(target.size() - scope.size() - 1);  // <parameter>.exp_avg
  } else if (slug == "module" && scope == "backward") {
    const std::size_t module = module_of_row(name).size();
    if (target.compare(module, 6, ".grad_") == 0) target.erase(module + 1, 5);
  }
  return target;
}

std::int32_t stage_of(const MonitorV2Row& row) { return std::max(row.vpp_stage, 0); }

void number_modules(const std::vector<MonitorV2Row>& rows, std::vector<ModuleRowNumber>& numbers) {
  std::map<std::int32_t, std::vector<std::size_t>> chunks;  // by virtual pipeline stage
  for (std::size_t i = 0; i < rows.size(); ++i) chunks[stage_of(rows[i])].push_back(i);
  for (const auto& [stage, indices] : chunks) {
    std::vector<ModuleRow> of_chunk;
    of_chunk.reserve(indices.size());
    for (const std::size_t i : indices) {
      of_chunk.push_back({rows[i].name, rows[i].scope == "backward"});
    }
    const std::vector<ModuleRowNumber> found = number_module_rows(of_chunk);
    for (std::size_t k = 0; k < indices.size(); ++k) numbers[indices[k]] = found[k];
  }
}

/// The column micro_step counts the gradients of a parameter from 1. Where only the last one is
/// recorded it is their number, and the row stands for the whole step, as in TrainerMon.
void number_gradients(const std::vector<MonitorV2Row>& rows,
                      std::vector<ModuleRowNumber>& numbers) {
  std::set<std::tuple<std::string_view, std::int32_t>> seen;
  bool each_micro_step = false;
  for (const MonitorV2Row& row : rows) {
    if (row.scope != kUnreduced) continue;
    each_micro_step |= !seen.emplace(row.name, stage_of(row)).second;
  }
  if (!each_micro_step) return;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].scope == kUnreduced) numbers[i].micro_step = std::max(rows[i].micro_step - 1, 0);
  }
}

/// What repeats within a step, such as a collective of one place in the code, is one more call.
void number_repetitions(const std::vector<MonitorV2Row>& rows,
                        std::vector<ModuleRowNumber>& numbers) {
  std::map<std::tuple<std::string_view, std::string_view, std::int32_t>, std::int32_t> calls;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    numbers[i].call = calls[{rows[i].name, rows[i].scope, stage_of(rows[i])}]++;
  }
}

}  // namespace

std::vector<MonitorV2Record> number_monitor_v2_step(std::string_view slug,
                                                    const std::vector<MonitorV2Row>& rows) {
  std::vector<ModuleRowNumber> numbers(rows.size());
  if (slug == "module") {
    number_modules(rows, numbers);
  } else if (slug == "weight_grad") {
    number_gradients(rows, numbers);
  } else {
    number_repetitions(rows, numbers);
  }
  std::vector<MonitorV2Record> records;
  records.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const MonitorV2Row& row = rows[i];
    records.push_back(
        {numbers[i].is_recompute ? std::string(kRecompute) : metric_of(slug, row.scope),
         target_of(row.name, slug, row.scope), stage_of(row), numbers[i].micro_step,
         numbers[i].call});
  }
  return records;
}

}  // namespace trendprobe
