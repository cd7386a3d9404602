#include "offline/verification.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "offline/diagnostics.h"
#include "writer/format_error.h"
#include "writer/shard_reader.h"
#include "writer/shard_schema.h"
#include "writer/sqlite_handle.h"
#include "writer/trend_reader.h"
#include "writer/trend_schema.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

constexpr int kMaxFindings = 20;  // of one check

/// A query that finds nothing in a sound database; its first column says where.
struct Check {
  std::string_view what;
  std::string_view query;
};

constexpr Check kTrendChecks[] = {
    {"trendprobe_steps: a training step and micro-step on two global steps",
     "SELECT 'training step ' || training_step || ', micro-step ' || micro_step FROM "
     "trendprobe_steps "
     "GROUP BY training_step, micro_step HAVING count(*) > 1"},
    {"trendprobe_steps: the order of the global steps is not that of the training steps",
     "SELECT 'step ' || step FROM (SELECT step, training_step < lag(training_step) OVER (ORDER BY "
     "step) OR (training_step = lag(training_step) "
     "OVER (ORDER BY step) AND micro_step < lag(micro_step) OVER (ORDER BY step)) AS wrong "
     "FROM trendprobe_steps) WHERE wrong"},
    {"trendprobe_target_order: not each target has one position of 0 to the number of targets less "
     "1",
     "SELECT 'position ' || position FROM (SELECT position, row_number() OVER (ORDER BY position) "
     "- 1 "
     "AS expected FROM trendprobe_target_order) WHERE position <> expected "
     "UNION ALL SELECT 'target ' || target_id FROM monitoring_targets WHERE target_id NOT IN "
     "(SELECT target_id FROM trendprobe_target_order) "
     "UNION ALL SELECT 'target ' || target_id FROM trendprobe_target_order WHERE target_id NOT IN "
     "(SELECT target_id FROM monitoring_targets)"},
    {"trendprobe_metric_targets: no such metric or target",
     "SELECT 'metric ' || metric_id || ', target ' || target_id FROM trendprobe_metric_targets "
     "WHERE "
     "metric_id NOT IN (SELECT metric_id FROM monitoring_metrics) OR "
     "target_id NOT IN (SELECT target_id FROM monitoring_targets)"},
    {"trendprobe_planes: no such metric",
     "SELECT 'plane ' || plane_id FROM trendprobe_planes WHERE metric_id NOT IN "
     "(SELECT metric_id FROM monitoring_metrics)"},
    {"trendprobe_tiles: no such plane",
     "SELECT 'tile ' || tile_id FROM trendprobe_tiles WHERE tile_id >> 40 NOT IN "
     "(SELECT plane_id FROM trendprobe_planes)"},
    {"trendprobe_nonfinite: no such step, rank, target or metric",
     "SELECT 'step ' || step || ', rank ' || rank || ', target ' || target_id FROM "
     "trendprobe_nonfinite WHERE step NOT IN (SELECT step FROM trendprobe_steps) OR "
     "rank NOT IN (SELECT rank FROM trendprobe_ranks) OR "
     "target_id NOT IN (SELECT target_id FROM monitoring_targets) OR "
     "metric_id NOT IN (SELECT metric_id FROM monitoring_metrics)"},
    {"trendprobe_nonfinite: a value that is none of NaN, +inf, -inf",
     "SELECT 'step ' || step || ', rank ' || rank || ', target ' || target_id FROM "
     "trendprobe_nonfinite WHERE value NOT IN ('NaN', '+inf', '-inf')"},
};

constexpr Check kMsprobeChecks[] = {
    {"monitoring_tags: no such metric",
     "SELECT 'tag ' || tag_id FROM monitoring_tags WHERE metric_id NOT IN "
     "(SELECT metric_id FROM monitoring_metrics)"},
    {"tag_target_mapping: no such tag or target",
     "SELECT 'tag ' || tag_id || ', target ' || target_id FROM tag_target_mapping WHERE "
     "tag_id NOT IN (SELECT tag_id FROM monitoring_tags) OR "
     "target_id NOT IN (SELECT target_id FROM monitoring_targets)"},
    {"monitoring_tags: a tag that no target has",
     "SELECT 'tag ' || tag_id FROM monitoring_tags WHERE tag_id NOT IN "
     "(SELECT tag_id FROM tag_target_mapping)"},
    {"global_stats: not one row",
     "SELECT count(*) || ' rows' FROM global_stats HAVING count(*) <> 1"},
    {"monitoring_metrics: id 0, which msProbe's viewer takes for none",
     "SELECT metric_name FROM monitoring_metrics WHERE metric_id < 1"},
};

constexpr Check kRowChecks[] = {
    {"trend_data: no such target or metric",
     "SELECT 'rank ' || rank || ', step ' || step || ', target ' || target_id FROM trend_data "
     "WHERE "
     "target_id NOT IN (SELECT target_id FROM monitoring_targets) OR "
     "metric_id NOT IN (SELECT metric_id FROM monitoring_metrics)"},
    {"global_stats: max_rank, min_step and max_step are not those of the rows",
     "SELECT max_rank || ', ' || min_step || ', ' || max_step FROM global_stats WHERE "
     "max_rank < (SELECT max(rank) FROM trend_data) OR "
     "min_step > (SELECT min(step) FROM trend_data) OR "
     "max_step < (SELECT max(step) FROM trend_data)"},
};

constexpr Check kOurRowChecks[] = {
    {"trend_data: no such rank or step",
     "SELECT 'rank ' || rank || ', step ' || step FROM (SELECT DISTINCT rank, step FROM "
     "trend_data) "
     "WHERE rank NOT IN (SELECT rank FROM trendprobe_ranks) OR "
     "step NOT IN (SELECT step FROM trendprobe_steps)"},
    {"trend_data: a target that trendprobe_metric_targets does not list for the metric",
     "SELECT 'metric ' || metric_id || ', target ' || target_id FROM "
     "(SELECT DISTINCT metric_id, target_id FROM trend_data) EXCEPT "
     "SELECT 'metric ' || metric_id || ', target ' || target_id FROM trendprobe_metric_targets"},
};

class FileVerifier {
 public:
  explicit FileVerifier(const std::filesystem::path& path) : path_(path) {}

  Verification run() {
    std::int64_t application = 0;
    {
      Database database(path_, OpenOptions{.mode = OpenMode::kReadOnly, .without_locks = true});
      application = database.query_integer("PRAGMA application_id");
      check_integrity(database);
    }
    if (application == kShardApplicationId) {
      guarded([this] { check_shard(); });
    } else {
      guarded([&] { check_trend(application == kTrendApplicationId); });
    }
    return std::move(result_);
  }

 private:
  /// What a reader throws about contents is a finding, too.
  template <typename Action>
  void guarded(Action&& action) {
    try {
      action();
    } catch (const SqliteError& error) {
      result_.problems.push_back(without_path(error.what(), path_));
    } catch (const FormatError& error) {
      result_.problems.push_back(without_path(error.what(), path_));
    }
  }

  void check_integrity(Database& database) {
    guarded([&] {
      Statement check = database.prepare(fmt::format("PRAGMA integrity_check({})", kMaxFindings));
      while (check.step()) {
        if (check.text(0) != "ok") {
          result_.problems.push_back("SQLite: " + std::string(check.text(0)));
        }
      }
    });
  }

  void run_checks(Database& database, std::span<const Check> checks) {
    for (const Check& check : checks) {
      guarded([&] {
        Statement select = database.prepare(check.query);
        for (int found = 0; select.step(); ++found) {
          if (found == kMaxFindings) {
            result_.problems.push_back(fmt::format("{}: and more", check.what));
            break;
          }
          result_.problems.push_back(fmt::format("{}: {}", check.what, select.text(0)));
        }
      });
    }
  }

  void check_shard() {
    ShardReader shard(path_);
    std::uint64_t records = 0;
    for (const ShardStep& step : shard.steps()) {
      guarded([&] {
        std::uint64_t found = 0;
        for (const RecordBlock& block : shard.read(step)) found += block.targets.size();
        records += found;
        if (found != step.records) {
          result_.problems.push_back(
              fmt::format("training step {} of {} data: {} records, though it says {}",
                          step.training_step, to_string(step.kind), found, step.records));
        }
      });
      if (!step.complete) {
        result_.remarks.push_back(fmt::format("training step {} of {} data {}", step.training_step,
                                              to_string(step.kind), why_incomplete(step)));
      }
    }
    if (!shard.info().closed) {
      result_.remarks.emplace_back("was not closed: its process was killed or is still running");
    }
    result_.remarks.push_back(fmt::format("shard: {} commits with {} records of {} targets",
                                          shard.steps().size(), records, shard.targets().size()));
  }

  void check_trend(bool is_ours) {
    Database database(path_, OpenOptions{});
    const bool has_rows = database.has_table("trend_data");
    if (is_ours || (has_rows && database.has_table("monitoring_targets"))) {
      run_checks(database, kMsprobeChecks);
      if (is_ours) run_checks(database, kTrendChecks);
      if (has_rows) run_checks(database, kRowChecks);
      if (has_rows && is_ours) run_checks(database, kOurRowChecks);
    }
    TrendReader reader(path_);  // the version, and each metric's columns
    if (is_ours && reader.has_rows()) {
      const auto rows =
          static_cast<std::uint64_t>(database.query_integer("SELECT count(*) FROM trend_data"));
      if (rows != reader.records()) {
        result_.problems.push_back(fmt::format(
            "trend_data: {} rows, though trendprobe_info says {} records", rows, reader.records()));
      }
    }
    check_values(reader, database);
  }

  /// Every value once, as the viewer reads it.
  void check_values(TrendReader& reader, Database& database) {
    std::uint64_t records = 0;
    std::uint64_t nonfinite = 0;
    for (std::size_t rank = 0; rank < reader.ranks().size(); ++rank) {
      for (std::size_t step = 0; step < reader.steps().size(); step += reader.steps_a_block()) {
        guarded([&] {
          const std::size_t end = std::min(step + reader.steps_a_block(), reader.steps().size());
          for (const RecordBlock& block : reader.read(rank, step, end)) {
            records += block.targets.size();
            for (const double value : block.values) {
              if (!std::isfinite(value) && !is_missing(value)) ++nonfinite;
            }
          }
        });
      }
    }
    if (reader.is_exact()) {
      const auto listed = static_cast<std::uint64_t>(
          database.query_integer("SELECT count(*) FROM trendprobe_nonfinite"));
      if (listed != nonfinite) {
        result_.problems.push_back(fmt::format(
            "{} non-finite values, though trendprobe_nonfinite lists {}", nonfinite, listed));
      }
    }
    result_.remarks.push_back(
        fmt::format("{}: {} records of {} targets, {} ranks, {} steps",
                    reader.is_ours() ? "trend database" : "trend database of msProbe", records,
                    reader.targets().size(), reader.ranks().size(), reader.steps().size()));
  }

  const std::filesystem::path& path_;
  Verification result_;
};

}  // namespace

Verification verify_file(const std::filesystem::path& path) { return FileVerifier(path).run(); }

}  // namespace trendprobe
