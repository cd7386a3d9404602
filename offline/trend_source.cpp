#include "offline/trend_source.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "offline/joined_micro_steps.h"
#include "writer/trend_reader.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

/// Records that a unit holds, about.
constexpr std::uint64_t kUnitRecords = 200'000;

struct TrendUnit {
  fs::path path;
  std::size_t rank = 0;  // index
  std::size_t first_step = 0;
  std::size_t end_step = 0;  // indices
};

class TrendDatabaseSource : public RecordSource {
 public:
  TrendDatabaseSource(std::vector<fs::path> paths, RecordKind kind, bool micro_steps,
                      NameMapping mapping)
      : paths_(std::move(paths)),
        kind_(kind),
        micro_steps_(micro_steps),
        mapping_(std::move(mapping)) {}

  RecordKind kind() const override { return kind_; }
  std::string_view format() const override { return "trend"; }

  std::vector<ReadUnit> scan(Diagnostics& diagnostics, unsigned /*jobs*/) override {
    std::vector<ReadUnit> units;
    for (const fs::path& path : paths_) {
      try {
        const TrendReader reader(path);
        if (reader.kind() == kind_) add_units(reader, units, diagnostics);
      } catch (const std::runtime_error& error) {
        diagnostics.report({Severity::kSkipped,
                            path.string(),
                            {},
                            without_path(error.what(), path),
                            "nothing of this database"});
      }
    }
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    const TrendUnit& wanted = units_[unit.id];
    UnitRecords records;
    const auto targets = std::make_shared<TargetTable>();
    records.targets = targets;
    try {
      TrendReader reader(wanted.path);
      if (reader.ranks().size() <= wanted.rank || reader.steps().size() < wanted.end_step) {
        throw std::runtime_error("was replaced while it was read");
      }
      records.metrics = reader.metrics();
      const std::vector<std::uint32_t> ids = intern_mapped(reader.targets(), mapping_, *targets);
      records.blocks = reader.read(wanted.rank, wanted.first_step, wanted.end_step);
      for (RecordBlock& block : records.blocks) {
        for (std::uint32_t& target : block.targets) target = ids[target];
      }
    } catch (const std::runtime_error& error) {
      diagnostics.report({Severity::kSkipped, wanted.path.string(),
                          "rank " + std::to_string(unit.rank) + ", training steps " +
                              std::to_string(unit.steps.front().first) + " to " +
                              std::to_string(unit.steps.back().first),
                          without_path(error.what(), wanted.path), "the rest of this database"});
      return {};
    }
    if (!micro_steps_) join_micro_steps(records, kind_);
    return records;
  }

 private:
  void add_units(const TrendReader& reader, std::vector<ReadUnit>& units,
                 Diagnostics& diagnostics) {
    const std::string path = reader.path().string();
    if (!reader.is_ours()) {
      diagnostics.notice(path,
                         "was written by msProbe: each of its steps is taken as a training step, "
                         "NaN can't be told from missing, and values beyond ±1e9 are cut to that");
    } else if (!reader.is_exact()) {
      diagnostics.notice(path, "has no tiles: values beyond ±1e9 are cut to that");
    }
    if (reader.is_ours() && !reader.micro_steps() && micro_steps_) {
      diagnostics.notice(path,
                         "was merged with --micro_step false: its micro-steps stay as they are, "
                         "calls of one step");
    }
    const std::vector<TrendStep>& steps = reader.steps();
    if (steps.empty() || reader.ranks().empty()) {
      diagnostics.report({Severity::kSkipped, path, {}, "holds no records", "nothing of it"});
      return;
    }
    const std::uint64_t records_a_step =
        std::max<std::uint64_t>(1, reader.records() / (steps.size() * reader.ranks().size()));
    const std::size_t block = reader.steps_a_block();
    const std::size_t wanted = static_cast<std::size_t>(kUnitRecords / records_a_step);
    const std::size_t unit_steps =
        std::max<std::size_t>(1, wanted >= block ? wanted / block * block : wanted);
    for (std::size_t rank = 0; rank < reader.ranks().size(); ++rank) {
      for (std::size_t first = 0; first < steps.size();) {
        std::size_t end = std::min(first + unit_steps, steps.size());
        // A training step is in one unit.
        while (end < steps.size() && steps[end].training_step == steps[end - 1].training_step)
          ++end;
        ReadUnit unit;
        unit.rank = reader.ranks()[rank].rank;
        unit.host = reader.ranks()[rank].host;
        unit.path = path;
        unit.id = units_.size();
        unit.bytes = (end - first) * records_a_step * 16;
        for (std::size_t i = first; i < end; ++i) {
          if (unit.steps.empty() || unit.steps.back().first != steps[i].training_step) {
            unit.steps.emplace_back(steps[i].training_step, 1);
          }
          if (micro_steps_) {
            unit.steps.back().second = std::max(unit.steps.back().second, steps[i].micro_step + 1);
          }
        }
        units.push_back(std::move(unit));
        units_.push_back({reader.path(), rank, first, end});
        first = end;
      }
    }
  }

  std::vector<fs::path> paths_;
  RecordKind kind_;
  bool micro_steps_;
  NameMapping mapping_;
  std::vector<TrendUnit> units_;
};

}  // namespace

std::unique_ptr<RecordSource> make_trend_source(std::vector<fs::path> databases, RecordKind kind,
                                                bool micro_steps, NameMapping mapping) {
  return std::make_unique<TrendDatabaseSource>(std::move(databases), kind, micro_steps,
                                               std::move(mapping));
}

}  // namespace trendprobe
