#include "offline/monitor_csv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>
#include <system_error>

#include "offline/csv_values.h"
#include "offline/utf8_text.h"
#include "writer/trend_schema.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

constexpr std::string_view kNotNumbers[] = {"vpp_stage",  "name", "module_name", "scope", "step",
                                            "micro_step", "id",   "shape",       "dtype"};
// Beyond, JavaScript and float64 no longer tell steps apart.
constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;
// More micro-steps than this are damage: each one is a step on the axis.
constexpr std::int64_t kMaxMicroStep = std::int64_t{1} << 20;
constexpr std::size_t kHeaderBytes = std::size_t{1} << 16;

constexpr std::string_view kOtherRows = "the other rows of this file";

}  // namespace

MonitorCsv::MonitorCsv(const std::filesystem::path& path, const MonitorCsvOptions& options,
                       Diagnostics& diagnostics, const MonitorCsvPart& part)
    : path_(path.string()), options_(options), part_(part), diagnostics_(diagnostics) {
  try {
    open(path);
  } catch (const std::system_error& error) {
    reader_.reset();
    skip_file("can't be read: " + error.code().message());
  }
}

void MonitorCsv::open(const std::filesystem::path& path) {
  const auto read = [this](char* buffer, std::size_t size) { return file_->read(buffer, size); };
  file_.emplace(path, 0, part_.begin == 0 ? part_.end : UINT64_MAX);
  if (part_.begin == 0) {
    reader_.emplace(read);
  } else {
    reader_.emplace(read, kHeaderBytes);
  }
  if (!reader_->next(fields_)) {
    if (file_->error() != 0) {
      skip_file("can't be read: " + std::generic_category().message(file_->error()));
    } else {
      skip_file(file_->position() == 0 ? "is empty (0 bytes)" : "has no header");
    }
    return;
  }
  read_header();
  if (part_.begin != 0) {
    file_.emplace(path, part_.begin, part_.end);
    reader_.emplace(read);
  }
}

void MonitorCsv::read_header() {
  if (reader_->is_damaged()) {
    skip_file("has a header with a quote that is not closed");
    return;
  }
  const std::span<const std::string_view> known = trend_statistics(RecordKind::kMonitor);
  std::vector<std::optional<std::size_t>> found(known.size());
  std::optional<std::size_t> name;
  std::optional<std::size_t> vpp_stage;
  const char* const name_of_names = options_.is_v2 ? "module_name" : "name";
  std::string unknown;
  columns_ = fields_.size();
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const std::string_view field = fields_[i];
    const auto statistic = std::find(known.begin(), known.end(), field);
    std::optional<std::size_t>* column = nullptr;
    if (statistic != known.end()) {
      column = &found[static_cast<std::size_t>(statistic - known.begin())];
    }
    if (field == name_of_names) column = &name;
    if (options_.is_v2 && field == "scope") column = &scope_column_;
    if (field == "vpp_stage") column = &vpp_stage;
    if (field == "step") column = &step_column_;
    if (field == "micro_step") column = &micro_step_column_;
    if (field == "dtype") column = &dtype_column_;
    // Of two columns of one name pandas renames the second.
    if (column != nullptr && !*column) *column = i;
    if (column == nullptr &&
        std::find(std::begin(kNotNumbers), std::end(kNotNumbers), field) == std::end(kNotNumbers)) {
      unknown.append(unknown.empty() ? "" : ", ").append(repaired_text(field));
    }
  }
  const char* absent = !name                                   ? name_of_names
                       : options_.is_v2 && !scope_column_      ? "scope"
                       : !vpp_stage                            ? "vpp_stage"
                       : !step_column_ && !options_.as_msprobe ? "step"
                                                               : nullptr;
  if (absent != nullptr) {
    skip_file("has a header without the column " + std::string(absent));
    return;
  }
  name_column_ = *name;
  vpp_stage_column_ = *vpp_stage;
  last_needed_column_ = std::max({name_column_, vpp_stage_column_, step_column_.value_or(0),
                                  micro_step_column_.value_or(0), scope_column_.value_or(0)});
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (!found[i]) continue;
    statistic_columns_.push_back(*found[i]);
    statistics_.emplace_back(known[i]);
    last_needed_column_ = std::max(last_needed_column_, *found[i]);
  }
  if (statistics_.empty()) {
    skip_file("has a header without the column of a statistic");
  } else if (!unknown.empty() && part_.begin == 0) {
    diagnostics_.notice(path_,
                        "has columns that are no statistic known here, left out: " + unknown);
  }
}

void MonitorCsv::skip_file(std::string what) {
  statistics_.clear();
  // Each part of a file finds the same: the first says it.
  if (part_.begin != 0) return;
  diagnostics_.report({Severity::kSkipped, path_, {}, std::move(what), "nothing of this file"});
}

std::size_t MonitorCsv::line() const {
  return reader_->line() + (part_.begin == 0 ? 0 : part_.first_line - 1);
}

bool MonitorCsv::next(Row& row) {
  if (statistics_.empty()) return false;
  while (reader_->next(fields_)) {
    const RowFault fault = read_row(row);
    if (fault == nullptr) {
      ++rows_;
      return true;
    }
    const bool has_nul = reader_->row().find('\0') != std::string_view::npos;
    count_fault(Severity::kRepaired, has_nul ? "holds NUL bytes" : fault, kOtherRows, {});
  }
  report();
  statistics_.clear();
  return false;
}

MonitorCsv::RowFault MonitorCsv::read_row_of_wrong_length() {
  if (reader_->is_damaged()) {
    return reader_->is_terminated() ? "has a quote that is not closed, or text behind a closing one"
                                    : "is cut";
  }
  if (fields_.size() > columns_) return "has more fields than the header";
  if (!options_.as_msprobe) {
    return reader_->is_terminated() ? "has fewer fields than the header" : "is cut";
  }
  fields_.resize(columns_);
  return nullptr;
}

MonitorCsv::RowFault MonitorCsv::read_row(Row& row) {
  if (fields_.size() != columns_) {
    if (const RowFault fault = read_row_of_wrong_length()) return fault;
  }
  if (!reader_->is_terminated() && !options_.as_msprobe) {
    // The last field may be whole or not; where nothing needs it the row counts.
    if (last_needed_column_ + 1 == columns_) return "is cut";
    count_fault(Severity::kRepaired, "ends without a line break, so the file may be cut",
                "the row, and those before it", {});
  }
  const bool truncate = options_.as_msprobe;
  // TrainerMonitorV2 leaves it empty where there is none to name: collectives.
  const bool has_vpp_stage = !options_.is_v2 || !fields_[vpp_stage_column_].empty();
  const auto vpp_stage = has_vpp_stage ? parse_integer(fields_[vpp_stage_column_], truncate)
                                       : std::optional<std::int64_t>(0);
  if (!vpp_stage || *vpp_stage != static_cast<std::int32_t>(*vpp_stage)) {
    return "has a vpp_stage that is no number";
  }
  row.vpp_stage = static_cast<std::int32_t>(*vpp_stage);
  row.step = 0;
  if (step_column_) {
    const auto step = parse_integer(fields_[*step_column_], truncate);
    if (!step) return "has a step that is no number";
    if (*step < 0 && !options_.as_msprobe) return "has a negative step";
    if (*step > kMaxStep || *step < -kMaxStep) return "has a step beyond 2^53";
    row.step = *step;
  }
  row.micro_step = 0;
  if (micro_step_column_) {
    const auto micro_step = parse_integer(fields_[*micro_step_column_], truncate);
    if (!micro_step) return "has a micro_step that is no number";
    if (*micro_step < 0) return "has a negative micro_step";
    if (*micro_step >= kMaxMicroStep) return "has a micro_step beyond 2^20";
    row.micro_step = static_cast<std::int32_t>(*micro_step);
  }
  row.name = fields_[name_column_];
  if (!is_text(row.name)) {
    if (row.name.find('\0') != std::string_view::npos) return "holds NUL bytes";
    repaired_name_ = repaired_text(row.name);
    row.name = repaired_name_;
    count_fault(Severity::kRepaired, "has a name that is no UTF-8",
                "the row, with U+FFFD for each bad byte", row.name);
  }
  row.scope = {};
  if (scope_column_) {
    row.scope = fields_[*scope_column_];
    if (!is_text(row.scope)) row.scope = repaired_scope_ = repaired_text(row.scope);
  }
  // pandas reads these words as a missing number, and str() makes "nan" of that.
  if (options_.as_msprobe && is_missing_cell(row.name)) row.name = "nan";
  if (row.step < options_.first_step || row.step > options_.last_step) {
    count_fault(Severity::kNotice, "has a step that is not among those in the file's name",
                "the row", {});
  }
  return nullptr;
}

bool MonitorCsv::append_values(std::vector<double>& values) {
  const std::size_t before = values.size();
  bool is_measured = false;
  for (const std::size_t column : statistic_columns_) {
    std::optional<double> value = parse_number(fields_[column]);
    if (!value) {
      count_fault(Severity::kRepaired, "has a value that is no number",
                  "the row, without this value", fields_[column]);
      value = kMissing;
      is_measured = true;
    }
    is_measured |= !std::isnan(*value);
    values.push_back(*value);
  }
  // get_metrics() in msprobe/pytorch/monitor/module_metric.py: a module's argument that is no
  // tensor gets nan in all columns, the dtype included; a tensor always has its dtype.
  if (!is_measured && !options_.as_msprobe && dtype_column_ &&
      is_missing_cell(fields_[*dtype_column_])) {
    values.resize(before);
    return false;
  }
  return true;
}

void MonitorCsv::count_fault(Severity severity, std::string_view what, std::string_view kept,
                             std::string_view example) {
  for (Fault& fault : faults_) {
    if (fault.what == what) {
      ++fault.rows;
      return;
    }
  }
  faults_.push_back({severity, what, kept, repaired_text(example.substr(0, 80)), line(), 1});
}

void MonitorCsv::report() {
  for (const Fault& fault : faults_) {
    std::string what(fault.what);
    if (!fault.example.empty()) what += ": \"" + fault.example + "\"";
    if (fault.rows > 1) what += " (the first of " + std::to_string(fault.rows) + " such)";
    diagnostics_.report({fault.severity, path_, "line " + std::to_string(fault.line),
                         std::move(what), std::string(fault.kept)});
  }
  if (file_->error() != 0) {
    diagnostics_.report(
        {Severity::kRepaired, path_, "byte " + std::to_string(file_->position()),
         "can't be read from here on: " + std::generic_category().message(file_->error()),
         "the rows before"});
  }
  if (rows_ == 0 && faults_.empty() && file_->error() == 0 && part_.begin == 0) {
    diagnostics_.notice(path_, "has a header but no rows");
  }
}

}  // namespace trendprobe
