// The parts of a merge, each on its own, for bench_merge.py; and shards to merge.
//
//   merge_parts read DIRECTORY JOBS       reads all input as a merge does, and throws it away
//   merge_parts write DATABASE NEW        writes the rows and tiles of a trend database anew, in
//   the order of their key,
//                                         with one statement for 64 rows
//   merge_parts shards DIRECTORY SHARDS STEPS TARGETS
//                                         writes shards of two metrics through the hook's
//                                         ShardWriter
//
// The first two print the seconds that it took.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offline/diagnostics.h"
#include "offline/dump_source.h"
#include "offline/input_discovery.h"
#include "offline/monitor_source.h"
#include "offline/parallel_for.h"
#include "offline/shard_source.h"
#include "writer/dump_step.h"
#include "writer/shard_writer.h"
#include "writer/sqlite_handle.h"
#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

class Stopwatch {
 public:
  void start() { started_ = std::chrono::steady_clock::now(); }
  void stop() { elapsed_ += std::chrono::steady_clock::now() - started_; }
  double seconds() const { return elapsed_.count(); }

 private:
  std::chrono::steady_clock::time_point started_;
  std::chrono::duration<double> elapsed_{0};
};

double read_all(const fs::path& directory, unsigned jobs) {
  Stopwatch watch;
  watch.start();
  Diagnostics diagnostics;
  const Inputs inputs = find_inputs({&directory, 1}, TrendDatabases::kNamed, diagnostics);
  std::vector<std::unique_ptr<RecordSource>> sources;
  for (const fs::path& tree : inputs.dump_trees) sources.push_back(make_dump_source(tree, {}));
  for (const fs::path& tree : inputs.monitor_trees) {
    sources.push_back(make_monitor_source(tree, {}));
  }
  if (!inputs.shards.empty()) {
    sources.push_back(make_shard_source(inputs.shards, RecordKind::kDump, true, {}));
  }
  for (const std::unique_ptr<RecordSource>& source : sources) {
    const std::vector<ReadUnit> units = source->scan(diagnostics, jobs);
    parallel_for(units.size(), jobs, [&](std::size_t i) { source->read(units[i], diagnostics); });
  }
  watch.stop();
  return watch.seconds();
}

/// Rows read before they are written, so that only the writing is timed.
constexpr std::size_t kChunk = std::size_t{1} << 16;
constexpr std::size_t kRowsAStatement = 64;
constexpr std::size_t kKeyColumns = 4;

std::string insert_rows(std::size_t columns, std::size_t rows) {
  std::string row = "(?";
  for (std::size_t i = 1; i < columns; ++i) row += ",?";
  row += ')';
  // OR FAIL: a statement that can only fail as a whole would keep a copy of every page it changes.
  std::string sql = "INSERT OR FAIL INTO trend_data VALUES" + row;
  for (std::size_t i = 1; i < rows; ++i) sql += ',' + row;
  return sql;
}

void copy_rows(Database& from, Database& to, Stopwatch& watch) {
  Statement select = from.prepare("SELECT * FROM trend_data ORDER BY rank, step, target_id");
  const auto columns = static_cast<std::size_t>(select.column_count());
  std::vector<std::string> statistics;
  for (std::size_t i = kKeyColumns; i < columns; ++i) {
    statistics.push_back(select.column_name(static_cast<int>(i)));
  }
  to.execute(trend_sql::create_trend_data(statistics));
  Statement many = to.prepare(insert_rows(columns, kRowsAStatement));
  Statement one = to.prepare(insert_rows(columns, 1));
  std::vector<std::int64_t> keys;
  std::vector<double> values;
  const auto bind = [&](Statement& statement, std::size_t first, std::size_t count) {
    int parameter = 0;
    for (std::size_t row = first; row < first + count; ++row) {
      for (std::size_t i = 0; i < kKeyColumns; ++i) {
        statement.bind(parameter++, keys[row * kKeyColumns + i]);
      }
      for (std::size_t i = 0; i < statistics.size(); ++i) {
        const double value = values[row * statistics.size() + i];
        if (std::isnan(value)) {
          statement.bind_null(parameter++);
        } else {
          statement.bind(parameter++, value);
        }
      }
    }
    statement.run();
  };
  bool more = true;
  while (more) {
    keys.clear();
    values.clear();
    while (keys.size() < kChunk * kKeyColumns && (more = select.step())) {
      for (std::size_t i = 0; i < kKeyColumns; ++i) {
        keys.push_back(select.integer(static_cast<int>(i)));
      }
      for (std::size_t i = kKeyColumns; i < columns; ++i) {
        const int column = static_cast<int>(i);
        values.push_back(select.is_null(column) ? std::nan("") : select.real(column));
      }
    }
    watch.start();
    const std::size_t rows = keys.size() / kKeyColumns;
    std::size_t row = 0;
    for (; row + kRowsAStatement <= rows; row += kRowsAStatement) bind(many, row, kRowsAStatement);
    for (; row < rows; ++row) bind(one, row, 1);
    watch.stop();
  }
}

void copy_tiles(Database& from, Database& to, Stopwatch& watch) {
  Statement select = from.prepare("SELECT tile_id, data FROM trendprobe_tiles ORDER BY tile_id");
  Statement insert = to.prepare(trend_sql::kPutTile);
  while (select.step()) {
    watch.start();
    insert.bind(0, select.integer(0)).bind_blob(1, select.blob(1)).run();
    watch.stop();
  }
}

double write_again(const fs::path& source, const fs::path& target) {
  Database from(source, {});
  fs::remove(target);
  Database to(target, {.mode = OpenMode::kCreateNew, .without_locks = true, .disposable = true});
  to.execute(trend_sql::prepare_new_file());
  to.execute("PRAGMA cache_size=-16384");
  to.execute(trend_sql::kTables);
  Stopwatch watch;
  {
    Transaction transaction(to);
    if (from.has_table("trend_data")) copy_rows(from, to, watch);
    if (from.has_table("trendprobe_tiles")) copy_tiles(from, to, watch);
    watch.start();
    transaction.commit();
  }
  to.close();
  const int descriptor = ::open(target.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(descriptor);
  ::close(descriptor);
  watch.stop();
  return watch.seconds();
}

void write_shards(const fs::path& directory, std::int64_t shards, std::int64_t steps,
                  std::int64_t target_count) {
  TargetTable targets;
  for (std::int64_t i = 0; i < target_count; ++i) {
    targets.intern(
        "Module.layers." + std::to_string(i / 8) + ".mlp.fc.Linear.input." + std::to_string(i % 8),
        0, 0);
  }
  const std::vector<Metric> metrics = dump_metrics();
  for (std::int64_t shard = 0; shard < shards; ++shard) {
    ShardWriter writer(directory, {.host = "bench", .pid = shard + 1, .started_ns = 1}, {},
                       targets);
    writer.set_info("rank", shard);
    std::vector<RecordBlock> blocks(2);
    std::uint64_t state = static_cast<std::uint64_t>(shard) + 1;
    for (std::int64_t step = 0; step < steps; ++step) {
      for (std::uint32_t metric = 0; metric < blocks.size(); ++metric) {
        RecordBlock& block = blocks[metric];
        block.training_step = step;
        block.metric = metric;
        block.targets.clear();
        block.values.clear();
        for (std::int64_t i = 0; i < target_count; ++i) {
          block.targets.push_back(static_cast<std::uint32_t>(i));
          for (std::size_t k = 0; k < DumpStatistics().size(); ++k) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            block.values.push_back(static_cast<float>(state >> 40) / 1000.0F);
          }
        }
      }
      writer.commit({.training_step = step, .blocks = blocks, .metrics = metrics});
    }
    writer.close();
  }
}

int run(const std::vector<std::string>& arguments) {
  const auto is = [&](std::string_view command, std::size_t count) {
    return arguments.size() == count + 1 && arguments[0] == command;
  };
  if (is("read", 2)) {
    std::printf("%.4f\n", read_all(arguments[1], static_cast<unsigned>(std::stoul(arguments[2]))));
  } else if (is("write", 2)) {
    std::printf("%.4f\n", write_again(arguments[1], arguments[2]));
  } else if (is("shards", 4)) {
    write_shards(arguments[1], std::stoll(arguments[2]), std::stoll(arguments[3]),
                 std::stoll(arguments[4]));
  } else {
    throw std::invalid_argument(
        "usage: merge_parts read DIRECTORY JOBS | write DATABASE NEW | shards DIRECTORY SHARDS "
        "STEPS TARGETS");
  }
  return 0;
}

}  // namespace
}  // namespace trendprobe

int main(int argc, char** argv) {
  try {
    return trendprobe::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
