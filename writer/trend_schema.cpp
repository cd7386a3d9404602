#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

constexpr std::array<std::string_view, 4> kDumpMetricNames = {"forward", "backward", "recompute",
                                                              "parameters_grad"};
constexpr std::array<std::string_view, 9> kMonitorMetricNames = {
    "actv",         "actv_grad",    "exp_avg",       "exp_avg_sq", "grad_unreduced",
    "grad_reduced", "param_origin", "param_updated", "other"};
constexpr std::array<std::string_view, 4> kMsprobeDumpStatistics = {"norm", "max", "min", "mean"};
constexpr std::array<std::string_view, 14> kMonitorStatisticNames = {
    "norm",        "min", "max",         "zeros", "nans",     "mean",  "entropy",
    "softmax_max", "sr",  "kernel_norm", "std_x", "jacobian", "proxy", "token_similarity"};

}  // namespace

std::string_view trend_file_name(RecordKind kind) {
  return kind == RecordKind::kDump ? "dump_data.trend.db" : "monitor_data.trend.db";
}

std::span<const std::string_view> trend_metrics(RecordKind kind) {
  if (kind == RecordKind::kDump) return kDumpMetricNames;
  return kMonitorMetricNames;
}

std::span<const std::string_view> trend_statistics(RecordKind kind) {
  if (kind == RecordKind::kDump) return kMsprobeDumpStatistics;
  return kMonitorStatisticNames;
}

std::string quote_identifier(std::string_view name) {
  std::string quoted = "\"";
  for (const char c : name) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  quoted += '"';
  return quoted;
}

namespace trend_sql {

std::string prepare_new_file() {
  return "PRAGMA page_size=" + std::to_string(kTrendPageSize) +
         ";PRAGMA application_id=" + std::to_string(kTrendApplicationId) +
         ";PRAGMA user_version=" + std::to_string(kTrendFormatVersion) + ";";
}

const char* const kTables = R"sql(
CREATE TABLE monitoring_targets(
  target_id INTEGER PRIMARY KEY AUTOINCREMENT,
  target_name TEXT NOT NULL,
  vpp_stage INTEGER NOT NULL,
  micro_step INTEGER NOT NULL DEFAULT 0,
  UNIQUE(target_name, vpp_stage, micro_step));
CREATE TABLE monitoring_metrics(
  metric_id INTEGER PRIMARY KEY AUTOINCREMENT,
  metric_name TEXT UNIQUE NOT NULL);
CREATE TABLE monitoring_tags(
  tag_id INTEGER PRIMARY KEY AUTOINCREMENT,
  tag_name TEXT NOT NULL,
  category TEXT NOT NULL,
  metric_id INTEGER NOT NULL REFERENCES monitoring_metrics(metric_id),
  UNIQUE(tag_name, category, metric_id));
CREATE TABLE tag_target_mapping(
  tag_id INTEGER NOT NULL REFERENCES monitoring_tags(tag_id),
  target_id INTEGER NOT NULL REFERENCES monitoring_targets(target_id),
  PRIMARY KEY(tag_id, target_id));
CREATE TABLE trendprobe_info(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE trendprobe_steps(step INTEGER PRIMARY KEY, training_step INTEGER NOT NULL, micro_step INTEGER NOT NULL);
CREATE TABLE trendprobe_ranks(rank INTEGER PRIMARY KEY, host TEXT NOT NULL, directory TEXT NOT NULL);
CREATE TABLE trendprobe_sources(
  source_id INTEGER PRIMARY KEY,
  format TEXT NOT NULL,
  rank INTEGER NOT NULL,
  path TEXT NOT NULL,
  first_step INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  records INTEGER NOT NULL,
  superseded INTEGER NOT NULL);
CREATE TABLE trendprobe_issues(
  issue_id INTEGER PRIMARY KEY,
  severity TEXT NOT NULL,
  path TEXT NOT NULL,
  location TEXT NOT NULL,
  what TEXT NOT NULL,
  kept TEXT NOT NULL);
CREATE TABLE trendprobe_target_order(target_id INTEGER PRIMARY KEY, position INTEGER NOT NULL);
CREATE TABLE trendprobe_metric_targets(
  metric_id INTEGER NOT NULL,
  column_index INTEGER NOT NULL,
  target_id INTEGER NOT NULL,
  PRIMARY KEY(metric_id, column_index)) WITHOUT ROWID;
CREATE TABLE trendprobe_nonfinite(
  step INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  target_id INTEGER NOT NULL,
  metric_id INTEGER NOT NULL,
  statistic TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY(step, rank, target_id, metric_id, statistic)) WITHOUT ROWID;
CREATE TABLE trendprobe_planes(
  plane_id INTEGER PRIMARY KEY,
  metric_id INTEGER NOT NULL,
  statistic TEXT NOT NULL,
  UNIQUE(metric_id, statistic));
CREATE TABLE trendprobe_tiles(tile_id INTEGER PRIMARY KEY, data BLOB NOT NULL);
)sql";

std::string create_trend_data(std::span<const std::string> statistics) {
  std::string sql =
      "CREATE TABLE trend_data(rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id INTEGER NOT "
      "NULL REFERENCES monitoring_targets(target_id), metric_id INTEGER NOT NULL REFERENCES "
      "monitoring_metrics(metric_id)";
  for (const std::string& statistic : statistics) {
    sql += ", " + quote_identifier(statistic) + " REAL DEFAULT NULL";
  }
  sql += ", PRIMARY KEY(rank, step, target_id, metric_id)) WITHOUT ROWID";
  return sql;
}

std::string add_statistic(std::string_view statistic) {
  return "ALTER TABLE trend_data ADD COLUMN " + quote_identifier(statistic) + " REAL DEFAULT NULL";
}

std::string create_global_stats(std::span<const std::pair<std::string, std::string>> metrics) {
  std::string sql =
      "CREATE TABLE global_stats(max_rank INTEGER DEFAULT 0, min_step INTEGER DEFAULT 0, "
      "max_step INTEGER DEFAULT 0";
  for (const auto& [name, statistics] : metrics) {
    sql += ", " + quote_identifier(name) + " TEXT DEFAULT NULL";
  }
  return sql + ")";
}

std::string insert_global_stats(std::size_t metrics) {
  std::string sql = "INSERT INTO global_stats VALUES(?,?,?";
  for (std::size_t i = 0; i < metrics; ++i) sql += ",?";
  return sql + ")";
}

const char* const kAnalyze = R"sql(
ANALYZE monitoring_metrics;
ANALYZE monitoring_targets;
ANALYZE monitoring_tags;
ANALYZE tag_target_mapping;
ANALYZE trendprobe_steps;
ANALYZE trendprobe_ranks;
ANALYZE trendprobe_target_order;
ANALYZE trendprobe_metric_targets;
ANALYZE trendprobe_nonfinite;
ANALYZE trendprobe_planes;
ANALYZE trendprobe_tiles;
)sql";

}  // namespace trend_sql
}  // namespace trendprobe
