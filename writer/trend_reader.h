// Reads a trend database: one of TrendProbe's, of any layout, or one that msProbe's data2db wrote.
//
// Belongs to one thread. Throws SqliteError (storage, damage) and FormatError (no trend database,
// newer version, contents that break docs/format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "writer/record.h"
#include "writer/sqlite_handle.h"
#include "writer/tile_builder.h"
#include "writer/trend_writer.h"

namespace trendprobe {

/// Throws FormatError if a trend database of TrendProbe has a newer format version than is known.
void require_known_trend_version(Database& database);

class TrendReader {
 public:
  explicit TrendReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return database_.path(); }
  RecordKind kind() const { return kind_; }
  /// False for a database of msProbe: it tells neither NaN from missing nor what was cut to ±1e9,
  /// and its steps have no training step (each is taken as one).
  bool is_ours() const { return is_ours_; }
  /// True if the values are those of the input, not the rounded ones of msProbe's rows.
  bool is_exact() const { return has_tiles_; }
  /// True if it holds msProbe's rows.
  bool has_rows() const { return has_rows_; }
  bool micro_steps() const { return micro_steps_; }

  /// The axes, ascending.
  const std::vector<TrendStep>& steps() const { return steps_; }
  const std::vector<TrendRank>& ranks() const { return ranks_; }
  /// All targets, in network order.
  const TargetTable& targets() const { return targets_; }
  const std::vector<Metric>& metrics() const { return metrics_; }
  /// Steps that are read best together: a tile's.
  std::size_t steps_a_block() const { return tile_shape_.steps; }
  /// How many records there are.
  std::uint64_t records() const { return records_; }

  /// The records of one rank and the steps [first_step, end_step), both by index, by step and
  /// metric; in each block the targets are in network order. A record whose every value is missing
  /// is there if the database has rows.
  std::vector<RecordBlock> read(std::size_t rank, std::size_t first_step, std::size_t end_step);

 private:
  /// A metric and where its values lie.
  struct MetricLayout {
    std::int64_t id = 0;
    std::vector<std::uint32_t> planes;    // by statistic
    std::vector<std::uint32_t> targets;   // by column; indices into targets_
    std::vector<std::int64_t> columns;    // by target; -1 = none
    std::vector<std::uint32_t> in_order;  // columns in network order
    std::vector<int> row_columns;         // by statistic: the column of select_rows_
  };
  /// The records of one metric while they are put together: [step][column][statistic].
  struct Values {
    std::vector<double> values;
    std::vector<std::uint8_t> present;
  };

  void read_info();
  void read_axes();
  void read_targets();
  void read_metrics();
  void read_columns();
  void read_tiles(std::size_t rank, std::size_t first_step, std::size_t end_step,
                  std::vector<Values>& all);
  void read_rows(std::size_t rank, std::size_t first_step, std::size_t end_step,
                 std::vector<Values>& all);
  void read_nonfinite(std::size_t rank, std::size_t first_step, std::size_t end_step,
                      std::vector<Values>& all);
  std::size_t metric_of(std::int64_t id) const;
  std::size_t step_index(std::int64_t step) const;
  std::size_t column_of(const MetricLayout& layout, std::int64_t target_id) const;
  [[noreturn]] void fail(const std::string& what) const;

  Database database_;
  RecordKind kind_ = RecordKind::kDump;
  bool is_ours_ = false;
  bool has_rows_ = false;
  bool has_tiles_ = false;
  bool micro_steps_ = true;
  TileShape tile_shape_;
  std::uint64_t records_ = 0;
  std::vector<TrendStep> steps_;
  std::vector<TrendRank> ranks_;
  TargetTable targets_;
  std::vector<std::pair<std::int64_t, std::uint32_t>> target_index_;  // by id, ascending
  std::vector<Metric> metrics_;
  std::vector<MetricLayout> layouts_;  // of metrics_
  std::vector<std::string> row_statistics_;
  Statement select_tile_;
  Statement select_rows_;
  Statement select_nonfinite_;
};

}  // namespace trendprobe
