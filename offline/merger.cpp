#include "offline/merger.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "offline/network_order.h"
#include "offline/unit_prefetcher.h"
#include "writer/tags.h"
#include "writer/trend_writer.h"

namespace trendprobe {
namespace {

constexpr std::uint64_t kTileMemory = std::uint64_t{64} << 20;
constexpr std::uint64_t kPrefetchBytes = std::uint64_t{64} << 20;
// More micro-steps in one training step than this are damage, not data; the axis has a row for
// each.
constexpr std::int32_t kMaxMicroSteps = 1 << 20;
constexpr std::size_t kFirstFindings = 20;
// Of the lists that are kept to be recognised, where the steps differ from each other: 16 MiB.
constexpr std::size_t kMaxKnownListTargets = std::size_t{1} << 22;
// As many kinds of steps are told apart at once; micro-steps make the steps of a rank different.
constexpr std::size_t kPlans = 16;

/// A unit of any source.
struct PlannedUnit {
  const RecordSource* source = nullptr;
  ReadUnit unit;
  /// Where two hold the same record, the unit with the higher one wins.
  std::size_t precedence = 0;
  /// Row of trendprobe_sources.
  std::size_t source_row = 0;
};

/// Bytes of float32 values that a byte of input holds, about: what the tiles of a rank will take
/// can be told before it is read.
double values_per_byte(std::string_view format) {
  if (format == "dump") return 1.0 / 16;
  if (format == "monitor") return 1.0 / 3;
  return 1.0;
}

/// The step axis: global steps of all (training step, micro-step) pairs, of which only the selected
/// training steps are on it.
class StepAxis {
 public:
  StepAxis(const std::vector<PlannedUnit>& units, bool micro_steps, const NumberRanges& selected)
      : micro_steps_(micro_steps) {
    std::map<std::int64_t, std::int32_t> counts;
    for (const PlannedUnit& planned : units) {
      for (const auto& [training_step, count] : planned.unit.steps) {
        std::int32_t& most = counts[training_step];
        most = std::max(most, micro_steps ? std::max(1, count) : 1);
      }
    }
    std::int64_t next_step = 0;
    for (const auto& [training_step, count] : counts) {
      const std::int64_t first_step = micro_steps ? next_step : training_step;
      next_step += count;
      if (!selected.contains(training_step)) continue;
      first_index_.emplace(training_step, std::pair(steps_.size(), count));
      for (std::int32_t micro_step = 0; micro_step < count; ++micro_step) {
        steps_.push_back({first_step + micro_step, training_step, micro_step});
      }
    }
  }

  const std::vector<TrendStep>& steps() const { return steps_; }
  std::size_t training_steps() const { return first_index_.size(); }

  /// The step index of a record; none where the axis has no such step.
  std::optional<std::size_t> index_of(std::int64_t training_step, std::int32_t micro_step) const {
    const auto found = first_index_.find(training_step);
    if (found == first_index_.end()) return std::nullopt;
    if (!micro_steps_) return found->second.first;
    if (micro_step < 0 || micro_step >= found->second.second) return std::nullopt;
    return found->second.first + static_cast<std::size_t>(micro_step);
  }

 private:
  bool micro_steps_;
  std::vector<TrendStep> steps_;
  std::map<std::int64_t, std::pair<std::size_t, std::int32_t>> first_index_;  // index, micro-steps
};

std::vector<PlannedUnit> plan_units(const std::vector<std::unique_ptr<RecordSource>>& sources,
                                    const MergeOptions& options, Diagnostics& diagnostics) {
  std::vector<PlannedUnit> units;
  for (const std::unique_ptr<RecordSource>& source : sources) {
    for (ReadUnit& unit : source->scan(diagnostics, options.jobs)) {
      std::erase_if(unit.steps, [&](const std::pair<std::int64_t, std::int32_t>& step) {
        if (step.second <= kMaxMicroSteps) return false;
        diagnostics.report(
            {Severity::kSkipped, unit.path, "training step " + std::to_string(step.first),
             "claims " + std::to_string(step.second) + " micro-steps in one training step",
             "nothing of this step"});
        return true;
      });
      if (unit.steps.empty()) continue;
      units.push_back({source.get(), std::move(unit), 0, 0});
    }
  }
  // Precedence: a shard over files (it holds the exact values of the same run), a later process
  // over an earlier one, then the order of the sources. msProbe keeps the first that it reads.
  std::vector<std::size_t> by_precedence(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) by_precedence[i] = i;
  if (options.as_msprobe) {
    std::reverse(by_precedence.begin(), by_precedence.end());
  } else {
    std::stable_sort(by_precedence.begin(), by_precedence.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t i) {
        return std::tuple(units[i].source->format() == "shard", units[i].unit.started_ns);
      };
      return key(a) < key(b);
    });
  }
  for (std::size_t i = 0; i < by_precedence.size(); ++i) units[by_precedence[i]].precedence = i;
  // Rows are appended in the order of their key, so this is the order in which units are read.
  std::stable_sort(units.begin(), units.end(), [](const PlannedUnit& a, const PlannedUnit& b) {
    return std::tuple(a.unit.rank, a.unit.steps.front().first) <
           std::tuple(b.unit.rank, b.unit.steps.front().first);
  });
  return units;
}

class Merger {
 public:
  Merger(std::vector<PlannedUnit> units, StepAxis axis, RecordKind kind,
         const std::filesystem::path& database, const MergeOptions& options,
         Diagnostics& diagnostics)
      : units_(std::move(units)),
        kind_(kind),
        options_(options),
        diagnostics_(diagnostics),
        axis_(std::move(axis)),
        order_(kind) {
    plan_ranks_and_sources();
    writer_.emplace(database, trend_options());
  }

  MergedDatabase run() {
    std::vector<std::uint64_t> bytes;
    std::uint64_t total_bytes = 0;
    for (const PlannedUnit& planned : units_) {
      bytes.push_back(planned.unit.bytes);
      total_bytes += planned.unit.bytes;
    }
    const auto read = [this](std::size_t i) {
      return units_[i].source->read(units_[i].unit, diagnostics_);
    };
    UnitPrefetcher prefetcher(std::move(bytes), read, options_.jobs, kPrefetchBytes);
    std::uint64_t done_bytes = 0;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      take(i, prefetcher.next());
      const bool rank_ends =
          i + 1 == units_.size() || units_[i + 1].unit.rank != units_[i].unit.rank;
      // What the next units can't add to any more is complete.
      write_steps_below(
          rank_ends ? std::nullopt : std::optional(units_[i + 1].unit.steps.front().first),
          units_[i].unit.rank);
      done_bytes += units_[i].unit.bytes;
      if (options_.progress) options_.progress(done_bytes, total_bytes);
    }
    return finish();
  }

 private:
  /// A unit's records while some of them are not written yet.
  struct LoadedUnit {
    std::size_t unit;
    UnitRecords records;
    std::vector<std::uint32_t> metric_handles;  // by the unit's metric index; kUnknown until used
    std::shared_ptr<std::vector<std::uint32_t>> target_ids;  // as in KnownTargets
  };
  /// A table that more units may come with, and the ids of its targets; kUnknown until used.
  struct KnownTargets {
    std::weak_ptr<const TargetTable> table;
    std::shared_ptr<std::vector<std::uint32_t>> ids;
  };
  /// The ids of a block's targets, in flush order; one list for all blocks that are alike.
  struct TargetList {
    std::uint32_t metric = 0;  // handle
    std::vector<std::uint32_t> targets;
  };
  struct PendingBlock {
    std::shared_ptr<LoadedUnit> loaded;
    const RecordBlock* block;
    std::shared_ptr<const TargetList> list;
  };
  /// The order of the records of a step, for every step whose blocks have the same lists.
  struct StepPlan {
    struct Place {
      std::uint32_t target;
      std::uint32_t metric;
      std::uint32_t block;
      std::uint32_t record;
    };
    std::vector<std::shared_ptr<const TargetList>> lists;
    bool has_rivals = false;  // several records of one key; then there are no places
    std::vector<Place> places;
  };
  struct Candidate {
    std::uint64_t key;  // target << 16 | metric id
    std::uint32_t sequence;
    std::uint32_t metric;
    const double* values;
    std::size_t unit;
  };
  static constexpr std::uint32_t kUnknown = std::numeric_limits<std::uint32_t>::max();

  void plan_ranks_and_sources() {
    std::map<std::int32_t, TrendRank> ranks;
    std::map<std::tuple<std::string, std::int32_t, std::string>, std::size_t> rows;
    for (PlannedUnit& planned : units_) {
      const ReadUnit& unit = planned.unit;
      TrendRank& rank =
          ranks.try_emplace(unit.rank, TrendRank{unit.rank, unit.host, unit.path}).first->second;
      if (rank.host.empty()) rank.host = unit.host;
      std::string format(planned.source->format());
      const auto [row, is_new] = rows.try_emplace({format, unit.rank, unit.path}, sources_.size());
      if (is_new) {
        sources_.push_back({std::move(format), unit.rank, unit.path, unit.steps.front().first,
                            unit.steps.back().first, 0, 0});
      }
      planned.source_row = row->second;
      TrendSource& source = sources_[row->second];
      source.first_step = std::min(source.first_step, unit.steps.front().first);
      source.last_step = std::max(source.last_step, unit.steps.back().first);
    }
    for (auto& [number, rank] : ranks) {
      rank_index_.emplace(number, ranks_.size());
      ranks_.push_back(std::move(rank));
    }
  }

  TrendOptions trend_options() const {
    std::map<std::int32_t, double> rank_bytes;
    for (const PlannedUnit& planned : units_) {
      rank_bytes[planned.unit.rank] +=
          static_cast<double>(planned.unit.bytes) * values_per_byte(planned.source->format());
    }
    double most = 0;
    for (const auto& [rank, bytes] : rank_bytes) most = std::max(most, bytes);
    TrendOptions options;
    options.kind = kind_;
    options.write_rows = options_.write_rows;
    options.write_tiles = options_.write_tiles;
    options.as_msprobe = options_.as_msprobe;
    options.micro_steps = options_.micro_steps;
    options.steps = axis_.steps();
    options.ranks = ranks_;
    const std::size_t steps = options.steps.size();
    options.tile_shape = choose_tile_shape(
        ranks_.size(), steps, static_cast<std::uint64_t>(most / static_cast<double>(steps)),
        kTileMemory);
    return options;
  }

  void take(std::size_t unit, UnitRecords&& records) {
    auto loaded = std::make_shared<LoadedUnit>();
    loaded->unit = unit;
    loaded->records = std::move(records);
    loaded->metric_handles.resize(loaded->records.metrics.size(), kUnknown);
    if (loaded->records.targets) loaded->target_ids = ids_of(loaded->records.targets);
    const auto& declared = units_[unit].unit.steps;
    for (const RecordBlock& block : loaded->records.blocks) {
      if (block.targets.empty() || !options_.training_steps.contains(block.training_step)) continue;
      const auto step = std::lower_bound(
          declared.begin(), declared.end(), block.training_step,
          [](const auto& entry, std::int64_t value) { return entry.first < value; });
      if (step == declared.end() || step->first != block.training_step ||
          !axis_.index_of(block.training_step, block.micro_step)) {
        diagnostics_.report({Severity::kSkipped, units_[unit].unit.path,
                             "training step " + std::to_string(block.training_step) +
                                 ", micro-step " + std::to_string(block.micro_step),
                             "holds " + std::to_string(block.targets.size()) +
                                 " records of metric " +
                                 loaded->records.metrics[block.metric].name +
                                 " in a step that it does not announce",
                             "the records of its other steps"});
        continue;
      }
      pending_[block.training_step].push_back({loaded, &block, resolve(*loaded, block)});
    }
  }

  /// The ids of a table's targets, kept for the units that share it.
  std::shared_ptr<std::vector<std::uint32_t>> ids_of(
      const std::shared_ptr<const TargetTable>& table) {
    std::erase_if(known_targets_, [](const KnownTargets& known) { return known.table.expired(); });
    for (const KnownTargets& known : known_targets_) {
      if (known.table.lock() == table) return known.ids;
    }
    auto ids = std::make_shared<std::vector<std::uint32_t>>(table->size(), kUnknown);
    known_targets_.push_back({table, ids});
    return ids;
  }

  /// Gives the block's metric and targets their ids, in the order in which they come.
  std::shared_ptr<const TargetList> resolve(LoadedUnit& loaded, const RecordBlock& block) {
    const Metric& metric = loaded.records.metrics[block.metric];
    std::uint32_t& handle = loaded.metric_handles[block.metric];
    if (handle == kUnknown) handle = writer_->add_metric(metric);
    block_targets_.clear();
    for (const std::uint32_t target : block.targets) {
      std::uint32_t& id = (*loaded.target_ids)[target];
      if (id == kUnknown) id = targets_.intern((*loaded.records.targets)[target]);
      block_targets_.push_back(id);
    }
    return list_of(metric, handle);
  }

  /// The list of block_targets_.
  std::shared_ptr<const TargetList> list_of(const Metric& metric, std::uint32_t handle) {
    std::uint64_t hash = handle;
    for (const std::uint32_t target : block_targets_) {
      hash = (hash ^ target) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    const auto [first, last] = known_lists_.equal_range(hash);
    const auto found = std::find_if(first, last, [&](const auto& known) {
      return known.second->metric == handle && known.second->targets == block_targets_;
    });
    if (found != last) return found->second;
    order_.add(metric.name, block_targets_, targets_);
    if (known_list_targets_ > kMaxKnownListTargets) {
      known_lists_.clear();
      known_list_targets_ = 0;
    }
    known_list_targets_ += block_targets_.size();
    auto list = std::make_shared<const TargetList>(TargetList{handle, block_targets_});
    return known_lists_.emplace(hash, std::move(list))->second;
  }

  void write_steps_below(std::optional<std::int64_t> limit, std::int32_t rank) {
    while (!pending_.empty() && (!limit || pending_.begin()->first < *limit)) {
      write_training_step(rank, std::move(pending_.begin()->second));
      pending_.erase(pending_.begin());
    }
  }

  void write_training_step(std::int32_t rank, std::vector<PendingBlock> blocks) {
    std::stable_sort(blocks.begin(), blocks.end(),
                     [this](const PendingBlock& a, const PendingBlock& b) {
                       return units_[a.loaded->unit].precedence < units_[b.loaded->unit].precedence;
                     });
    std::map<std::size_t, std::vector<const PendingBlock*>> by_step;
    for (const PendingBlock& pending : blocks) {
      by_step[*axis_.index_of(pending.block->training_step, pending.block->micro_step)].push_back(
          &pending);
    }
    for (const auto& [step, step_blocks] : by_step) write_step(rank, step, step_blocks);
  }

  void write_step(std::int32_t rank, std::size_t step,
                  const std::vector<const PendingBlock*>& blocks) {
    records_.clear();
    const StepPlan& plan = plan_of(blocks);
    if (plan.has_rivals) {
      choose_among_rivals(blocks);
    } else {
      for (const StepPlan::Place& place : plan.places) {
        const RecordBlock& block = *blocks[place.block]->block;
        const std::size_t width = block.values.size() / block.targets.size();
        records_.push_back(
            {place.target, place.metric, block.values.data() + place.record * width});
      }
      for (const PendingBlock* pending : blocks) {
        sources_[units_[pending->loaded->unit].source_row].records +=
            pending->block->targets.size();
      }
    }
    writer_->append(rank_index_.at(rank), step, records_);
  }

  const StepPlan& plan_of(const std::vector<const PendingBlock*>& blocks) {
    const auto same_list = [](const std::shared_ptr<const TargetList>& list,
                              const PendingBlock* pending) { return list == pending->list; };
    for (const StepPlan& plan : plans_) {
      if (std::equal(plan.lists.begin(), plan.lists.end(), blocks.begin(), blocks.end(),
                     same_list)) {
        return plan;
      }
    }
    StepPlan& plan = plans_[next_plan_++ % plans_.size()];
    plan = {};
    for (std::uint32_t b = 0; b < blocks.size(); ++b) {
      const TargetList& list = *plan.lists.emplace_back(blocks[b]->list);
      for (std::uint32_t i = 0; i < list.targets.size(); ++i) {
        plan.places.push_back({list.targets[i], list.metric, b, i});
      }
    }
    const auto key = [this](const StepPlan::Place& place) {
      return std::pair(place.target, writer_->metric_id(place.metric));
    };
    std::sort(plan.places.begin(), plan.places.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
    const auto rivals =
        std::adjacent_find(plan.places.begin(), plan.places.end(),
                           [&](const auto& a, const auto& b) { return key(a) == key(b); });
    plan.has_rivals = rivals != plan.places.end();
    if (plan.has_rivals) plan.places = {};
    return plan;
  }

  /// The records of a step in which some have the same key.
  void choose_among_rivals(const std::vector<const PendingBlock*>& blocks) {
    candidates_.clear();
    for (const PendingBlock* pending : blocks) {
      const TargetList& list = *pending->list;
      const std::uint64_t metric_id = writer_->metric_id(list.metric);
      const std::size_t width = pending->block->values.size() / list.targets.size();
      for (std::size_t i = 0; i < list.targets.size(); ++i) {
        candidates_.push_back({std::uint64_t{list.targets[i]} << 16 | metric_id,
                               static_cast<std::uint32_t>(candidates_.size()), list.metric,
                               pending->block->values.data() + i * width, pending->loaded->unit});
      }
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.key != b.key ? a.key < b.key : a.sequence < b.sequence;
    });
    for (std::size_t i = 0; i < candidates_.size();) {
      std::size_t end = i + 1;
      while (end < candidates_.size() && candidates_[end].key == candidates_[i].key) ++end;
      const std::size_t winner = winner_of(i, end);
      for (std::size_t k = i; k < end; ++k) {
        if (k != winner) ++sources_[units_[candidates_[k].unit].source_row].superseded;
      }
      superseded_ += end - i - 1;
      const Candidate& kept = candidates_[winner];
      ++sources_[units_[kept.unit].source_row].records;
      records_.push_back({static_cast<std::uint32_t>(kept.key >> 16), kept.metric, kept.values});
      i = end;
    }
  }

  /// Of candidates with one key, in ascending order of precedence and, within a unit, of arrival.
  /// The last wins; of one unit's msProbe keeps the first.
  std::size_t winner_of(std::size_t begin, std::size_t end) const {
    std::size_t winner = end - 1;
    if (options_.as_msprobe) {
      while (winner > begin && candidates_[winner - 1].unit == candidates_[winner].unit) --winner;
    }
    return winner;
  }

  MergedDatabase finish() {
    MergeSummary result;
    result.records = writer_->records();
    if (result.records == 0) return {};
    TrendSummary summary;
    summary.max_rank = ranks_.back().rank;
    summary.min_step = axis_.steps().front().step;
    summary.max_step = axis_.steps().back().step;
    summary.network_order = order_.order();
    summary.sources = sources_;
    for (const Issue& issue : diagnostics_.issues()) {
      summary.issues.push_back({std::string(to_string(issue.severity)), issue.path, issue.location,
                                issue.what, issue.kept});
    }
    writer_->finish(targets_, summary);

    result.database = writer_->path();
    result.superseded = superseded_;
    result.nonfinite_values = writer_->nonfinite_values();
    result.global_steps = axis_.steps().size();
    result.training_steps = axis_.training_steps();
    result.first_training_step = axis_.steps().front().training_step;
    result.last_training_step = axis_.steps().back().training_step;
    result.ranks = ranks_.size();
    result.first_rank = ranks_.front().rank;
    result.last_rank = ranks_.back().rank;
    std::set<std::string_view> modules;
    std::set<std::string_view> names;
    for (const TrendWriter::MetricTargets& metric : writer_->metric_targets()) {
      for (const std::uint32_t target : metric.targets) {
        const std::string_view name = targets_[target].name;
        if (names.insert(name).second) modules.insert(module_of(kind_, metric.name, name));
      }
    }
    result.modules = modules.size();
    result.targets = targets_.size();
    for (TrendNonFinite& found : writer_->first_nonfinite(kFirstFindings)) {
      result.first_nonfinite.push_back({found.step.step, found.step.training_step,
                                        found.step.micro_step, found.rank, std::move(found.metric),
                                        std::move(found.target), std::move(found.statistic),
                                        std::move(found.value)});
    }
    return {std::move(result), writer_->close()};
  }

  std::vector<PlannedUnit> units_;
  RecordKind kind_;
  const MergeOptions& options_;
  Diagnostics& diagnostics_;
  StepAxis axis_;
  std::vector<TrendRank> ranks_;
  std::map<std::int32_t, std::size_t> rank_index_;
  std::vector<TrendSource> sources_;
  TargetTable targets_;
  NetworkOrder order_;
  std::optional<TrendWriter> writer_;

  std::map<std::int64_t, std::vector<PendingBlock>>
      pending_;  // of the current rank, by training step
  std::vector<KnownTargets> known_targets_;
  std::unordered_multimap<std::uint64_t, std::shared_ptr<const TargetList>>
      known_lists_;  // by hash
  std::size_t known_list_targets_ = 0;
  std::array<StepPlan, kPlans> plans_;
  std::size_t next_plan_ = 0;
  std::uint64_t superseded_ = 0;
  // Reused from step to step.
  std::vector<std::uint32_t> block_targets_;
  std::vector<Candidate> candidates_;
  std::vector<TrendRecord> records_;
};

}  // namespace

MergedDatabase merge(std::vector<std::unique_ptr<RecordSource>> sources,
                     const std::filesystem::path& database, const MergeOptions& options,
                     Diagnostics& diagnostics) {
  if (sources.empty()) return {};
  const RecordKind kind = sources.front()->kind();
  std::vector<PlannedUnit> units = plan_units(sources, options, diagnostics);
  StepAxis axis(units, options.micro_steps, options.training_steps);
  std::erase_if(units, [&](PlannedUnit& planned) {
    std::erase_if(planned.unit.steps, [&](const std::pair<std::int64_t, std::int32_t>& step) {
      return !options.training_steps.contains(step.first);
    });
    return planned.unit.steps.empty() || !options.ranks.contains(planned.unit.rank);
  });
  if (units.empty()) return {};
  return Merger(std::move(units), std::move(axis), kind, database, options, diagnostics).run();
}

}  // namespace trendprobe
