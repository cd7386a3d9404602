// The trend database's names and SQL, all of it: docs/format.md, "Trend database".
//
// The first six tables are msProbe's own, so that its viewer opens the file; the others are ours.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "writer/record.h"

namespace trendprobe {

inline constexpr std::int64_t kTrendApplicationId = 0x54505442;  // "TPTB"
inline constexpr std::int64_t kTrendFormatVersion = 1;
inline constexpr int kTrendPageSize = 16384;
/// msProbe's rows are cut to ± this, and an infinity is ± one more.
inline constexpr double kRowLimit = 1e9;

/// `dump_data.trend.db` or `monitor_data.trend.db`: msProbe's names.
std::string_view trend_file_name(RecordKind kind);

/// msProbe's metrics of a kind, in the order of its metric ids, which start at 1.
std::span<const std::string_view> trend_metrics(RecordKind kind);
/// msProbe's statistics of a kind, in the order of the columns of trend_data.
std::span<const std::string_view> trend_statistics(RecordKind kind);

/// A name as an SQL identifier, whatever is in it.
std::string quote_identifier(std::string_view name);

namespace trend_sql {

/// Run on an empty file before anything is written.
std::string prepare_new_file();

/// Every table but trend_data and global_stats, whose columns depend on the data.
extern const char* const kTables;

std::string create_trend_data(std::span<const std::string> statistics);
std::string add_statistic(std::string_view statistic);
inline constexpr std::string_view kTrendDataRoot =
    "SELECT rootpage FROM sqlite_schema WHERE name='trend_data'";

/// `metrics`: name and comma-separated statistics. The three numbers are parameters 0 to 2, then
/// one text a metric.
std::string create_global_stats(std::span<const std::pair<std::string, std::string>> metrics);
std::string insert_global_stats(std::size_t metrics);

inline constexpr std::string_view kInsertMetric =
    "INSERT INTO monitoring_metrics(metric_id, metric_name) VALUES(?,?)";
inline constexpr std::string_view kInsertTarget =
    "INSERT INTO monitoring_targets(target_id, target_name, vpp_stage, micro_step) "
    "VALUES(?,?,?,?)";
inline constexpr std::string_view kInsertTag =
    "INSERT INTO monitoring_tags(tag_id, tag_name, category, metric_id) VALUES(?,?,?,?)";
inline constexpr std::string_view kInsertTagTarget =
    "INSERT INTO tag_target_mapping(tag_id, target_id) VALUES(?,?)";
inline constexpr std::string_view kInsertInfo =
    "INSERT INTO trendprobe_info(key, value) VALUES(?,?)";
inline constexpr std::string_view kInsertStep =
    "INSERT INTO trendprobe_steps(step, training_step, micro_step) VALUES(?,?,?)";
inline constexpr std::string_view kInsertRank =
    "INSERT INTO trendprobe_ranks(rank, host, directory) VALUES(?,?,?)";
inline constexpr std::string_view kInsertSource =
    "INSERT INTO trendprobe_sources(source_id, format, rank, path, first_step, last_step, records, "
    "superseded) VALUES(?,?,?,?,?,?,?,?)";
inline constexpr std::string_view kInsertIssue =
    "INSERT INTO trendprobe_issues(issue_id, severity, path, location, what, kept) "
    "VALUES(?,?,?,?,?,?)";
inline constexpr std::string_view kInsertTargetOrder =
    "INSERT INTO trendprobe_target_order(target_id, position) VALUES(?,?)";
inline constexpr std::string_view kInsertMetricTarget =
    "INSERT INTO trendprobe_metric_targets(metric_id, column_index, target_id) VALUES(?,?,?)";
inline constexpr std::string_view kInsertNonFinite =
    "INSERT INTO trendprobe_nonfinite(step, rank, target_id, metric_id, statistic, value) "
    "VALUES(?,?,?,?,?,?)";
inline constexpr std::string_view kInsertPlane =
    "INSERT INTO trendprobe_planes(plane_id, metric_id, statistic) VALUES(?,?,?)";
inline constexpr std::string_view kPutTile =
    "INSERT OR REPLACE INTO trendprobe_tiles(tile_id, data) VALUES(?,?)";
inline constexpr std::string_view kGetTile = "SELECT data FROM trendprobe_tiles WHERE tile_id=?";

/// The first non-finite values by step, network order and rank. One parameter: how many.
inline constexpr std::string_view kFirstNonFinite =
    "SELECT n.step, s.training_step, s.micro_step, n.rank, m.metric_name, t.target_name, "
    "n.statistic, n.value FROM trendprobe_nonfinite n "
    "JOIN trendprobe_steps s ON s.step = n.step "
    "JOIN monitoring_metrics m ON m.metric_id = n.metric_id "
    "JOIN monitoring_targets t ON t.target_id = n.target_id "
    "JOIN trendprobe_target_order o ON o.target_id = n.target_id "
    // Within a step the forward pass comes first: gradients carry a value to every module before.
    "ORDER BY n.step, m.metric_name NOT IN ('forward', 'actv'), o.position, n.rank, n.metric_id, "
    "n.statistic LIMIT ?";

/// ANALYZE of every table but trend_data.
extern const char* const kAnalyze;
/// The planner's statistics of trend_data, counted while it was written: a scan of the whole table
/// would find the same.
inline constexpr std::string_view kInsertTrendDataStatistics =
    "INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES('trend_data', 'trend_data', ?)";

}  // namespace trend_sql
}  // namespace trendprobe
