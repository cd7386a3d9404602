#include "writer/trend_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "writer/block_encoding.h"
#include "writer/format_error.h"
#include "writer/statistic_list.h"
#include "writer/trend_schema.h"
#include "writer/value_encoding.h"

namespace trendprobe {
void require_known_trend_version(Database& database) {
  const std::int64_t version = database.query_integer("PRAGMA user_version");
  if (version <= kTrendFormatVersion) return;
  throw FormatError(database.path(), "trend database format version " + std::to_string(version) +
                                         "; this TrendProbe (" + TRENDPROBE_VERSION +
                                         ") reads up to version " +
                                         std::to_string(kTrendFormatVersion) + ": update it");
}

TrendReader::TrendReader(const std::filesystem::path& path) : database_(path, OpenOptions{}) {
  const std::int64_t application = database_.query_integer("PRAGMA application_id");
  is_ours_ = application == kTrendApplicationId;
  if (!is_ours_ && (application != 0 || !database_.has_table("monitoring_targets") ||
                    !database_.has_table("trend_data"))) {
    fail("is no trend database");
  }
  // One read transaction: everything below sees one state of the file.
  database_.execute("BEGIN");
  if (is_ours_) read_info();
  if (!is_ours_) has_rows_ = true;
  read_targets();
  read_metrics();
  read_axes();
  read_columns();
}

void TrendReader::fail(const std::string& what) const { throw FormatError(path(), what); }

void TrendReader::read_info() {
  require_known_trend_version(database_);
  std::map<std::string, std::string> info;
  Statement select = database_.prepare("SELECT key, CAST(value AS TEXT) FROM trendprobe_info");
  while (select.step()) info.emplace(select.text(0), select.text(1));
  const auto number = [&](const char* key) {
    const auto found = info.find(key);
    const bool is_number = found != info.end() && !found->second.empty() &&
                           found->second.find_first_not_of("0123456789") == std::string::npos &&
                           found->second.size() < 19;
    if (!is_number) fail(std::string("trendprobe_info has no number ") + key);
    return std::stoll(found->second);
  };
  const auto size = [&](const char* key) {
    const long long value = number(key);
    if (value < 1 || value > 1 << 20) fail(std::string("trendprobe_info: wrong ") + key);
    return static_cast<std::uint32_t>(value);
  };
  kind_ = info["kind"] == "monitor" ? RecordKind::kMonitor : RecordKind::kDump;
  micro_steps_ = info["micro_step"] != "false";
  has_rows_ = info["layout"] != "tiles";
  has_tiles_ = info["layout"] != "rows";
  records_ = static_cast<std::uint64_t>(number("records"));
  tile_shape_ = {size("tile_targets"), size("tile_ranks"), size("tile_steps")};
}

void TrendReader::read_targets() {
  Statement select = database_.prepare(
      is_ours_ ? "SELECT target_id, target_name, vpp_stage, micro_step FROM monitoring_targets "
                 "JOIN trendprobe_target_order USING (target_id) ORDER BY position"
               : "SELECT target_id, target_name, vpp_stage, micro_step FROM monitoring_targets "
                 "ORDER BY target_id");
  while (select.step()) {
    const std::uint32_t index =
        targets_.intern(select.text(1), select.integer32(2), select.integer32(3));
    target_index_.emplace_back(select.integer(0), index);
  }
  std::sort(target_index_.begin(), target_index_.end());
}

void TrendReader::read_metrics() {
  if (has_rows_) {
    Statement columns = database_.prepare("SELECT name FROM pragma_table_info('trend_data')");
    while (columns.step()) row_statistics_.emplace_back(columns.text(0));
    const auto end_of_key =
        row_statistics_.begin() + std::min<std::ptrdiff_t>(4, std::ssize(row_statistics_));
    row_statistics_.erase(row_statistics_.begin(), end_of_key);
  }
  Statement select =
      database_.prepare("SELECT metric_id, metric_name FROM monitoring_metrics ORDER BY metric_id");
  while (select.step()) {
    MetricLayout& layout = layouts_.emplace_back();
    layout.id = select.integer(0);
    metrics_.push_back({kind_, std::string(select.text(1)), {}});
  }
  if (!is_ours_) {
    const std::span<const std::string_view> known = trend_metrics(RecordKind::kMonitor);
    for (const Metric& metric : metrics_) {
      if (std::find(known.begin(), known.end(), metric.name) != known.end()) {
        kind_ = RecordKind::kMonitor;
      }
    }
    for (Metric& metric : metrics_) metric.kind = kind_;
  }
  const bool has_global_stats = database_.has_table("global_stats");
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    std::vector<std::string>& statistics = metrics_[i].statistics;
    if (has_tiles_) {
      Statement planes = database_.prepare(
          "SELECT plane_id, statistic FROM trendprobe_planes WHERE metric_id=? ORDER BY plane_id");
      planes.bind(0, layouts_[i].id);
      while (planes.step()) {
        layouts_[i].planes.push_back(static_cast<std::uint32_t>(planes.integer(0)));
        statistics.emplace_back(planes.text(1));
      }
      continue;
    }
    if (has_global_stats) {
      Statement listed = database_.prepare("SELECT * FROM global_stats");
      while (listed.step()) {
        for (int column = 3; column < listed.column_count(); ++column) {
          if (listed.column_name(column) == metrics_[i].name)
            statistics = split_statistics(listed.text(column));
        }
      }
    }
    std::erase_if(statistics, [this](const std::string& name) {
      return std::find(row_statistics_.begin(), row_statistics_.end(), name) ==
             row_statistics_.end();
    });
    if (statistics.empty()) statistics = row_statistics_;
  }
}

void TrendReader::read_axes() {
  if (is_ours_) {
    Statement select = database_.prepare(
        "SELECT step, training_step, micro_step FROM trendprobe_steps ORDER BY step");
    while (select.step()) {
      steps_.push_back({select.integer(0), select.integer(1), select.integer32(2)});
    }
    Statement ranks =
        database_.prepare("SELECT rank, host, directory FROM trendprobe_ranks ORDER BY rank");
    while (ranks.step()) {
      ranks_.push_back(
          {ranks.integer32(0), std::string(ranks.text(1)), std::string(ranks.text(2))});
    }
    return;
  }
  std::vector<std::int64_t> steps;
  Statement select = database_.prepare(
      "SELECT rank, step, count(*) FROM trend_data GROUP BY rank, step ORDER BY rank, step");
  while (select.step()) {
    if (ranks_.empty() || ranks_.back().rank != select.integer(0)) {
      ranks_.push_back({select.integer32(0), {}, {}});
    }
    steps.push_back(select.integer(1));
    records_ += static_cast<std::uint64_t>(select.integer(2));
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  for (const std::int64_t step : steps) steps_.push_back({step, step, 0});
}

void TrendReader::read_columns() {
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    MetricLayout& layout = layouts_[i];
    if (is_ours_) {
      Statement select = database_.prepare(
          "SELECT column_index, target_id FROM trendprobe_metric_targets WHERE metric_id=? "
          "ORDER BY column_index");
      select.bind(0, layout.id);
      while (select.step()) {
        const auto place = std::lower_bound(target_index_.begin(), target_index_.end(),
                                            std::pair(select.integer(1), std::uint32_t{0}));
        if (select.integer(0) != std::ssize(layout.targets) || place == target_index_.end() ||
            place->first != select.integer(1)) {
          fail("trendprobe_metric_targets: wrong column " + std::to_string(select.integer(0)) +
               " of metric " + metrics_[i].name);
        }
        layout.targets.push_back(place->second);
      }
    } else {
      for (std::uint32_t target = 0; target < targets_.size(); ++target) {
        layout.targets.push_back(target);
      }
    }
    layout.columns.assign(targets_.size(), -1);
    for (std::size_t column = 0; column < layout.targets.size(); ++column) {
      layout.columns[layout.targets[column]] = static_cast<std::int64_t>(column);
      layout.in_order.push_back(static_cast<std::uint32_t>(column));
    }
    std::sort(
        layout.in_order.begin(), layout.in_order.end(),
        [&](std::uint32_t a, std::uint32_t b) { return layout.targets[a] < layout.targets[b]; });
    for (const std::string& statistic : metrics_[i].statistics) {
      const auto place = std::find(row_statistics_.begin(), row_statistics_.end(), statistic);
      layout.row_columns.push_back(place == row_statistics_.end()
                                       ? -1
                                       : static_cast<int>(place - row_statistics_.begin()) + 3);
    }
  }
  if (has_tiles_) select_tile_ = database_.prepare(trend_sql::kGetTile);
  if (has_rows_) {
    std::string sql = "SELECT step, target_id, metric_id";
    for (const std::string& name : row_statistics_) sql += ", " + quote_identifier(name);
    select_rows_ = database_.prepare(
        sql + " FROM trend_data WHERE rank=? AND step BETWEEN ? AND ? ORDER BY step, target_id");
  }
  if (is_ours_ && !has_tiles_) {
    select_nonfinite_ = database_.prepare(
        "SELECT step, target_id, metric_id, statistic, value FROM trendprobe_nonfinite "
        "WHERE step BETWEEN ? AND ? AND rank=?");
  }
}

std::size_t TrendReader::metric_of(std::int64_t id) const {
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    if (layouts_[i].id == id) return i;
  }
  fail("trend_data: metric " + std::to_string(id) + " is not in monitoring_metrics");
}

std::size_t TrendReader::step_index(std::int64_t step) const {
  const auto place = std::lower_bound(
      steps_.begin(), steps_.end(), step,
      [](const TrendStep& entry, std::int64_t value) { return entry.step < value; });
  if (place == steps_.end() || place->step != step) {
    fail("step " + std::to_string(step) + " is not in trendprobe_steps");
  }
  return static_cast<std::size_t>(place - steps_.begin());
}

std::size_t TrendReader::column_of(const MetricLayout& layout, std::int64_t target_id) const {
  const auto place = std::lower_bound(target_index_.begin(), target_index_.end(),
                                      std::pair(target_id, std::uint32_t{0}));
  if (place == target_index_.end() || place->first != target_id ||
      layout.columns[place->second] < 0) {
    fail("target " + std::to_string(target_id) + " of metric " + std::to_string(layout.id) +
         " is not in monitoring_targets or trendprobe_metric_targets");
  }
  return static_cast<std::size_t>(layout.columns[place->second]);
}

void TrendReader::read_tiles(std::size_t rank, std::size_t first_step, std::size_t end_step,
                             std::vector<Values>& all) {
  const auto blocks = [](std::size_t count, std::size_t size) { return (count + size - 1) / size; };
  const std::size_t rank_blocks = blocks(ranks_.size(), tile_shape_.ranks);
  const std::size_t step_blocks = blocks(steps_.size(), tile_shape_.steps);
  const std::size_t rank_block = rank / tile_shape_.ranks;
  const std::size_t row = rank % tile_shape_.ranks;
  const std::size_t rows =
      std::min<std::size_t>(tile_shape_.ranks, ranks_.size() - rank_block * tile_shape_.ranks);
  std::vector<double> tile;
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    const MetricLayout& layout = layouts_[i];
    const std::size_t width = layout.planes.size();
    const std::size_t columns = layout.targets.size();
    for (std::size_t statistic = 0; statistic < width; ++statistic) {
      for (std::size_t step_block = first_step / tile_shape_.steps;
           step_block * tile_shape_.steps < end_step; ++step_block) {
        const std::size_t block_first = step_block * tile_shape_.steps;
        const std::size_t depth =
            std::min<std::size_t>(tile_shape_.steps, steps_.size() - block_first);
        for (std::size_t target_block = 0; target_block * tile_shape_.targets < columns;
             ++target_block) {
          const std::size_t first_column = target_block * tile_shape_.targets;
          const std::size_t count =
              std::min<std::size_t>(tile_shape_.targets, columns - first_column);
          const std::int64_t id = tile_id(layout.planes[statistic], target_block, rank_block,
                                          step_block, rank_blocks, step_blocks);
          select_tile_.bind(0, id);
          if (!select_tile_.step()) {
            select_tile_.reset();
            continue;
          }
          if (!decode_values(select_tile_.blob(0), count * rows * depth, tile)) {
            const std::size_t found = select_tile_.blob(0).size();
            select_tile_.reset();
            fail("trendprobe_tiles: tile " + std::to_string(id) + " has " + std::to_string(found) +
                 " bytes for " + std::to_string(count * rows * depth) + " values");
          }
          select_tile_.reset();
          const std::size_t begin = std::max(first_step, block_first);
          const std::size_t end = std::min(end_step, block_first + depth);
          for (std::size_t step = begin; step < end; ++step) {
            const double* const from = tile.data() + ((step - block_first) * rows + row) * count;
            const std::size_t to = (step - first_step) * columns + first_column;
            for (std::size_t k = 0; k < count; ++k) {
              all[i].values[(to + k) * width + statistic] = from[k];
              if (!is_missing(from[k])) all[i].present[to + k] = 1;
            }
          }
        }
      }
    }
  }
}

void TrendReader::read_rows(std::size_t rank, std::size_t first_step, std::size_t end_step,
                            std::vector<Values>& all) {
  select_rows_.bind(0, ranks_[rank].rank)
      .bind(1, steps_[first_step].step)
      .bind(2, steps_[end_step - 1].step);
  while (select_rows_.step()) {
    const std::size_t metric = metric_of(select_rows_.integer(2));
    const MetricLayout& layout = layouts_[metric];
    const std::size_t place =
        (step_index(select_rows_.integer(0)) - first_step) * layout.targets.size() +
        column_of(layout, select_rows_.integer(1));
    all[metric].present[place] = 1;
    if (has_tiles_) continue;
    const std::size_t width = layout.row_columns.size();
    for (std::size_t statistic = 0; statistic < width; ++statistic) {
      const int column = layout.row_columns[statistic];
      if (column < 0 || select_rows_.is_null(column)) continue;
      const double value = select_rows_.real(column);
      all[metric].values[place * width + statistic] =
          std::fabs(value) == kRowLimit + 1
              ? std::copysign(std::numeric_limits<double>::infinity(), value)
              : value;
    }
  }
  select_rows_.reset();
}

void TrendReader::read_nonfinite(std::size_t rank, std::size_t first_step, std::size_t end_step,
                                 std::vector<Values>& all) {
  select_nonfinite_.bind(0, steps_[first_step].step)
      .bind(1, steps_[end_step - 1].step)
      .bind(2, ranks_[rank].rank);
  while (select_nonfinite_.step()) {
    const std::size_t metric = metric_of(select_nonfinite_.integer(2));
    const MetricLayout& layout = layouts_[metric];
    const std::vector<std::string>& statistics = metrics_[metric].statistics;
    const auto statistic =
        std::find(statistics.begin(), statistics.end(), select_nonfinite_.text(3));
    if (statistic == statistics.end()) continue;
    const std::size_t place =
        (step_index(select_nonfinite_.integer(0)) - first_step) * layout.targets.size() +
        column_of(layout, select_nonfinite_.integer(1));
    const std::string_view value = select_nonfinite_.text(4);
    all[metric].values[place * statistics.size() +
                       static_cast<std::size_t>(statistic - statistics.begin())] =
        value == "NaN"    ? std::numeric_limits<double>::quiet_NaN()
        : value == "-inf" ? -std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::infinity();
    all[metric].present[place] = 1;
  }
  select_nonfinite_.reset();
}

std::vector<RecordBlock> TrendReader::read(std::size_t rank, std::size_t first_step,
                                           std::size_t end_step) {
  std::vector<RecordBlock> blocks;
  if (first_step >= end_step) return blocks;
  std::vector<Values> all(layouts_.size());
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    const std::size_t records = (end_step - first_step) * layouts_[i].targets.size();
    all[i].values.assign(records * metrics_[i].statistics.size(), kMissing);
    all[i].present.assign(records, 0);
  }
  if (has_tiles_) read_tiles(rank, first_step, end_step, all);
  if (has_rows_) read_rows(rank, first_step, end_step, all);
  if (is_ours_ && !has_tiles_) read_nonfinite(rank, first_step, end_step, all);
  for (std::size_t step = first_step; step < end_step; ++step) {
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const MetricLayout& layout = layouts_[i];
      const std::size_t width = metrics_[i].statistics.size();
      RecordBlock block;
      block.training_step = steps_[step].training_step;
      block.micro_step = steps_[step].micro_step;
      block.metric = static_cast<std::uint32_t>(i);
      for (const std::uint32_t column : layout.in_order) {
        const std::size_t place = (step - first_step) * layout.targets.size() + column;
        if (all[i].present[place] == 0) continue;
        block.targets.push_back(layout.targets[column]);
        const auto values = all[i].values.begin() + static_cast<std::ptrdiff_t>(place * width);
        block.values.insert(block.values.end(), values,
                            values + static_cast<std::ptrdiff_t>(width));
      }
      if (!block.targets.empty()) blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

}  // namespace trendprobe
