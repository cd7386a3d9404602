// Reads a trend database by docs/format.md alone, for comparison with what a test expects in it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "writer/block_encoding.h"
#include "writer/sqlite_handle.h"
#include "writer/value_encoding.h"

namespace trendprobe {

class TrendDatabase {
 public:
  /// rank, global step, metric, target name, vpp stage, call, statistic
  using Cell = std::tuple<std::int64_t, std::int64_t, std::string, std::string, std::int64_t,
                          std::int64_t, std::string>;

  explicit TrendDatabase(const std::filesystem::path& path)
      : database_(path, OpenOptions{.mode = OpenMode::kReadOnly}) {}

  Database& sql() { return database_; }

  /// The rows of a query, their columns as text, joined by '|'.
  std::vector<std::string> rows(const std::string& query) {
    std::vector<std::string> lines;
    Statement select = database_.prepare(query);
    while (select.step()) {
      std::string line;
      for (int column = 0; column < select.column_count(); ++column) {
        if (column != 0) line += '|';
        line += select.is_null(column) ? "NULL" : std::string(select.text(column));
      }
      lines.push_back(std::move(line));
    }
    return lines;
  }

  std::string info(const std::string& key) {
    const std::vector<std::string> found =
        rows("SELECT value FROM trendprobe_info WHERE key='" + key + "'");
    return found.empty() ? "" : found.front();
  }

  /// Every value in trend_data; NULL is kMissing.
  std::map<Cell, double> row_values() {
    std::map<Cell, double> values;
    Statement select = database_.prepare(
        "SELECT d.*, m.metric_name, t.target_name, t.vpp_stage, t.micro_step FROM trend_data d "
        "JOIN monitoring_metrics m USING(metric_id) JOIN monitoring_targets t USING(target_id)");
    while (select.step()) {
      const int columns = select.column_count();
      for (int i = 4; i < columns - 4; ++i) {
        values[{select.integer(0), select.integer(1), std::string(select.text(columns - 4)),
                std::string(select.text(columns - 3)), select.integer(columns - 2),
                select.integer(columns - 1), select.column_name(i)}] =
            select.is_null(i) ? kMissing : select.real(i);
      }
    }
    return values;
  }

  /// Every value in the tiles that is not missing.
  std::map<Cell, double> tile_values() {
    const std::vector<std::int64_t> steps =
        integers("SELECT step FROM trendprobe_steps ORDER BY step");
    const std::vector<std::int64_t> ranks =
        integers("SELECT rank FROM trendprobe_ranks ORDER BY rank");
    const auto tile_targets = static_cast<std::size_t>(std::stoll(info("tile_targets")));
    const auto tile_ranks = static_cast<std::size_t>(std::stoll(info("tile_ranks")));
    const auto tile_steps = static_cast<std::size_t>(std::stoll(info("tile_steps")));
    const std::size_t rank_blocks = (ranks.size() + tile_ranks - 1) / tile_ranks;
    const std::size_t step_blocks = (steps.size() + tile_steps - 1) / tile_steps;
    std::map<Cell, double> values;
    Statement plane = database_.prepare(
        "SELECT plane_id, metric_id, metric_name, statistic FROM trendprobe_planes "
        "JOIN monitoring_metrics USING(metric_id)");
    while (plane.step()) {
      struct Column {
        std::string name;
        std::int64_t vpp_stage;
        std::int64_t call;
      };
      std::vector<Column> columns;
      Statement column = database_.prepare(
          "SELECT target_name, vpp_stage, micro_step FROM trendprobe_metric_targets "
          "JOIN monitoring_targets USING(target_id) WHERE metric_id=? ORDER BY column_index");
      column.bind(0, plane.integer(1));
      while (column.step()) {
        columns.push_back({std::string(column.text(0)), column.integer(1), column.integer(2)});
      }
      Statement tile =
          database_.prepare("SELECT tile_id, data FROM trendprobe_tiles WHERE tile_id >> 40 = ?");
      tile.bind(0, plane.integer(0));
      while (tile.step()) {
        const auto position =
            static_cast<std::size_t>(tile.integer(0) & ((std::int64_t{1} << 40) - 1));
        const std::size_t sb = position % step_blocks;
        const std::size_t rb = position / step_blocks % rank_blocks;
        const std::size_t tb = position / step_blocks / rank_blocks;
        const std::size_t nt = std::min(tile_targets, columns.size() - tb * tile_targets);
        const std::size_t nr = std::min(tile_ranks, ranks.size() - rb * tile_ranks);
        const std::size_t ns = std::min(tile_steps, steps.size() - sb * tile_steps);
        std::vector<double> decoded;
        if (!decode_values(tile.blob(1), nt * nr * ns, decoded))
          throw std::runtime_error("tile size");
        for (std::size_t i = 0; i < decoded.size(); ++i) {
          if (is_missing(decoded[i])) continue;
          const Column& target = columns[tb * tile_targets + i % nt];
          values[{ranks[rb * tile_ranks + i / nt % nr], steps[sb * tile_steps + i / nt / nr],
                  std::string(plane.text(2)), target.name, target.vpp_stage, target.call,
                  std::string(plane.text(3))}] = decoded[i];
        }
      }
    }
    return values;
  }

 private:
  std::vector<std::int64_t> integers(const std::string& query) {
    std::vector<std::int64_t> found;
    Statement select = database_.prepare(query);
    while (select.step()) found.push_back(select.integer(0));
    return found;
  }

  Database database_;
};

}  // namespace trendprobe
