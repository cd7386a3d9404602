#include "offline/dump_source.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "offline/directory_listing.h"
#include "offline/dump_layout.h"
#include "offline/dump_parser.h"
#include "offline/parallel_for.h"
#include "offline/whole_number.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

/// The number in a directory's name such as step12; none for other names.
std::optional<std::int64_t> number_after(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return parse_whole_number(name.substr(prefix.size()));
}

/// One rank<R> or proc<PID> directory of one step.
struct ProcessDirectory {
  std::int64_t step = 0;
  std::optional<std::int64_t> rank;
  std::int64_t pid = 0;
  fs::path path;
};

/// Reads one directory after another. What one step has in common with the step before, its calls
/// and their names, is worked out once. Belongs to one thread at a time.
class StepReader {
 public:
  /// `options` is borrowed.
  explicit StepReader(const NumberingOptions& options) : options_(options) {}

  std::int32_t count_micro_steps(const fs::path& directory) {
    // read() reports what is wrong with construct.json; here it would be said twice.
    Diagnostics ignored;
    if (const fs::path construct = directory / "construct.json"; size_of(construct) > 0) {
      parser_.parse_construct(construct, ignored);
    } else {
      parser_.clear_construct();
    }
    if (counted_version_ != parser_.construct_version()) {
      counted_version_ = parser_.construct_version();
      micro_steps_ = trendprobe::count_micro_steps(parser_.step(), options_);
    }
    return micro_steps_;
  }

  UnitRecords read(const fs::path& directory, const ReadUnit& unit, Diagnostics& diagnostics) {
    const fs::path construct = directory / "construct.json";
    std::error_code error;
    const bool has_construct = fs::exists(construct, error);
    // With --micro_step false msProbe does not look at it.
    if (has_construct && (options_.micro_steps || !options_.as_msprobe)) {
      parser_.parse_construct(construct, diagnostics);
      parser_.report_circles(construct, diagnostics);
    } else {
      parser_.clear_construct();
    }
    parser_.parse_dump(directory / "dump.json", diagnostics);
    if (options_.micro_steps && !parser_.step().entries.empty()) {
      if (parser_.level() == "L1") {
        diagnostics.notice(unit.path,
                           "level L1 has no module tree: the micro-steps of a training step can't "
                           "be told apart");
      } else if (!has_construct) {
        diagnostics.notice(unit.path,
                           "has no construct.json: the micro-steps of its training step can't be "
                           "told apart");
      }
    }
    return numbered(unit.steps.front().first);
  }

 private:
  UnitRecords numbered(std::int64_t training_step) {
    UnitRecords records;
    records.metrics = dump_metrics();
    if (options_.as_msprobe) {
      const auto targets = std::make_shared<TargetTable>();
      records.targets = targets;
      records.blocks = number_dump_step(parser_.step(), training_step, options_, *targets).blocks;
      return records;
    }
    if (!layout_ || layout_version_ != parser_.construct_version() ||
        !layout_->fits(parser_.step())) {
      layout_.emplace(parser_.step(), options_);
      layout_version_ = parser_.construct_version();
    }
    records.targets = layout_->targets();
    records.blocks = layout_->blocks_of(parser_.step(), training_step);
    return records;
  }

  const NumberingOptions& options_;
  DumpParser parser_;
  std::optional<std::uint64_t> counted_version_;
  std::int32_t micro_steps_ = 1;
  std::optional<DumpLayout> layout_;
  std::uint64_t layout_version_ = 0;
};

class DumpSource : public RecordSource {
 public:
  DumpSource(fs::path directory, NumberingOptions options)
      : directory_(std::move(directory)), options_(std::move(options)) {}

  RecordKind kind() const override { return RecordKind::kDump; }
  std::string_view format() const override { return "dump"; }

  std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned jobs) override {
    find_directories(diagnostics);
    assign_ranks(diagnostics);
    std::vector<std::int32_t> micro_steps(directories_.size(), 1);
    if (options_.micro_steps) {
      // By rank: the steps of a rank are likely to be alike.
      std::vector<std::size_t> order(directories_.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
        return directories_[a].rank < directories_[b].rank;
      });
      parallel_for(order.size(), jobs, [&](std::size_t i) {
        std::unique_ptr<StepReader> reader = take_reader();
        micro_steps[order[i]] = reader->count_micro_steps(directories_[order[i]].path);
        put_back(std::move(reader));
      });
    }
    std::vector<ReadUnit> units;
    for (std::size_t i = 0; i < directories_.size(); ++i) {
      const ProcessDirectory& found = directories_[i];
      ReadUnit unit;
      unit.rank = static_cast<std::int32_t>(*found.rank);
      unit.steps = {{found.step, micro_steps[i]}};
      unit.id = i;
      unit.bytes = size_of(found.path / "dump.json") + size_of(found.path / "construct.json");
      unit.path = found.path.string();
      units.push_back(std::move(unit));
    }
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    std::unique_ptr<StepReader> reader = take_reader();
    UnitRecords records = reader->read(directories_[unit.id].path, unit, diagnostics);
    put_back(std::move(reader));
    return records;
  }

 private:
  void find_directories(Diagnostics& diagnostics) {
    for (const fs::path& step_path : sorted_entries(directory_, diagnostics)) {
      const std::string step_name = step_path.filename();
      if (!step_name.starts_with("step")) continue;
      const std::optional<std::int64_t> step = number_after("step", step_name);
      if (!is_directory_or_link(step_path)) {
        if (step) report_no_directory(step_path, diagnostics);
        continue;
      }
      if (!step) {
        diagnostics.report({Severity::kSkipped,
                            step_path.string(),
                            {},
                            "its name is not \"step\" and a number",
                            "nothing of it"});
        continue;
      }
      for (const fs::path& path : sorted_entries(step_path, diagnostics)) {
        const std::string name = path.filename();
        if (!(name.starts_with("rank") || name.starts_with("proc"))) continue;
        ProcessDirectory found;
        found.step = *step;
        found.path = path;
        found.rank = number_after("rank", name);
        const std::optional<std::int64_t> pid = number_after("proc", name);
        if (!is_directory_or_link(path)) {
          if (found.rank || pid) report_no_directory(path, diagnostics);
          continue;
        }
        if ((!found.rank && !pid) ||
            found.rank.value_or(0) > std::numeric_limits<std::int32_t>::max()) {
          diagnostics.report({Severity::kSkipped,
                              path.string(),
                              {},
                              "its name is not \"rank\" or \"proc\" and a number",
                              "nothing of it"});
          continue;
        }
        found.pid = pid.value_or(0);
        if (std::error_code error; !fs::exists(path / "dump.json", error)) {
          diagnostics.report(
              {Severity::kSkipped, path.string(), {}, "has no dump.json", "nothing of it"});
          continue;
        }
        directories_.push_back(std::move(found));
      }
    }
    std::sort(directories_.begin(), directories_.end(),
              [](const ProcessDirectory& a, const ProcessDirectory& b) {
                return std::tie(a.step, a.path) < std::tie(b.step, b.path);
              });
  }

  static void report_no_directory(const fs::path& path, Diagnostics& diagnostics) {
    diagnostics.report({Severity::kSkipped,
                        path.string(),
                        {},
                        "is no directory, nor a link that leads to one",
                        "nothing of it"});
  }

  void assign_ranks(Diagnostics& diagnostics) {
    // Steps in which a number is in use.
    std::map<std::int64_t, std::set<std::int64_t>> ranks;
    std::map<std::int64_t, std::set<std::int64_t>> processes;
    for (const ProcessDirectory& found : directories_) {
      if (found.rank) {
        ranks[*found.rank].insert(found.step);
      } else {
        processes[found.pid].insert(found.step);
      }
    }
    if (options_.as_msprobe) {
      assign_ranks_as_msprobe();
      return;
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> by_start;  // first step, PID
    by_start.reserve(processes.size());
    for (const auto& [pid, steps] : processes) by_start.emplace_back(*steps.begin(), pid);
    std::sort(by_start.begin(), by_start.end());
    std::map<std::int64_t, std::int64_t> rank_of;
    for (const auto& [start, pid] : by_start) {
      const std::set<std::int64_t>& steps = processes[pid];
      std::int64_t rank = ranks.empty() ? 0 : ranks.rbegin()->first + 1;
      for (const auto& [number, steps_in_use] : ranks) {
        const std::set<std::int64_t>& used = steps_in_use;
        if (std::none_of(steps.begin(), steps.end(),
                         [&](std::int64_t step) { return used.contains(step); })) {
          rank = number;
          break;
        }
      }
      ranks[rank].insert(steps.begin(), steps.end());
      rank_of[pid] = rank;
      diagnostics.notice(directory_.string(), "process " + std::to_string(pid) +
                                                  " had no rank: it is shown as rank " +
                                                  std::to_string(rank));
    }
    for (ProcessDirectory& found : directories_) {
      if (!found.rank) found.rank = rank_of[found.pid];
    }
  }

  void assign_ranks_as_msprobe() {
    std::map<std::int64_t, std::int64_t> next;  // by step
    std::map<std::int64_t, std::vector<ProcessDirectory*>> processes;
    for (ProcessDirectory& found : directories_) {
      if (found.rank) {
        next[found.step] = std::max(next[found.step], *found.rank + 1);
      } else {
        processes[found.step].push_back(&found);
      }
    }
    for (auto& [step, found] : processes) {
      std::sort(
          found.begin(), found.end(),
          [](const ProcessDirectory* a, const ProcessDirectory* b) { return a->pid < b->pid; });
      for (ProcessDirectory* process : found) process->rank = next[step]++;
    }
  }

  std::unique_ptr<StepReader> take_reader() const {
    const std::lock_guard lock(readers_mutex_);
    if (readers_.empty()) return std::make_unique<StepReader>(options_);
    std::unique_ptr<StepReader> reader = std::move(readers_.back());
    readers_.pop_back();
    return reader;
  }

  void put_back(std::unique_ptr<StepReader> reader) const {
    const std::lock_guard lock(readers_mutex_);
    readers_.push_back(std::move(reader));
  }

  fs::path directory_;
  NumberingOptions options_;
  std::vector<ProcessDirectory> directories_;
  mutable std::mutex readers_mutex_;
  mutable std::vector<std::unique_ptr<StepReader>> readers_;  // that no thread uses now
};

}  // namespace

bool is_dump_tree(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (number_after("step", it->path().filename().string()) && is_directory_or_link(it->path())) {
      return true;
    }
  }
  return false;
}

std::unique_ptr<RecordSource> make_dump_source(const fs::path& directory,
                                               NumberingOptions options) {
  return std::make_unique<DumpSource>(directory, std::move(options));
}

}  // namespace trendprobe
