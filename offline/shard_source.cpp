#include "offline/shard_source.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "offline/directory_listing.h"
#include "offline/joined_micro_steps.h"
#include "writer/shard_reader.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

/// Records that a unit holds, about: enough to be worth a thread's while.
constexpr std::uint64_t kUnitRecords = 100'000;

/// What scan() learned of a shard.
struct ScannedShard {
  fs::path path;
  ShardInfo info;
  std::vector<ShardStep> steps;  // in the order of the commits
  std::uint64_t bytes = 0;
};

struct ShardUnit {
  std::size_t shard = 0;
  std::vector<std::size_t> commits;  // indices into its steps
};

/// The commits of a unit that could not be read.
class LostCommits {
 public:
  void add(std::int64_t training_step, std::string_view what) {
    if (count_++ > 0) return;
    first_step_ = training_step;
    first_what_ = what;
  }

  void report(const fs::path& path, Diagnostics& diagnostics) const {
    if (count_ == 0) return;
    diagnostics.report(
        {Severity::kRepaired, path.string(), "training step " + std::to_string(first_step_),
         without_path(first_what_, path) +
             (count_ == 1 ? "" : " (the first of " + std::to_string(count_) + " such commits)"),
         "the other commits of this shard"});
  }

 private:
  std::size_t count_ = 0;
  std::int64_t first_step_ = 0;
  std::string first_what_;
};

class ShardSource : public RecordSource {
 public:
  ShardSource(std::vector<fs::path> paths, RecordKind kind, bool micro_steps, NameMapping mapping)
      : paths_(std::move(paths)),
        kind_(kind),
        micro_steps_(micro_steps),
        mapping_(std::move(mapping)) {}

  RecordKind kind() const override { return kind_; }
  std::string_view format() const override { return "shard"; }

  std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned /*jobs*/) override {
    for (const fs::path& path : paths_) scan_shard(path, diagnostics);
    // A process may add to a step in a further part of its shard: the later part wins.
    std::stable_sort(shards_.begin(), shards_.end(),
                     [](const ScannedShard& a, const ScannedShard& b) {
                       return std::tie(a.info.started_ns, a.info.part) <
                              std::tie(b.info.started_ns, b.info.part);
                     });
    share_ranks();
    assign_ranks(diagnostics);
    std::vector<ReadUnit> units;
    for (std::size_t i = 0; i < shards_.size(); ++i) add_units(i, units);
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    UnitRecords records;
    const auto targets = std::make_shared<TargetTable>();
    records.targets = targets;
    const ShardUnit& wanted = units_[unit.id];
    const ScannedShard& shard = shards_[wanted.shard];
    try {
      ShardReader reader(shard.path);
      records.metrics = reader.metrics();
      const std::vector<std::uint32_t> ids = intern_mapped(reader.targets(), mapping_, *targets);
      LostCommits lost;
      for (const std::size_t commit : wanted.commits) {
        if (commit >= reader.steps().size()) {
          throw std::runtime_error(shard.path.string() + ": was replaced while it was read");
        }
        const ShardStep& step = reader.steps()[commit];
        try {
          for (RecordBlock& block : reader.read(step)) {
            for (std::uint32_t& target : block.targets) target = ids[target];
            records.blocks.push_back(std::move(block));
          }
        } catch (const std::runtime_error& error) {  // SqliteError, FormatError
          lost.add(step.training_step, error.what());
        }
      }
      lost.report(shard.path, diagnostics);
    } catch (const std::runtime_error& error) {
      diagnostics.report({Severity::kSkipped,
                          shard.path.string(),
                          {},
                          without_path(error.what(), shard.path),
                          std::to_string(records.blocks.size()) + " blocks of training steps " +
                              std::to_string(unit.steps.front().first) + " to " +
                              std::to_string(unit.steps.back().first)});
    }
    if (!micro_steps_) join_micro_steps(records, kind_);
    std::stable_sort(records.blocks.begin(), records.blocks.end(),
                     [](const RecordBlock& a, const RecordBlock& b) {
                       return std::tie(a.training_step, a.micro_step, a.metric) <
                              std::tie(b.training_step, b.micro_step, b.metric);
                     });
    return records;
  }

 private:
  void scan_shard(const fs::path& path, Diagnostics& diagnostics) {
    ScannedShard shard;
    shard.path = path;
    try {
      const ShardReader reader(path);
      shard.info = reader.info();
      shard.steps = reader.steps();
    } catch (const std::runtime_error& error) {
      std::error_code error_code;
      const bool is_empty = fs::file_size(path, error_code) == 0 && !error_code;
      diagnostics.report(
          {Severity::kSkipped,
           path.string(),
           {},
           is_empty ? "is empty: its process wrote nothing" : without_path(error.what(), path),
           "nothing of this shard"});
      return;
    }
    shard.bytes = size_of(path) + size_of(path.string() + "-wal");
    if (!shard.info.closed) {
      diagnostics.notice(path.string(),
                         "was not closed: its process was killed or is still running; every "
                         "committed step is kept");
    }
    if (!shard.info.last_error.empty()) {
      diagnostics.notice(path.string(), "the hook reported: " + shard.info.last_error);
    }
    for (const ShardStep& step : shard.steps) {
      if (step.kind != kind_ || step.complete) continue;
      diagnostics.report({Severity::kRepaired, path.string(),
                          "training step " + std::to_string(step.training_step),
                          why_incomplete(step),
                          std::to_string(step.records) + " records of this step"});
    }
    shards_.push_back(std::move(shard));
  }

  /// A process may have learnt its rank when parts of its shard were already closed.
  void share_ranks() {
    const auto process_of = [](const ShardInfo& info) {
      return std::tuple(info.host, info.pid, info.started_ns);
    };
    std::map<decltype(process_of(ShardInfo())), std::int32_t> rank_of;
    for (const ScannedShard& shard : shards_) {
      if (shard.info.rank >= 0) rank_of[process_of(shard.info)] = shard.info.rank;
    }
    for (ScannedShard& shard : shards_) {
      if (shard.info.rank >= 0) continue;
      const auto known = rank_of.find(process_of(shard.info));
      if (known != rank_of.end()) shard.info.rank = known->second;
    }
  }

  void assign_ranks(Diagnostics& diagnostics) {
    std::set<std::int32_t> used;
    for (const ScannedShard& shard : shards_) used.insert(shard.info.rank);
    std::vector<std::size_t> by_start;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (shards_[i].info.rank < 0) by_start.push_back(i);
    }
    std::stable_sort(by_start.begin(), by_start.end(), [this](std::size_t a, std::size_t b) {
      return shards_[a].info.started_ns < shards_[b].info.started_ns;
    });
    std::map<std::pair<std::string, std::int64_t>, std::int32_t> rank_of;
    for (const std::size_t i : by_start) {
      ShardInfo& info = shards_[i].info;
      const auto [found, is_new] = rank_of.try_emplace({info.host, info.pid}, 0);
      if (is_new) {
        while (used.contains(found->second)) ++found->second;
        used.insert(found->second);
        diagnostics.notice(shards_[i].path.string(), "process " + std::to_string(info.pid) +
                                                         " had no rank: it is shown as rank " +
                                                         std::to_string(found->second));
      }
      info.rank = found->second;
    }
  }

  void add_units(std::size_t index, std::vector<ReadUnit>& units) {
    const ScannedShard& shard = shards_[index];
    std::vector<std::size_t> commits;
    std::uint64_t all_records = 0;
    for (std::size_t i = 0; i < shard.steps.size(); ++i) {
      all_records += shard.steps[i].records;
      if (shard.steps[i].kind == kind_) commits.push_back(i);
    }
    std::stable_sort(commits.begin(), commits.end(), [&](std::size_t a, std::size_t b) {
      return shard.steps[a].training_step < shard.steps[b].training_step;
    });
    for (std::size_t begin = 0; begin < commits.size();) {
      ReadUnit unit;
      ShardUnit what{index, {}};
      std::uint64_t records = 0;
      std::size_t end = begin;
      while (end < commits.size()) {
        const ShardStep& step = shard.steps[commits[end]];
        const bool same_step = !unit.steps.empty() && unit.steps.back().first == step.training_step;
        if (!same_step && records >= kUnitRecords) break;
        if (!same_step) unit.steps.emplace_back(step.training_step, 1);
        if (micro_steps_) {
          unit.steps.back().second = std::max(unit.steps.back().second, step.micro_steps);
        }
        records += step.records;
        what.commits.push_back(commits[end++]);
      }
      begin = end;
      unit.rank = shard.info.rank;
      unit.started_ns = shard.info.started_ns;
      unit.id = units_.size();
      unit.bytes = all_records == 0 ? 0 : shard.bytes * records / all_records;
      unit.path = shard.path.string();
      unit.host = shard.info.host;
      units.push_back(std::move(unit));
      units_.push_back(std::move(what));
    }
  }

  std::vector<fs::path> paths_;
  RecordKind kind_;
  bool micro_steps_;
  NameMapping mapping_;
  std::vector<ScannedShard> shards_;
  std::vector<ShardUnit> units_;
};

}  // namespace

std::unique_ptr<RecordSource> make_shard_source(std::vector<fs::path> shards, RecordKind kind,
                                                bool micro_steps, NameMapping mapping) {
  return std::make_unique<ShardSource>(std::move(shards), kind, micro_steps, std::move(mapping));
}

}  // namespace trendprobe
