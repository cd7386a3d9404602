// Writes one trend database: docs/format.md, "Trend database".
//
// SQLite writes every table but trend_data, whose pages we write ourselves; the two take turns at
// the file. The file is made beside its final name; close() hands it out for whoever moves it
// there. Belongs to one thread. Every method throws SqliteError when the storage fails, after which
// only the destructor may be called.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "writer/btree_builder.h"
#include "writer/page_appender.h"
#include "writer/record.h"
#include "writer/replacement_file.h"
#include "writer/sqlite_handle.h"
#include "writer/tile_builder.h"

namespace trendprobe {

/// One global step.
struct TrendStep {
  std::int64_t step = 0;
  std::int64_t training_step = 0;
  std::int32_t micro_step = 0;
};

struct TrendRank {
  std::int32_t rank = 0;
  std::string host;
  std::string directory;
};

struct TrendOptions {
  RecordKind kind = RecordKind::kDump;
  /// Which of msProbe's rows and our tiles the database holds; at least one.
  bool write_rows = true;
  bool write_tiles = true;
  TileShape tile_shape;
  /// trendprobe_info: `numbering` and `micro_step`.
  bool as_msprobe = false;
  bool micro_steps = true;
  /// The axes, ascending. Fixed from the start: a tile's place depends on them.
  std::vector<TrendStep> steps;
  std::vector<TrendRank> ranks;
  /// Name of a registered SQLite VFS; empty = the default. For fault injection.
  std::string vfs;
};

/// One record; `metric` is a handle from add_metric(), `values` one value a statistic of it,
/// borrowed for the call.
struct TrendRecord {
  /// Index into the TargetTable; the target's id less 1.
  std::uint32_t target = 0;
  std::uint32_t metric = 0;
  const double* values = nullptr;
};

/// A row of trendprobe_sources.
struct TrendSource {
  std::string format;
  std::int32_t rank = 0;
  std::string path;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::uint64_t records = 0;
  std::uint64_t superseded = 0;
};

/// A row of trendprobe_issues.
struct TrendIssue {
  std::string severity;
  std::string path;
  std::string location;
  std::string what;
  std::string kept;
};

/// What is known only once all records are written.
struct TrendSummary {
  /// msProbe's global_stats.
  std::int64_t max_rank = 0;
  std::int64_t min_step = 0;
  std::int64_t max_step = 0;
  /// Every target, as indices into the TargetTable, in network order.
  std::vector<std::uint32_t> network_order;
  std::vector<TrendSource> sources;
  std::vector<TrendIssue> issues;
};

/// A non-finite value, names resolved.
struct TrendNonFinite {
  TrendStep step;
  std::int32_t rank = 0;
  std::string metric;
  std::string target;
  std::string statistic;
  /// "NaN", "+inf" or "-inf".
  std::string value;
};

class TrendWriter {
 public:
  /// Creates `database`'s temporary file. Throws BusyError when somebody else is writing it.
  TrendWriter(const std::filesystem::path& database, TrendOptions options);
  TrendWriter(const TrendWriter&) = delete;
  TrendWriter& operator=(const TrendWriter&) = delete;
  /// Removes the temporary file unless close() was reached.
  ~TrendWriter();

  /// A handle for records with exactly these statistics. Two metrics of one name share its id.
  std::uint32_t add_metric(const Metric& metric);
  /// The id behind a handle: the order of records asks for it.
  std::uint32_t metric_id(std::uint32_t handle) const { return layouts_[handle].metric_id; }

  /// Adds the records of one (rank index, step index). REQUIRES: after all earlier (rank, step), in
  /// this order; records ascending by (target, metric id), no two with the same.
  void append(std::size_t rank, std::size_t step, std::span<const TrendRecord> records);

  /// Writes everything else and commits. Call once, after the last append().
  void finish(const TargetTable& targets, const TrendSummary& summary);
  /// By step, network order and rank. After finish().
  std::vector<TrendNonFinite> first_nonfinite(std::size_t limit);
  /// Closes the database and gives it away: publish() of the result moves it to its final name.
  /// After finish(), as the last call.
  std::unique_ptr<ReplacementFile> close();

  std::uint64_t records() const { return records_; }
  std::uint64_t nonfinite_values() const { return nonfinite_values_; }
  const std::filesystem::path& path() const { return file_->final_path(); }

  /// For each metric id that has records: its name and its targets in column order.
  struct MetricTargets {
    std::uint32_t metric_id = 0;
    std::string name;
    std::vector<std::uint32_t> targets;
  };
  std::vector<MetricTargets> metric_targets() const;

 private:
  /// A metric of one name.
  struct MetricState {
    std::uint32_t id = 0;
    std::string name;
    std::vector<std::uint32_t> statistics;       // indices into statistics_, in the order they came
    std::vector<std::uint32_t> planes;           // plane id of each of them
    std::vector<std::int32_t> column_of_target;  // by target index; -1 = none yet
    std::vector<std::uint32_t> targets;          // by column
  };
  /// How the records of one handle map to the columns of the database.
  struct Layout {
    std::uint32_t metric_id = 0;
    std::size_t metric = 0;                 // index into metrics_
    std::vector<std::uint32_t> statistics;  // index into statistics_ of each value
    std::vector<std::uint32_t> planes;      // plane id of each value
    std::vector<std::size_t> columns;       // place of each value among trend_data's statistics
    bool is_row = false;                    // the values are those of a row, in order
  };
  struct NonFinite {
    std::int64_t step;
    std::int32_t rank;
    std::uint32_t target;
    std::uint32_t metric_id;
    std::uint32_t statistic;
    double value;
  };
  class SqlTileStore;
  struct SqliteTurn;

  /// SQLite's turn at the file, which ends the appender's.
  SqliteTurn& sqlite();
  /// The appender's turn, which ends SQLite's.
  PageAppender& pages();

  std::size_t metric_state(const std::string& name);
  std::uint32_t statistic_index(const std::string& name);
  void create_trend_data();
  void map_columns();
  void append_row(std::int32_t rank, std::int64_t step, const TrendRecord& record);
  void flush_nonfinite();
  void write_axes();
  void write_targets(const TargetTable& targets, const TrendSummary& summary);
  void write_metrics();
  void write_tags(const TargetTable& targets);
  void write_global_stats(const TrendSummary& summary);
  void write_provenance(const TrendSummary& summary);
  void analyze();
  std::vector<std::string> statistics_of(const MetricState& metric) const;

  std::unique_ptr<ReplacementFile> file_;
  TrendOptions options_;
  // One of the two at most.
  std::unique_ptr<SqliteTurn> sqlite_;
  std::optional<PageAppender> pages_;

  std::vector<std::string> statistics_;  // of all metrics, in the order they came
  std::vector<std::size_t>
      column_of_;  // place of each among trend_data's statistics, once that exists
  std::uint32_t trend_data_root_ = 0;  // its page; 0 = the table does not exist yet
  std::vector<MetricState> metrics_;
  std::vector<Layout> layouts_;
  std::vector<Metric> layout_metrics_;  // what each layout was made for
  std::uint32_t next_plane_ = 1;

  BTreeBuilder rows_;
  std::vector<double> row_values_;
  std::vector<std::byte> row_record_;

  std::unique_ptr<SqlTileStore> tile_store_;
  std::unique_ptr<TileBuilder> tiles_;

  std::vector<NonFinite> nonfinite_;
  std::uint64_t records_ = 0;
  std::uint64_t nonfinite_values_ = 0;
  // Distinct prefixes of trend_data's key, for the planner.
  std::uint64_t distinct_ranks_ = 0;
  std::uint64_t distinct_steps_ = 0;
  std::uint64_t distinct_targets_ = 0;
  std::size_t last_rank_ = static_cast<std::size_t>(-1);
};

}  // namespace trendprobe
