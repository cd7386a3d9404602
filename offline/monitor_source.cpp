#include "offline/monitor_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "offline/directory_listing.h"
#include "offline/monitor_csv.h"
#include "offline/monitor_names.h"
#include "offline/parallel_for.h"
#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

// A unit is held in memory as a whole; larger ones are cut at the steps.
constexpr std::uint64_t kMaxUnitBytes = std::uint64_t{32} << 20;

struct MonitorFile {
  fs::path path;
  MonitorFileName name;
  std::uint64_t bytes = 0;
};

/// A part of a file, and which of its steps are wanted.
struct FilePart {
  std::size_t file = 0;  // index into the source's files
  MonitorCsvPart part;
};

struct UnitPlan {
  std::vector<FilePart> parts;
  std::int64_t first_step = INT64_MIN;
  std::int64_t last_step = INT64_MAX;
};

/// Where the rows of one step are in one file.
struct StepPlace {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t first_line = 0;
};

/// What one look at a cluster of files told.
struct StepScan {
  /// Number of micro-steps by training step.
  std::map<std::int64_t, std::int32_t> micro_steps;
  /// By file of the cluster and training step.
  std::vector<std::map<std::int64_t, StepPlace>> places;
};

/// Collects the rows of a unit.
class BlockBuilder {
 public:
  explicit BlockBuilder(const MonitorOptions& options) : options_(options) {}

  /// Adds the rows of one file that lie in the steps wanted.
  void add(MonitorCsv& csv, std::string_view metric_name, const UnitPlan& plan) {
    if (csv.statistics().empty()) return;
    const std::uint32_t metric = intern_metric(
        records_.metrics, {RecordKind::kMonitor, std::string(metric_name), csv.statistics()});
    open_.clear();
    std::int64_t step = 0;
    MonitorCsv::Row row;
    while (csv.next(row)) {
      if (row.step < plan.first_step || row.step > plan.last_step) continue;
      if (row.step != step) open_.clear();
      step = row.step;
      const std::int32_t micro_step = options_.micro_steps ? row.micro_step : 0;
      OpenBlock& open = block(step, micro_step, metric);
      if (!csv.append_values(open.block.values)) continue;
      const std::uint32_t target = target_of(row, open);
      open.block.targets.push_back(target);
      if (open.has_target.size() <= target) open.has_target.resize(target + 1, false);
      if (open.has_target[target]) {
        csv.note(Severity::kNotice, "repeats a record that its step has already",
                 options_.as_msprobe ? "the first of them" : "the last of them");
      }
      open.has_target[target] = true;
    }
  }

  UnitRecords finish() {
    records_.targets = targets_;
    for (auto& [key, open] : blocks_) records_.blocks.push_back(std::move(open.block));
    return std::move(records_);
  }

 private:
  struct OpenBlock {
    RecordBlock block;
    std::vector<bool> has_target;
    /// The block of this metric before, whose targets mostly come again in the same order.
    const std::vector<std::uint32_t>* expected = nullptr;
  };

  /// The block of a micro-step of the current step; rows of several micro-steps alternate.
  OpenBlock& block(std::int64_t step, std::int32_t micro_step, std::uint32_t metric) {
    for (const auto& [open_micro_step, open] : open_) {
      if (open_micro_step == micro_step) return *open;
    }
    const auto [place, is_new] = blocks_.try_emplace({step, micro_step, metric});
    OpenBlock& open = place->second;
    if (is_new) {
      open.block.training_step = step;
      open.block.micro_step = micro_step;
      open.block.metric = metric;
      if (const OpenBlock* before = last_block_[{micro_step, metric}]) {
        open.expected = &before->block.targets;
        open.block.targets.reserve(before->block.targets.size());
        open.block.values.reserve(before->block.values.size());
      }
      last_block_[{micro_step, metric}] = &open;
    }
    if (open_.size() == kMaxOpen) open_.erase(open_.begin());
    open_.emplace_back(micro_step, &open);
    return open;
  }

  std::uint32_t target_of(const MonitorCsv::Row& row, const OpenBlock& open) {
    const std::int32_t call = options_.micro_steps ? 0 : row.micro_step;
    if (!options_.mapping.empty()) {
      return targets_->intern(mapped_name(row.name, options_.mapping), row.vpp_stage, call);
    }
    const std::size_t place = open.block.targets.size();
    if (open.expected != nullptr && place < open.expected->size()) {
      const std::uint32_t expected = (*open.expected)[place];
      const Target& target = (*targets_)[expected];
      if (target.name == row.name && target.vpp_stage == row.vpp_stage && target.call == call) {
        return expected;
      }
    }
    return targets_->intern(row.name, row.vpp_stage, call);
  }

  static constexpr std::size_t kMaxOpen = 16;

  const MonitorOptions& options_;
  UnitRecords records_;
  std::shared_ptr<TargetTable> targets_ = std::make_shared<TargetTable>();
  std::map<std::tuple<std::int64_t, std::int32_t, std::uint32_t>, OpenBlock> blocks_;
  std::map<std::pair<std::int32_t, std::uint32_t>, const OpenBlock*> last_block_;
  std::vector<std::pair<std::int32_t, OpenBlock*>> open_;
};

class MonitorSource : public RecordSource {
 public:
  MonitorSource(fs::path directory, MonitorOptions options)
      : directory_(std::move(directory)), options_(std::move(options)) {}

  RecordKind kind() const override { return RecordKind::kMonitor; }
  std::string_view format() const override { return "monitor"; }

  std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned jobs) override {
    std::vector<Cluster> clusters;
    const std::vector<RankDirectory> directories = rank_directories(diagnostics);
    const std::vector<std::int64_t> starts = start_times(directories, last_change(directories));
    for (std::size_t i = 0; i < directories.size(); ++i) {
      add_clusters(directories[i], starts[i], clusters, diagnostics);
    }
    parallel_for(clusters.size(), jobs,
                 [&](std::size_t i) { clusters[i].scan = scan_cluster(clusters[i]); });
    std::vector<ReadUnit> units;
    for (const Cluster& cluster : clusters) {
      if (cluster.scan.micro_steps.empty()) {
        // Nothing will be read: say now what is wrong.
        for (const std::size_t file : cluster.files) {
          MonitorCsv csv(files_[file].path, csv_options(file), diagnostics);
          for (MonitorCsv::Row row; csv.next(row);) {
          }
        }
      } else {
        add_units(cluster, units);
      }
    }
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    const UnitPlan& plan = plans_.at(unit.id);
    BlockBuilder builder(options_);
    for (const FilePart& part : plan.parts) {
      const MonitorFile& file = files_[part.file];
      MonitorCsv csv(file.path, csv_options(part.file), diagnostics, part.part);
      builder.add(csv, trend_metrics(RecordKind::kMonitor)[file.name.metric], plan);
    }
    return builder.finish();
  }

 private:
  /// The files of one directory whose steps overlap.
  struct Cluster {
    std::int32_t rank = 0;
    std::int64_t started_ns = 0;
    std::string path;
    std::uint64_t bytes = 0;
    std::vector<std::size_t> files;
    StepScan scan;
  };

  MonitorCsvOptions csv_options(std::size_t file) const {
    return {options_.as_msprobe, files_[file].name.first_step, files_[file].name.last_step};
  }

  std::vector<RankDirectory> rank_directories(Diagnostics& diagnostics) const {
    std::vector<RankDirectory> found;
    for (const fs::path& path : listed_entries(directory_, diagnostics)) {
      auto directory = parse_rank_directory(path);
      if (!directory) continue;
      if (std::error_code error; is_directory_or_link(path)) {
        found.push_back(std::move(*directory));
      } else if (fs::is_symlink(path, error)) {
        diagnostics.report({Severity::kSkipped,
                            path.string(),
                            {},
                            "is a link that leads to no directory",
                            "nothing of it"});
      }
    }
    if (options_.as_msprobe) {
      // get_target_output_dir(): the last that is listed replaces the ones before it.
      std::map<std::int32_t, RankDirectory> last;
      for (RankDirectory& directory : found) {
        const auto [place, is_new] = last.try_emplace(directory.rank, directory);
        if (is_new) continue;
        std::swap(place->second, directory);
        diagnostics.report({Severity::kSkipped,
                            directory.path.string(),
                            {},
                            "is not the last listed directory of rank " +
                                std::to_string(directory.rank) + ", the one that msProbe reads",
                            "nothing of this directory"});
      }
      found.clear();
      for (auto& [rank, directory] : last) found.push_back(std::move(directory));
    }
    std::sort(found.begin(), found.end(), [](const RankDirectory& a, const RankDirectory& b) {
      return std::tie(a.rank, a.path) < std::tie(b.rank, b.path);
    });
    for (std::size_t i = 1; i < found.size(); ++i) {
      if (found[i].rank != found[i - 1].rank) continue;
      for (const RankDirectory& directory : {found[i - 1], found[i]}) {
        if (directory.second_of_year) continue;
        diagnostics.notice(directory.path.string(),
                           "has a name without a time such as Dec03_21-34-40: of its records those "
                           "that other directories of the rank hold, too, are taken from there");
      }
    }
    return found;
  }

  static std::chrono::sys_seconds last_change(const std::vector<RankDirectory>& directories) {
    std::int64_t last = 0;
    for (const RankDirectory& directory : directories) {
      struct stat status {};
      if (::stat(directory.path.c_str(), &status) == 0) {
        last = std::max(last, std::int64_t{status.st_mtime});
      }
    }
    return std::chrono::sys_seconds(std::chrono::seconds(last));
  }

  void add_clusters(const RankDirectory& directory, std::int64_t started_ns,
                    std::vector<Cluster>& clusters, Diagnostics& diagnostics) {
    std::vector<MonitorFile> files;
    for (const fs::path& path : sorted_entries(directory.path, diagnostics)) {
      const std::string name = path.filename().string();
      if (is_directory_or_link(path)) continue;
      if (const auto parsed = parse_monitor_file_name(name, options_.as_msprobe)) {
        files.push_back({path, *parsed, size_of(path)});
      } else if (name.find(".csv") != std::string::npos) {
        diagnostics.notice(
            path.string(),
            "is no monitor file by its name (<metric>_<first>-<last>.csv), left out");
      }
    }
    if (files.empty()) {
      diagnostics.report({Severity::kSkipped,
                          directory.path.string(),
                          {},
                          "has no monitor CSV",
                          "nothing of this directory"});
    }
    std::sort(files.begin(), files.end(), [](const MonitorFile& a, const MonitorFile& b) {
      return std::tie(a.name.first_step, a.name.last_step, a.name.metric, a.path) <
             std::tie(b.name.first_step, b.name.last_step, b.name.metric, b.path);
    });
    std::int64_t last_step = -1;
    for (MonitorFile& file : files) {
      if (clusters.empty() || last_step < file.name.first_step) {
        clusters.push_back({directory.rank, started_ns, directory.path.string(), 0, {}, {}});
      }
      last_step = std::max(last_step, file.name.last_step);
      clusters.back().bytes += file.bytes;
      clusters.back().files.push_back(files_.size());
      files_.push_back(std::move(file));
    }
  }

  StepScan scan_cluster(const Cluster& cluster) const {
    StepScan scan;
    const bool needs_places = cluster.bytes > kMaxUnitBytes;
    Diagnostics ignored;  // read() reports
    for (const std::size_t file : cluster.files) {
      std::map<std::int64_t, StepPlace> places;
      MonitorCsv csv(files_[file].path, csv_options(file), ignored);
      MonitorCsv::Row row;
      std::int32_t* count = nullptr;
      StepPlace* place = nullptr;
      std::int64_t step = 0;
      while (csv.next(row)) {
        if (count == nullptr || row.step != step) {
          step = row.step;
          count = &scan.micro_steps.try_emplace(step, 1).first->second;
          if (needs_places) {
            const std::uint64_t begin = place == nullptr ? 0 : csv.offset();
            if (place != nullptr) place->end = std::max(place->end, begin);
            place = &places.try_emplace(step, StepPlace{begin, begin, csv.line()}).first->second;
          }
        }
        if (options_.micro_steps) *count = std::max(*count, row.micro_step + 1);
      }
      if (place != nullptr) place->end = UINT64_MAX;
      if (needs_places) scan.places.push_back(std::move(places));
    }
    return scan;
  }

  void add_units(const Cluster& cluster, std::vector<ReadUnit>& units) {
    const auto add = [&](UnitPlan plan, std::uint64_t bytes, auto first, auto last) {
      ReadUnit unit;
      unit.rank = cluster.rank;
      unit.steps.assign(first, last);
      unit.started_ns = cluster.started_ns;
      unit.id = plans_.size();
      unit.bytes = bytes;
      unit.path = cluster.path;
      units.push_back(std::move(unit));
      plans_.push_back(std::move(plan));
    };
    const auto& steps = cluster.scan.micro_steps;
    if (cluster.scan.places.empty()) {
      UnitPlan plan;
      for (const std::size_t file : cluster.files) plan.parts.push_back({file, {}});
      add(std::move(plan), cluster.bytes, steps.begin(), steps.end());
      return;
    }
    for (auto first = steps.begin(); first != steps.end();) {
      UnitPlan plan;
      std::vector<std::optional<StepPlace>> hulls(cluster.files.size());
      std::uint64_t bytes = 0;
      auto last = first;
      for (; last != steps.end(); ++last) {
        std::vector<std::optional<StepPlace>> wider = hulls;
        for (std::size_t i = 0; i < hulls.size(); ++i) {
          const auto found = cluster.scan.places[i].find(last->first);
          if (found == cluster.scan.places[i].end()) continue;
          const StepPlace& place = found->second;
          if (!wider[i] || place.begin < wider[i]->begin) {
            const std::uint64_t end = wider[i] ? wider[i]->end : 0;
            wider[i] = StepPlace{place.begin, end, place.first_line};
          }
          wider[i]->end = std::max(wider[i]->end, place.end);
        }
        std::uint64_t wider_bytes = 0;
        for (std::size_t i = 0; i < wider.size(); ++i) {
          if (!wider[i]) continue;
          const std::uint64_t size = files_[cluster.files[i]].bytes;
          wider_bytes += std::min(wider[i]->end, size) - std::min(wider[i]->begin, size);
        }
        if (last != first && wider_bytes > kMaxUnitBytes) break;
        hulls = std::move(wider);
        bytes = wider_bytes;
      }
      for (std::size_t i = 0; i < hulls.size(); ++i) {
        if (hulls[i]) {
          plan.parts.push_back(
              {cluster.files[i], {hulls[i]->begin, hulls[i]->end, hulls[i]->first_line}});
        } else if (first == steps.begin() && cluster.scan.places[i].empty()) {
          plan.parts.push_back({cluster.files[i], {}});  // to say what is wrong with it
        }
      }
      plan.first_step = first->first;
      plan.last_step = std::prev(last)->first;
      add(std::move(plan), bytes, first, last);
      first = last;
    }
  }

  fs::path directory_;
  MonitorOptions options_;
  std::vector<MonitorFile> files_;
  std::vector<UnitPlan> plans_;  // by unit id
};

}  // namespace

bool is_monitor_tree(const fs::path& directory) {
  return has_file_in_child(
      directory, [](const fs::path& child) { return parse_rank_directory(child).has_value(); },
      [](std::string_view name) { return parse_monitor_file_name(name, false).has_value(); });
}

std::unique_ptr<RecordSource> make_monitor_source(const fs::path& directory,
                                                  MonitorOptions options) {
  return std::make_unique<MonitorSource>(directory, std::move(options));
}

}  // namespace trendprobe
