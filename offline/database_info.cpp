#include "offline/database_info.h"

#include <spdlog/fmt/fmt.h>

#include <map>
#include <set>

#include "writer/format_error.h"
#include "writer/shard_reader.h"
#include "writer/shard_schema.h"
#include "writer/sqlite_handle.h"
#include "writer/trend_reader.h"
#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

std::string line(std::string_view label, const std::string& value) {
  return fmt::format("  {:<12}{}\n", label, value);
}

std::string describe_shard(const std::filesystem::path& path) {
  const ShardReader shard(path);
  const ShardInfo& info = shard.info();
  std::string text =
      fmt::format("{}: shard, format version {}\n", path.string(), kShardFormatVersion);
  text += line("process", fmt::format("{} on {}, {}", info.pid, info.host,
                                      info.closed ? "closed in order"
                                                  : "not closed: still running, or killed"));
  text += line("rank", info.rank < 0 ? "not known" : std::to_string(info.rank));
  text += line("written by", "TrendProbe " + info.trendprobe_version);
  text += line("targets", std::to_string(shard.targets().size()));
  for (const RecordKind kind : {RecordKind::kDump, RecordKind::kMonitor}) {
    std::set<std::int64_t> steps;
    std::uint64_t records = 0;
    std::uint64_t incomplete = 0;
    for (const ShardStep& step : shard.steps()) {
      if (step.kind != kind) continue;
      steps.insert(step.training_step);
      records += step.records;
      incomplete += step.complete ? 0 : 1;
    }
    if (steps.empty()) continue;
    text += line(to_string(kind),
                 fmt::format("{} records of {} training steps ({}-{}), {} incomplete", records,
                             steps.size(), *steps.begin(), *steps.rbegin(), incomplete));
  }
  for (const Metric& metric : shard.metrics()) {
    text += line("metric", fmt::format("{}: {}", metric.name, fmt::join(metric.statistics, ", ")));
  }
  if (!info.last_error.empty()) text += line("last error", info.last_error);
  return text;
}

std::string describe_trend(Database& database) {
  std::map<std::string, std::string> info;
  Statement select = database.prepare("SELECT key, CAST(value AS TEXT) FROM trendprobe_info");
  while (select.step()) info.emplace(select.text(0), select.text(1));
  std::string text = fmt::format("{}: trend database, format version {}\n",
                                 database.path().string(), info["format_version"]);
  text += line("written by", "TrendProbe " + info["trendprobe_version"]);
  text += line("kind", info["kind"]);
  text += line("numbering", fmt::format("{}, micro-steps {}", info["numbering"],
                                        info["micro_step"] == "true" ? "on" : "off"));
  text += line("layout", info["layout"]);
  text += line("rows", info["records"]);
  const auto count = [&](const std::string& table) {
    return database.query_integer("SELECT count(*) FROM " + table);
  };
  text +=
      line("steps", fmt::format("{} of {} training steps", count("trendprobe_steps"),
                                database.query_integer(
                                    "SELECT count(DISTINCT training_step) FROM trendprobe_steps")));
  text += line("ranks", std::to_string(count("trendprobe_ranks")));
  text += line("targets", std::to_string(count("monitoring_targets")));
  text += line("non-finite", std::to_string(count("trendprobe_nonfinite")));
  text += line("issues", std::to_string(count("trendprobe_issues")));
  Statement metrics = database.prepare(
      "SELECT metric_name, (SELECT count(*) FROM trendprobe_metric_targets t "
      "WHERE t.metric_id=m.metric_id), (SELECT group_concat(statistic, ', ') FROM "
      "(SELECT statistic FROM trendprobe_planes p WHERE p.metric_id=m.metric_id "
      "ORDER BY plane_id)) FROM monitoring_metrics m ORDER BY metric_id");
  while (metrics.step()) {
    text += line("metric", fmt::format("{}: {} targets; {}", metrics.text(0), metrics.integer(1),
                                       metrics.text(2)));
  }
  return text;
}

}  // namespace

std::string describe_file(const std::filesystem::path& path) {
  std::int64_t application = 0;
  {
    Database database(path, OpenOptions{.mode = OpenMode::kReadOnly, .without_locks = true});
    application = database.query_integer("PRAGMA application_id");
  }
  if (application == kShardApplicationId) return describe_shard(path);
  if (application != kTrendApplicationId) {
    throw FormatError(path, "is neither a trend database nor a shard of TrendProbe");
  }
  Database database(path, OpenOptions{});
  require_known_trend_version(database);
  return describe_trend(database);
}

}  // namespace trendprobe
