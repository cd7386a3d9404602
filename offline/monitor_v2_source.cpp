#include "offline/monitor_v2_source.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "offline/directory_listing.h"
#include "offline/joined_micro_steps.h"
#include "offline/monitor_csv.h"
#include "offline/parallel_for.h"
#include "offline/whole_number.h"
#include "writer/monitor_v2_step.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".csv";
// CSVWriterV2 writes <slug>.csv where a step is no number.
constexpr std::string_view kSlugs[] = {"module", "weight_grad", "optimizer", "param", "cc"};

struct FileName {
  std::string slug;
  std::int64_t first_step = 0;
  std::int64_t last_step = INT64_MAX;
};

/// <slug>_step<first>-<last>.csv
std::optional<FileName> parse_file_name(std::string_view name) {
  if (!name.ends_with(kExtension)) return std::nullopt;
  name.remove_suffix(kExtension.size());
  if (std::find(std::begin(kSlugs), std::end(kSlugs), name) != std::end(kSlugs)) {
    return FileName{std::string(name)};
  }
  const std::size_t steps = name.rfind("_step");
  if (steps == std::string_view::npos || steps == 0) return std::nullopt;
  const std::string_view range = name.substr(steps + 5);
  const std::size_t dash = range.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = parse_whole_number(range.substr(0, dash));
  const auto last = parse_whole_number(range.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return FileName{std::string(name.substr(0, steps)), *first, *last};
}

/// rank_<R>
std::optional<std::int32_t> parse_rank_directory(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("rank_")) return std::nullopt;
  const auto rank = parse_whole_number(std::string_view(name).substr(5));
  if (!rank || *rank > INT32_MAX) return std::nullopt;
  return static_cast<std::int32_t>(*rank);
}

struct MonitorV2File {
  fs::path path;
  FileName name;
  std::uint64_t bytes = 0;
};

/// Collects the rows of a unit, one training step of one file after another.
class StepRows {
 public:
  StepRows(const NameMapping& mapping, UnitRecords& records)
      : mapping_(mapping), records_(records) {}

  void add(MonitorCsv& csv, const std::string& slug) {
    const std::vector<std::string> statistics = csv.statistics();
    if (statistics.empty()) return;
    MonitorCsv::Row row;
    while (csv.next(row)) {
      if (!rows_.empty() && row.step != step_) finish_step(slug, statistics);
      step_ = row.step;
      if (!csv.append_values(values_)) continue;
      rows_.push_back(
          {std::string(row.name), std::string(row.scope), row.vpp_stage, row.micro_step});
    }
    finish_step(slug, statistics);
  }

  /// Puts all blocks into the unit.
  void finish() {
    records_.targets = targets_;
    for (auto& [key, block] : blocks_) records_.blocks.push_back(std::move(block));
  }

 private:
  struct Row {
    std::string name;
    std::string scope;
    std::int32_t vpp_stage;
    std::int32_t micro_step;
  };

  void finish_step(const std::string& slug, const std::vector<std::string>& statistics) {
    std::vector<MonitorV2Row> rows;
    rows.reserve(rows_.size());
    for (const Row& row : rows_)
      rows.push_back({row.name, row.scope, row.vpp_stage, row.micro_step});
    const std::vector<MonitorV2Record> records = number_monitor_v2_step(slug, rows);
    const std::size_t width = statistics.size();
    for (std::size_t i = 0; i < records.size(); ++i) {
      const MonitorV2Record& record = records[i];
      const std::uint32_t metric =
          intern_metric(records_.metrics, {RecordKind::kMonitor, record.metric, statistics});
      RecordBlock& block = blocks_[{step_, record.micro_step, metric}];
      block.training_step = step_;
      block.micro_step = record.micro_step;
      block.metric = metric;
      block.targets.push_back(
          targets_->intern(mapped_name(record.target, mapping_), record.vpp_stage, record.call));
      const auto first = values_.begin() + static_cast<std::ptrdiff_t>(i * width);
      block.values.insert(block.values.end(), first, first + static_cast<std::ptrdiff_t>(width));
    }
    rows_.clear();
    values_.clear();
  }

  const NameMapping& mapping_;
  UnitRecords& records_;
  std::shared_ptr<TargetTable> targets_ = std::make_shared<TargetTable>();
  std::int64_t step_ = 0;
  std::vector<Row> rows_;  // of step_
  std::vector<double> values_;
  std::map<std::tuple<std::int64_t, std::int32_t, std::uint32_t>, RecordBlock> blocks_;
};

class MonitorV2Source : public RecordSource {
 public:
  MonitorV2Source(fs::path directory, MonitorOptions options)
      : directory_(std::move(directory)), options_(std::move(options)) {}

  RecordKind kind() const override { return RecordKind::kMonitor; }
  std::string_view format() const override { return "monitor"; }

  std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned jobs) override {
    if (options_.as_msprobe) {
      diagnostics.report({Severity::kSkipped,
                          directory_.string(),
                          {},
                          "is of TrainerMonitorV2, which msProbe's data2db does not read",
                          "nothing of it; leave out --compat msprobe"});
      return {};
    }
    for (const fs::path& path : sorted_entries(directory_, diagnostics)) {
      const auto rank = parse_rank_directory(path);
      if (rank && is_directory_or_link(path)) add_rank(*rank, path, diagnostics);
    }
    // The micro-steps follow from the rows: units are small, and parsed twice.
    std::vector<std::map<std::int64_t, std::int32_t>> micro_steps(plans_.size());
    parallel_for(plans_.size(), jobs, [&](std::size_t i) {
      Diagnostics ignored;  // read() reports
      for (const RecordBlock& block : records_of(plans_[i], ignored).blocks) {
        std::int32_t& count = micro_steps[i][block.training_step];
        count = std::max(count, block.micro_step + 1);
      }
    });
    std::vector<ReadUnit> units;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (micro_steps[i].empty()) {
        records_of(plans_[i], diagnostics);  // nothing will be read: say now what is wrong
        continue;
      }
      ReadUnit unit;
      unit.rank = plans_[i].rank;
      unit.steps.assign(micro_steps[i].begin(), micro_steps[i].end());
      unit.id = i;
      unit.bytes = plans_[i].bytes;
      unit.path = plans_[i].directory.string();
      units.push_back(std::move(unit));
    }
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    return records_of(plans_[unit.id], diagnostics);
  }

 private:
  /// Files of one rank whose steps overlap.
  struct UnitPlan {
    std::int32_t rank = 0;
    fs::path directory;
    std::uint64_t bytes = 0;
    std::vector<MonitorV2File> files;
  };

  void add_rank(std::int32_t rank, const fs::path& directory, Diagnostics& diagnostics) {
    std::vector<MonitorV2File> files;
    for (const fs::path& path : sorted_entries(directory, diagnostics)) {
      if (is_directory_or_link(path)) continue;
      const std::string name = path.filename().string();
      if (auto parsed = parse_file_name(name)) {
        files.push_back({path, std::move(*parsed), size_of(path)});
      } else if (name.ends_with(kExtension)) {
        diagnostics.notice(path.string(),
                           "is no file of TrainerMonitorV2 by its name "
                           "(<slug>_step<first>-<last>.csv), left out");
      }
    }
    std::sort(files.begin(), files.end(), [](const MonitorV2File& a, const MonitorV2File& b) {
      return std::tie(a.name.first_step, a.name.last_step, a.name.slug, a.path) <
             std::tie(b.name.first_step, b.name.last_step, b.name.slug, b.path);
    });
    std::int64_t last_step = -1;
    bool is_first = true;
    for (MonitorV2File& file : files) {
      if (is_first || last_step < file.name.first_step) plans_.push_back({rank, directory, 0, {}});
      is_first = false;
      last_step = std::max(last_step, file.name.last_step);
      plans_.back().bytes += file.bytes;
      plans_.back().files.push_back(std::move(file));
    }
  }

  UnitRecords records_of(const UnitPlan& plan, Diagnostics& diagnostics) const {
    UnitRecords records;
    StepRows rows(options_.mapping, records);
    for (const MonitorV2File& file : plan.files) {
      MonitorCsvOptions options;
      options.is_v2 = true;
      options.first_step = file.name.first_step;
      options.last_step = file.name.last_step;
      MonitorCsv csv(file.path, options, diagnostics);
      rows.add(csv, file.name.slug);
    }
    rows.finish();
    if (!options_.micro_steps) join_micro_steps(records, RecordKind::kMonitor);
    return records;
  }

  fs::path directory_;
  MonitorOptions options_;
  std::vector<UnitPlan> plans_;  // by unit id
};

}  // namespace

bool is_monitor_v2_tree(const fs::path& directory) {
  return has_file_in_child(
      directory, [](const fs::path& child) { return parse_rank_directory(child).has_value(); },
      [](std::string_view name) { return parse_file_name(name).has_value(); });
}

std::unique_ptr<RecordSource> make_monitor_v2_source(const fs::path& directory,
                                                     MonitorOptions options) {
  return std::make_unique<MonitorV2Source>(directory, std::move(options));
}

}  // namespace trendprobe
