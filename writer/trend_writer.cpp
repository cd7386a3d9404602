#include "writer/trend_writer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "writer/row_record.h"
#include "writer/statistic_list.h"
#include "writer/tags.h"
#include "writer/trend_schema.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

// Non-finite values are kept back to be inserted in key order; this many are 40 MiB.
constexpr std::size_t kNonFiniteBuffer = std::size_t{1} << 20;

std::string_view nonfinite_name(double value) {
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "+inf" : "-inf";
}

std::size_t rank_among(std::span<const std::string_view> known, std::string_view name) {
  return static_cast<std::size_t>(std::find(known.begin(), known.end(), name) - known.begin());
}

}  // namespace

/// A connection, its transaction, and the statements that are run often.
struct TrendWriter::SqliteTurn {
  SqliteTurn(const std::filesystem::path& path, OpenMode mode, const std::string& vfs)
      : database(path, {.mode = mode, .without_locks = true, .disposable = true, .vfs = vfs}) {
    if (mode == OpenMode::kCreateNew) database.execute(trend_sql::prepare_new_file());
    database.execute("PRAGMA cache_size=-16384");
    transaction.emplace(database);
  }

  void close() {
    put_tile.reset();
    get_tile.reset();
    insert_nonfinite.reset();
    database.close();
  }

  Database database;
  std::optional<Transaction> transaction;
  // Prepared on first use.
  std::optional<Statement> put_tile;
  std::optional<Statement> get_tile;
  std::optional<Statement> insert_nonfinite;
};

class TrendWriter::SqlTileStore : public TileStore {
 public:
  explicit SqlTileStore(TrendWriter& writer) : writer_(writer) {}

  void put(std::int64_t tile_id, std::span<const std::byte> data) override {
    SqliteTurn& turn = writer_.sqlite();
    if (!turn.put_tile) turn.put_tile = turn.database.prepare(trend_sql::kPutTile);
    turn.put_tile->bind(0, tile_id).bind_blob(1, data).run();
  }

  std::vector<std::byte> get(std::int64_t tile_id) override {
    SqliteTurn& turn = writer_.sqlite();
    if (!turn.get_tile) turn.get_tile = turn.database.prepare(trend_sql::kGetTile);
    turn.get_tile->bind(0, tile_id);
    std::vector<std::byte> data;
    if (turn.get_tile->step()) {
      const std::span<const std::byte> blob = turn.get_tile->blob(0);
      data.assign(blob.begin(), blob.end());
    }
    turn.get_tile->reset();
    return data;
  }

 private:
  TrendWriter& writer_;
};

TrendWriter::TrendWriter(const std::filesystem::path& database, TrendOptions options)
    : file_(std::make_unique<ReplacementFile>(database)),
      options_(std::move(options)),
      rows_(kTrendPageSize) {
  sqlite_ = std::make_unique<SqliteTurn>(file_->temporary(), OpenMode::kCreateNew, options_.vfs);
  sqlite_->database.execute(trend_sql::kTables);
  if (options_.write_tiles) {
    tile_store_ = std::make_unique<SqlTileStore>(*this);
    tiles_ = std::make_unique<TileBuilder>(options_.tile_shape, options_.ranks.size(),
                                           options_.steps.size(), *tile_store_);
  }
}

TrendWriter::~TrendWriter() = default;

TrendWriter::SqliteTurn& TrendWriter::sqlite() {
  if (sqlite_ == nullptr) {
    if (pages_) pages_->finish();
    pages_.reset();
    sqlite_ = std::make_unique<SqliteTurn>(file_->temporary(), OpenMode::kReadWrite, options_.vfs);
  }
  return *sqlite_;
}

PageAppender& TrendWriter::pages() {
  if (!pages_) {
    if (sqlite_ != nullptr) {
      sqlite_->transaction->commit();
      sqlite_->close();
    }
    sqlite_.reset();
    pages_.emplace(file_->temporary(), options_.vfs);
  }
  return *pages_;
}

std::size_t TrendWriter::metric_state(const std::string& name) {
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    if (metrics_[i].name == name) return i;
  }
  const std::span<const std::string_view> known = trend_metrics(options_.kind);
  const std::size_t place = rank_among(known, name);
  std::uint32_t id = static_cast<std::uint32_t>(place) + 1;
  if (place == known.size()) {
    for (const MetricState& metric : metrics_) id = std::max(id, metric.id + 1);
  }
  MetricState& metric = metrics_.emplace_back();
  metric.id = id;
  metric.name = name;
  return metrics_.size() - 1;
}

std::uint32_t TrendWriter::statistic_index(const std::string& name) {
  const auto found = std::find(statistics_.begin(), statistics_.end(), name);
  if (found != statistics_.end()) {
    return static_cast<std::uint32_t>(found - statistics_.begin());
  }
  if (trend_data_root_ != 0) {
    sqlite().database.execute(trend_sql::add_statistic(name));
    column_of_.push_back(statistics_.size());
  }
  statistics_.push_back(name);
  return static_cast<std::uint32_t>(statistics_.size()) - 1;
}

std::uint32_t TrendWriter::add_metric(const Metric& metric) {
  const auto known = std::find(layout_metrics_.begin(), layout_metrics_.end(), metric);
  if (known != layout_metrics_.end()) {
    return static_cast<std::uint32_t>(known - layout_metrics_.begin());
  }
  Layout layout;
  layout.metric = metric_state(metric.name);
  MetricState& state = metrics_[layout.metric];
  layout.metric_id = state.id;
  for (const std::string& name : metric.statistics) {
    const std::uint32_t statistic = statistic_index(name);
    const auto found = std::find(state.statistics.begin(), state.statistics.end(), statistic);
    const auto place = static_cast<std::size_t>(found - state.statistics.begin());
    if (found == state.statistics.end()) {
      state.statistics.push_back(statistic);
      state.planes.push_back(next_plane_++);
    }
    layout.statistics.push_back(statistic);
    layout.planes.push_back(state.planes[place]);
  }
  layouts_.push_back(std::move(layout));
  layout_metrics_.push_back(metric);
  if (trend_data_root_ != 0) map_columns();
  return static_cast<std::uint32_t>(layouts_.size()) - 1;
}

void TrendWriter::create_trend_data() {
  const std::span<const std::string_view> known = trend_statistics(options_.kind);
  if (options_.kind == RecordKind::kDump) {
    for (const std::string_view name : known) statistic_index(std::string(name));
  }
  std::vector<std::size_t> order(statistics_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return rank_among(known, statistics_[a]) < rank_among(known, statistics_[b]);
  });
  std::vector<std::string> columns;
  column_of_.resize(statistics_.size());
  for (const std::size_t statistic : order) {
    column_of_[statistic] = columns.size();
    columns.push_back(statistics_[statistic]);
  }
  Database& database = sqlite().database;
  database.execute(trend_sql::create_trend_data(columns));
  trend_data_root_ =
      static_cast<std::uint32_t>(database.query_integer(std::string(trend_sql::kTrendDataRoot)));
  map_columns();
}

void TrendWriter::map_columns() {
  for (Layout& layout : layouts_) {
    layout.columns.clear();
    layout.is_row = layout.statistics.size() == statistics_.size();
    for (const std::uint32_t statistic : layout.statistics) {
      layout.is_row = layout.is_row && column_of_[statistic] == layout.columns.size();
      layout.columns.push_back(column_of_[statistic]);
    }
  }
}

void TrendWriter::append(std::size_t rank, std::size_t step, std::span<const TrendRecord> records) {
  if (records.empty()) return;
  if (trend_data_root_ == 0) create_trend_data();
  if (tiles_ != nullptr) tiles_->begin(rank, step);
  const std::int32_t rank_number = options_.ranks[rank].rank;
  const std::int64_t step_number = options_.steps[step].step;
  if (rank != last_rank_) ++distinct_ranks_;
  last_rank_ = rank;
  ++distinct_steps_;
  std::uint32_t last_target = ~records.front().target;
  for (const TrendRecord& record : records) {
    const Layout& layout = layouts_[record.metric];
    MetricState& metric = metrics_[layout.metric];
    if (record.target >= metric.column_of_target.size()) {
      metric.column_of_target.resize(
          std::max<std::size_t>(record.target + 1, 2 * metric.column_of_target.size()), -1);
    }
    std::int32_t& column = metric.column_of_target[record.target];
    if (column < 0) {
      column = static_cast<std::int32_t>(metric.targets.size());
      metric.targets.push_back(record.target);
    }
    if (tiles_ != nullptr) {
      tiles_->add(layout.planes, static_cast<std::uint32_t>(column), record.values);
    }
    for (std::size_t i = 0; i < layout.statistics.size(); ++i) {
      const double value = record.values[i];
      if (!std::isfinite(value) && !is_missing(value)) {
        nonfinite_.push_back(
            {step_number, rank_number, record.target, metric.id, layout.statistics[i], value});
        ++nonfinite_values_;
      }
    }
    if (options_.write_rows) append_row(rank_number, step_number, record);
    if (record.target != last_target) ++distinct_targets_;
    last_target = record.target;
    ++records_;
  }
  if (nonfinite_.size() >= kNonFiniteBuffer) flush_nonfinite();
}

void TrendWriter::append_row(std::int32_t rank, std::int64_t step, const TrendRecord& record) {
  const Layout& layout = layouts_[record.metric];
  std::span<const double> values(record.values, layout.columns.size());
  if (!layout.is_row) {
    row_values_.assign(statistics_.size(), kMissing);
    for (std::size_t i = 0; i < values.size(); ++i) row_values_[layout.columns[i]] = values[i];
    values = row_values_;
  }
  encode_row({rank, step, std::int64_t{record.target} + 1, layout.metric_id}, values, row_record_);
  rows_.add(row_record_, pages());
}

void TrendWriter::flush_nonfinite() {
  // In the order of the table's key.
  std::sort(nonfinite_.begin(), nonfinite_.end(), [this](const NonFinite& a, const NonFinite& b) {
    return std::tie(a.step, a.rank, a.target, a.metric_id, statistics_[a.statistic]) <
           std::tie(b.step, b.rank, b.target, b.metric_id, statistics_[b.statistic]);
  });
  if (nonfinite_.empty()) return;
  SqliteTurn& turn = sqlite();
  if (!turn.insert_nonfinite) {
    turn.insert_nonfinite = turn.database.prepare(trend_sql::kInsertNonFinite);
  }
  for (const NonFinite& found : nonfinite_) {
    turn.insert_nonfinite->bind(0, found.step)
        .bind(1, found.rank)
        .bind(2, std::int64_t{found.target} + 1)
        .bind(3, std::int64_t{found.metric_id})
        .bind(4, std::string_view(statistics_[found.statistic]))
        .bind(5, nonfinite_name(found.value))
        .run();
  }
  nonfinite_.clear();
}

void TrendWriter::finish(const TargetTable& targets, const TrendSummary& summary) {
  if (trend_data_root_ == 0) create_trend_data();
  if (options_.write_rows) rows_.finish(trend_data_root_, pages());
  flush_nonfinite();
  if (tiles_ != nullptr) {
    std::vector<std::uint32_t> plane_targets(next_plane_, 0);
    for (const MetricState& metric : metrics_) {
      for (const std::uint32_t plane : metric.planes) {
        plane_targets[plane] = static_cast<std::uint32_t>(metric.targets.size());
      }
    }
    tiles_->finish(plane_targets);
  }
  write_axes();
  write_targets(targets, summary);
  write_metrics();
  write_tags(targets);
  write_global_stats(summary);
  write_provenance(summary);
  analyze();
  sqlite().transaction->commit();
}

void TrendWriter::write_axes() {
  Statement step = sqlite().database.prepare(trend_sql::kInsertStep);
  for (const TrendStep& entry : options_.steps) {
    step.bind(0, entry.step).bind(1, entry.training_step).bind(2, entry.micro_step).run();
  }
  Statement rank = sqlite().database.prepare(trend_sql::kInsertRank);
  for (const TrendRank& entry : options_.ranks) {
    rank.bind(0, entry.rank)
        .bind(1, std::string_view(entry.host))
        .bind(2, std::string_view(entry.directory))
        .run();
  }
}

void TrendWriter::write_targets(const TargetTable& targets, const TrendSummary& summary) {
  Statement insert = sqlite().database.prepare(trend_sql::kInsertTarget);
  for (std::uint32_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[i];
    insert.bind(0, std::int64_t{i} + 1)
        .bind(1, std::string_view(target.name))
        .bind(2, target.vpp_stage)
        .bind(3, target.call)
        .run();
  }
  std::vector<std::int64_t> position(targets.size());
  for (std::size_t i = 0; i < summary.network_order.size(); ++i) {
    position[summary.network_order[i]] = static_cast<std::int64_t>(i);
  }
  Statement order = sqlite().database.prepare(trend_sql::kInsertTargetOrder);
  for (std::size_t i = 0; i < position.size(); ++i) {
    order.bind(0, static_cast<std::int64_t>(i) + 1).bind(1, position[i]).run();
  }
}

std::vector<std::string> TrendWriter::statistics_of(const MetricState& metric) const {
  const std::span<const std::string_view> known = trend_statistics(options_.kind);
  std::vector<std::string> names;
  for (const std::uint32_t statistic : metric.statistics) names.push_back(statistics_[statistic]);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return rank_among(known, a) < rank_among(known, b);
  });
  return names;
}

void TrendWriter::write_metrics() {
  // msProbe writes all four metrics of dump data, whether they occur or not.
  if (options_.kind == RecordKind::kDump) {
    for (const std::string_view name : trend_metrics(RecordKind::kDump)) {
      metric_state(std::string(name));
    }
  }
  std::sort(metrics_.begin(), metrics_.end(),
            [](const MetricState& a, const MetricState& b) { return a.id < b.id; });
  layouts_.clear();  // they index metrics_

  Statement insert = sqlite().database.prepare(trend_sql::kInsertMetric);
  Statement column = sqlite().database.prepare(trend_sql::kInsertMetricTarget);
  Statement plane = sqlite().database.prepare(trend_sql::kInsertPlane);
  for (const MetricState& metric : metrics_) {
    insert.bind(0, std::int64_t{metric.id}).bind(1, std::string_view(metric.name)).run();
    for (std::size_t i = 0; i < metric.targets.size(); ++i) {
      column.bind(0, std::int64_t{metric.id})
          .bind(1, static_cast<std::int64_t>(i))
          .bind(2, std::int64_t{metric.targets[i]} + 1)
          .run();
    }
    if (!options_.write_tiles) continue;
    for (std::size_t i = 0; i < metric.planes.size(); ++i) {
      plane.bind(0, std::int64_t{metric.planes[i]})
          .bind(1, std::int64_t{metric.id})
          .bind(2, std::string_view(statistics_[metric.statistics[i]]))
          .run();
    }
  }
}

void TrendWriter::write_tags(const TargetTable& targets) {
  Statement insert_tag = sqlite().database.prepare(trend_sql::kInsertTag);
  Statement insert_mapping = sqlite().database.prepare(trend_sql::kInsertTagTarget);
  std::int64_t next_tag = 1;
  for (const MetricState& metric : metrics_) {
    std::map<Tag, std::int64_t> tag_ids;
    std::vector<std::pair<std::int64_t, std::int64_t>> mapping;
    for (const std::uint32_t target : metric.targets) {
      for (Tag& tag : tags_of(options_.kind, targets[target].name)) {
        const auto [place, is_new] = tag_ids.try_emplace(std::move(tag), next_tag);
        if (is_new) {
          insert_tag.bind(0, next_tag)
              .bind(1, std::string_view(place->first.name))
              .bind(2, place->first.category)
              .bind(3, std::int64_t{metric.id})
              .run();
          ++next_tag;
        }
        mapping.emplace_back(place->second, std::int64_t{target} + 1);
      }
    }
    std::sort(mapping.begin(), mapping.end());
    for (const auto& [tag, target] : mapping) insert_mapping.bind(0, tag).bind(1, target).run();
  }
}

void TrendWriter::write_global_stats(const TrendSummary& summary) {
  std::vector<std::pair<std::string, std::string>> metrics;
  for (const MetricState& metric : metrics_) {
    std::vector<std::string> statistics = statistics_of(metric);
    if (statistics.empty() && options_.kind == RecordKind::kDump) {
      for (const std::string_view name : trend_statistics(RecordKind::kDump)) {
        statistics.emplace_back(name);
      }
    }
    metrics.emplace_back(metric.name, join_statistics(statistics));
  }
  sqlite().database.execute(trend_sql::create_global_stats(metrics));
  Statement insert = sqlite().database.prepare(trend_sql::insert_global_stats(metrics.size()));
  insert.bind(0, summary.max_rank).bind(1, summary.min_step).bind(2, summary.max_step);
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    insert.bind(static_cast<int>(i) + 3, std::string_view(metrics[i].second));
  }
  insert.run();
}

void TrendWriter::write_provenance(const TrendSummary& summary) {
  Statement info = sqlite().database.prepare(trend_sql::kInsertInfo);
  const auto number = [&](std::string_view key, std::int64_t value) {
    info.bind(0, key).bind(1, value).run();
  };
  const auto text = [&](std::string_view key, std::string_view value) {
    info.bind(0, key).bind(1, value).run();
  };
  number("format_version", kTrendFormatVersion);
  text("trendprobe_version", TRENDPROBE_VERSION);
  text("kind", to_string(options_.kind));
  text("numbering", options_.as_msprobe ? "msprobe" : "trendprobe");
  text("micro_step", options_.micro_steps ? "true" : "false");
  text("layout", !options_.write_rows ? "tiles" : !options_.write_tiles ? "rows" : "both");
  number("records", static_cast<std::int64_t>(records_));
  number("tile_targets", options_.tile_shape.targets);
  number("tile_ranks", options_.tile_shape.ranks);
  number("tile_steps", options_.tile_shape.steps);

  Statement insert_source = sqlite().database.prepare(trend_sql::kInsertSource);
  std::int64_t id = 0;
  for (const TrendSource& source : summary.sources) {
    insert_source.bind(0, ++id)
        .bind(1, std::string_view(source.format))
        .bind(2, source.rank)
        .bind(3, std::string_view(source.path))
        .bind(4, source.first_step)
        .bind(5, source.last_step)
        .bind(6, static_cast<std::int64_t>(source.records))
        .bind(7, static_cast<std::int64_t>(source.superseded))
        .run();
  }
  Statement insert_issue = sqlite().database.prepare(trend_sql::kInsertIssue);
  id = 0;
  for (const TrendIssue& issue : summary.issues) {
    insert_issue.bind(0, ++id)
        .bind(1, std::string_view(issue.severity))
        .bind(2, std::string_view(issue.path))
        .bind(3, std::string_view(issue.location))
        .bind(4, std::string_view(issue.what))
        .bind(5, std::string_view(issue.kept))
        .run();
  }
}

void TrendWriter::analyze() {
  sqlite().database.execute(trend_sql::kAnalyze);
  if (!options_.write_rows || records_ == 0) return;
  std::string statistics = std::to_string(records_);
  for (const std::uint64_t distinct :
       {distinct_ranks_, distinct_steps_, distinct_targets_, records_}) {
    statistics += ' ' + std::to_string((records_ + distinct - 1) / distinct);
  }
  sqlite()
      .database.prepare(trend_sql::kInsertTrendDataStatistics)
      .bind(0, std::string_view(statistics))
      .run();
}

std::vector<TrendNonFinite> TrendWriter::first_nonfinite(std::size_t limit) {
  std::vector<TrendNonFinite> found;
  Statement select = sqlite().database.prepare(trend_sql::kFirstNonFinite);
  select.bind(0, static_cast<std::int64_t>(limit));
  while (select.step()) {
    TrendNonFinite& row = found.emplace_back();
    row.step = {select.integer(0), select.integer(1), static_cast<std::int32_t>(select.integer(2))};
    row.rank = static_cast<std::int32_t>(select.integer(3));
    row.metric = select.text(4);
    row.target = select.text(5);
    row.statistic = select.text(6);
    row.value = select.text(7);
  }
  return found;
}

std::unique_ptr<ReplacementFile> TrendWriter::close() {
  sqlite_->close();
  sqlite_.reset();
  return std::move(file_);
}

std::vector<TrendWriter::MetricTargets> TrendWriter::metric_targets() const {
  std::vector<MetricTargets> all;
  for (const MetricState& metric : metrics_) {
    if (!metric.targets.empty()) all.push_back({metric.id, metric.name, metric.targets});
  }
  return all;
}

}  // namespace trendprobe
