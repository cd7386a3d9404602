#include "offline/merger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <sstream>

#include "offline/unit_prefetcher.h"
#include "tests/cpp/merge_and_publish.h"
#include "tests/cpp/temporary_directory.h"
#include "tests/cpp/trend_database.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct FakeRecord {
  std::int64_t training_step;
  std::int32_t micro_step;
  std::uint32_t metric;
  Target target;
  std::vector<double> values;
};

struct FakeUnit {
  ReadUnit unit;
  std::vector<FakeRecord> records;
};

const std::vector<Metric> kMetrics = {
    {RecordKind::kDump, "forward", {"norm", "max", "min", "mean"}},
    {RecordKind::kDump, "backward", {"norm", "max", "min", "mean"}},
    {RecordKind::kDump, "backward", {"mean", "zeros"}}};

class FakeSource : public RecordSource {
 public:
  FakeSource(std::string format, std::vector<FakeUnit> units)
      : format_(std::move(format)), units_(std::move(units)) {}

  RecordKind kind() const override { return RecordKind::kDump; }
  std::string_view format() const override { return format_; }

  std::vector<ReadUnit> scan(Diagnostics&, unsigned) override {
    std::vector<ReadUnit> units;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      ReadUnit& unit = units.emplace_back(units_[i].unit);
      unit.id = i;
      unit.bytes = 100 * units_[i].records.size();
    }
    return units;
  }

  UnitRecords read(const ReadUnit& unit, Diagnostics& diagnostics) const override {
    if (fails) throw std::bad_alloc();
    diagnostics.notice(unit.path, "read");
    UnitRecords result;
    result.metrics = kMetrics;
    const auto targets = std::make_shared<TargetTable>();
    result.targets = targets;
    // Targets that no block of this unit uses, as in a shard.
    targets->intern("of another unit", 0, 0);
    for (const FakeRecord& record : units_[unit.id].records) {
      if (result.blocks.empty() || result.blocks.back().training_step != record.training_step ||
          result.blocks.back().micro_step != record.micro_step ||
          result.blocks.back().metric != record.metric) {
        result.blocks.push_back({record.training_step, record.micro_step, record.metric, {}, {}});
      }
      RecordBlock& block = result.blocks.back();
      block.targets.push_back(targets->intern(record.target));
      block.values.insert(block.values.end(), record.values.begin(), record.values.end());
    }
    return result;
  }

  bool fails = false;

 private:
  std::string format_;
  std::vector<FakeUnit> units_;
};

ReadUnit unit_of(std::int32_t rank, std::vector<std::pair<std::int64_t, std::int32_t>> steps,
                 std::string path, std::int64_t started_ns = 0) {
  ReadUnit unit;
  unit.rank = rank;
  unit.steps = std::move(steps);
  unit.path = std::move(path);
  unit.started_ns = started_ns;
  unit.host = "host";
  return unit;
}

FakeRecord record_of(std::int64_t step, std::int32_t micro_step, const std::string& name,
                     double value) {
  return {step, micro_step, 0, {name, 0, 0}, {value, value, value, value}};
}

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

class MergerTest : public testing::Test {
 protected:
  MergeSummary merge_units(std::vector<FakeUnit> units, const MergeOptions& options = {}) {
    std::vector<std::unique_ptr<RecordSource>> sources;
    sources.push_back(std::make_unique<FakeSource>("dump", std::move(units)));
    return merge_and_publish(std::move(sources), database(), options, diagnostics_);
  }

  fs::path database() const { return directory_ / "dump_data.trend.db"; }

  TemporaryDirectory directory_;
  Diagnostics diagnostics_;
};

TEST_F(MergerTest, TheStepAxisHasTheMostMicroStepsOfAnyRank) {
  const MergeSummary summary = merge_units(
      {{unit_of(0, {{5, 2}, {7, 1}}, "a"), {record_of(5, 1, "t", 1), record_of(7, 0, "t", 2)}},
       {unit_of(3, {{5, 3}, {9, 1}}, "b"), {record_of(5, 2, "t", 3), record_of(9, 0, "t", 4)}}});
  EXPECT_EQ(summary.global_steps, 5U);
  EXPECT_EQ(summary.training_steps, 3U);
  EXPECT_EQ(summary.first_training_step, 5);
  EXPECT_EQ(summary.last_training_step, 9);
  EXPECT_EQ(summary.ranks, 2U);
  EXPECT_EQ(summary.last_rank, 3);
  TrendDatabase found(database());
  EXPECT_THAT(found.rows("SELECT * FROM trendprobe_steps"),
              ElementsAre("0|5|0", "1|5|1", "2|5|2", "3|7|0", "4|9|0"));
  EXPECT_THAT(found.rows("SELECT rank, step, norm FROM trend_data"),
              ElementsAre("0|1|1.0", "0|3|2.0", "3|2|3.0", "3|4|4.0"));
  EXPECT_THAT(found.rows("SELECT max_rank, min_step, max_step FROM global_stats"),
              ElementsAre("3|0|4"));
}

TEST_F(MergerTest, WithoutMicroStepsTheStepIsTheTrainingStep) {
  MergeOptions options;
  options.micro_steps = false;
  merge_units({{unit_of(0, {{1000000000000, 1}, {2000000000000, 1}}, "a"),
                {record_of(1000000000000, 0, "t", 1), record_of(2000000000000, 0, "t", 2)}}},
              options);
  TrendDatabase found(database());
  EXPECT_THAT(found.rows("SELECT rank, step, norm FROM trend_data"),
              ElementsAre("0|1000000000000|1.0", "0|2000000000000|2.0"));
  EXPECT_THAT(found.rows("SELECT max_rank, min_step, max_step FROM global_stats"),
              ElementsAre("0|1000000000000|2000000000000"));
  EXPECT_EQ(found.tile_values().size(), 8U);
}

TEST_F(MergerTest, TheLaterRunWinsAndWhatItSupersededIsCounted) {
  const std::vector<FakeUnit> units = {
      {unit_of(0, {{1, 1}, {2, 1}}, "late", 200),
       {record_of(1, 0, "t", 20), record_of(2, 0, "t", 21)}},
      {unit_of(0, {{0, 1}, {1, 1}}, "early", 100),
       {record_of(0, 0, "t", 10), record_of(1, 0, "t", 11), record_of(1, 0, "u", 12)}}};
  EXPECT_EQ(merge_units(units).superseded, 1U);
  TrendDatabase found(database());
  EXPECT_THAT(found.rows("SELECT step, target_name, norm FROM trend_data JOIN monitoring_targets "
                         "USING(target_id) ORDER BY 1, 2"),
              ElementsAre("0|t|10.0", "1|t|20.0", "1|u|12.0", "2|t|21.0"));
  EXPECT_THAT(
      found.rows("SELECT path, first_step, last_step, records, superseded FROM trendprobe_sources"),
      ElementsAre("early|0|1|2|1", "late|1|2|2|0"));

  MergeOptions msprobe;
  msprobe.as_msprobe = true;
  merge_units(units, msprobe);
  EXPECT_THAT(TrendDatabase(database()).rows("SELECT step, norm FROM trend_data WHERE target_id=1"),
              ElementsAre("0|10.0", "1|20.0", "2|21.0"));
}

TEST_F(MergerTest, WithinAUnitTheLastRecordWinsAndMsProbesFirst) {
  const std::vector<FakeUnit> units = {
      {unit_of(0, {{0, 1}}, "a"),
       {record_of(0, 0, "t", 1), record_of(0, 0, "t", 2), record_of(0, 0, "t", 3)}}};
  EXPECT_EQ(merge_units(units).superseded, 2U);
  EXPECT_THAT(TrendDatabase(database()).rows("SELECT norm FROM trend_data"), ElementsAre("3.0"));
  MergeOptions msprobe;
  msprobe.as_msprobe = true;
  merge_units(units, msprobe);
  EXPECT_THAT(TrendDatabase(database()).rows("SELECT norm FROM trend_data"), ElementsAre("1.0"));
}

TEST_F(MergerTest, AShardWinsOverFiles) {
  std::vector<std::unique_ptr<RecordSource>> sources;
  sources.push_back(std::make_unique<FakeSource>(
      "shard", std::vector<FakeUnit>{{unit_of(0, {{0, 1}}, "s", 50), {record_of(0, 0, "t", 1)}}}));
  sources.push_back(std::make_unique<FakeSource>(
      "dump", std::vector<FakeUnit>{{unit_of(0, {{0, 1}}, "d", 100),
                                     {record_of(0, 0, "t", 2), record_of(0, 0, "u", 3)}}}));
  merge_and_publish(std::move(sources), database(), {}, diagnostics_);
  EXPECT_THAT(TrendDatabase(database())
                  .rows("SELECT target_name, norm FROM trend_data JOIN monitoring_targets "
                        "USING(target_id) ORDER BY 1"),
              ElementsAre("t|1.0", "u|3.0"));
}

TEST_F(MergerTest, AStepThatWasNotAnnouncedIsReported) {
  const MergeSummary summary = merge_units({{unit_of(0, {{1, 2}}, "a"),
                                             {record_of(1, 0, "t", 1), record_of(1, 5, "t", 2),
                                              record_of(8, 0, "t", 3), record_of(1, -1, "t", 4)}}});
  EXPECT_EQ(summary.records, 1U);
  std::vector<std::string> skipped;
  for (const Issue& issue : diagnostics_.issues()) {
    if (issue.severity == Severity::kSkipped) skipped.push_back(issue.location + ": " + issue.what);
  }
  EXPECT_THAT(
      skipped,
      ElementsAre(HasSubstr("training step 1, micro-step -1: holds 1 records of metric forward"),
                  HasSubstr("training step 1, micro-step 5: holds"),
                  HasSubstr("training step 8, micro-step 0: holds")));
  EXPECT_EQ(TrendDatabase(database())
                .rows("SELECT * FROM trendprobe_issues WHERE severity='skipped'")
                .size(),
            3U);
}

TEST_F(MergerTest, AnAbsurdNumberOfMicroStepsIsDamage) {
  const MergeSummary summary = merge_units(
      {{unit_of(0, {{1, 1}, {2, std::numeric_limits<std::int32_t>::max()}, {3, -4}}, "a"),
        {record_of(1, 0, "t", 1), record_of(2, 0, "t", 2), record_of(3, 0, "t", 3)}}});
  EXPECT_EQ(summary.records, 2U);
  EXPECT_EQ(summary.global_steps, 2U);
  EXPECT_TRUE(diagnostics_.has_losses());
}

TEST_F(MergerTest, WithoutRecordsNothingIsWritten) {
  EXPECT_EQ(merge({}, database(), {}, diagnostics_).summary().records, 0U);
  EXPECT_EQ(merge_units({}).records, 0U);
  EXPECT_EQ(merge_units({{unit_of(0, {}, "a"), {}}}).records, 0U);
  EXPECT_EQ(merge_units({{unit_of(0, {{1, 1}}, "a"), {}}}).records, 0U);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(MergerTest, AFailureLeavesTheOldDatabase) {
  merge_units({{unit_of(0, {{1, 1}}, "a"), {record_of(1, 0, "t", 1)}}});
  const std::string before = bytes_of(database());
  for (const unsigned jobs : {1U, 4U}) {
    std::vector<FakeUnit> units;
    units.reserve(50);
    for (int i = 0; i < 50; ++i)
      units.push_back({unit_of(0, {{i, 1}}, "a"), {record_of(i, 0, "t", 1)}});
    auto source = std::make_unique<FakeSource>("dump", units);
    source->fails = true;
    std::vector<std::unique_ptr<RecordSource>> sources;
    sources.push_back(std::move(source));
    MergeOptions options;
    options.jobs = jobs;
    EXPECT_THROW(merge(std::move(sources), database(), options, diagnostics_), std::bad_alloc);
    EXPECT_EQ(bytes_of(database()), before);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 1);
  }
}

TEST_F(MergerTest, ProgressEndsAtTheWhole) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> calls;
  MergeOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    calls.emplace_back(done, total);
  };
  merge_units({{unit_of(0, {{0, 1}}, "a"), {record_of(0, 0, "t", 1)}},
               {unit_of(1, {{0, 1}}, "b"), {record_of(0, 0, "t", 1)}}},
              options);
  EXPECT_THAT(calls, ElementsAre(std::pair(100U, 200U), std::pair(200U, 200U)));
}

// Random sources against what a person would do by hand: put every record into a map, the winner
// last.
struct RandomRun {
  std::vector<std::pair<std::string, std::vector<FakeUnit>>> sources;
  std::map<TrendDatabase::Cell, double> values;  // missing ones too
  std::size_t records = 0;
  std::size_t total = 0;
};

RandomRun random_run(unsigned seed, bool as_msprobe) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const int ranks = 1 + below(5);
  const int training_steps = 1 + below(8);
  const int targets = 1 + below(90);
  RandomRun run;
  std::map<std::int64_t, std::int32_t> micro_counts;
  struct Placed {
    std::tuple<bool, std::int64_t, std::size_t, std::size_t> precedence;
    std::int32_t rank;
    FakeRecord record;
  };
  std::vector<Placed> placed;
  for (std::size_t s = 0; s < 3; ++s) {
    const std::string format = s == 1 ? "shard" : "dump";
    std::vector<FakeUnit> units;
    const int unit_count = 1 + below(6);
    for (int u = 0; u < unit_count; ++u) {
      const std::int32_t rank = 2 * below(ranks);
      const int first = below(training_steps);
      const int last = first + below(training_steps - first);
      FakeUnit unit{unit_of(rank, {}, format + std::to_string(below(3)), below(3)), {}};
      for (int step = first; step <= last; ++step) {
        if (below(5) == 0 && step != last) continue;
        const int micro_steps = 1 + below(3);
        const std::int64_t training_step = std::int64_t{10} * step;
        unit.unit.steps.emplace_back(training_step, micro_steps);
        micro_counts[training_step] = std::max(micro_counts[training_step], micro_steps);
        for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
          for (std::uint32_t metric = 0; metric < kMetrics.size(); ++metric) {
            for (int t = 0; t < targets; ++t) {
              if (below(3) == 0) continue;
              FakeRecord record{
                  training_step,
                  micro_step,
                  metric,
                  {"Module.m" + std::to_string(below(targets)) + ".L.input.0", below(2), below(2)},
                  {}};
              for (std::size_t i = 0; i < kMetrics[metric].statistics.size(); ++i) {
                const int dice = below(40);
                record.values.push_back(dice == 0   ? kNaN
                                        : dice == 1 ? kInfinity
                                        : dice == 2 ? -kInfinity
                                        : dice == 3 ? kMissing
                                        : dice == 4 ? 3e9
                                                    : static_cast<float>(below(100000)) / 7.0F);
              }
              unit.records.push_back(record);
            }
          }
        }
      }
      const std::tuple precedence(format == "shard", unit.unit.started_ns, s, units.size());
      for (const FakeRecord& record : unit.records) placed.push_back({precedence, rank, record});
      units.push_back(std::move(unit));
    }
    run.sources.emplace_back(format, std::move(units));
  }
  std::map<std::int64_t, std::int64_t> first_global;
  std::int64_t next = 0;
  for (const auto& [step, count] : micro_counts) {
    first_global[step] = next;
    next += count;
  }
  run.total = placed.size();
  if (as_msprobe) {
    std::reverse(placed.begin(), placed.end());
  } else {
    std::stable_sort(placed.begin(), placed.end(),
                     [](const Placed& a, const Placed& b) { return a.precedence < b.precedence; });
  }
  // The last one wins as a whole: a record of other statistics leaves nothing of the one before.
  std::map<std::tuple<std::int32_t, std::int64_t, std::string, Target>, const FakeRecord*> winners;
  for (const Placed& entry : placed) {
    winners[{entry.rank, first_global[entry.record.training_step] + entry.record.micro_step,
             kMetrics[entry.record.metric].name, entry.record.target}] = &entry.record;
  }
  run.records = winners.size();
  for (const auto& [key, record] : winners) {
    const auto& [rank, step, metric, target] = key;
    for (const char* statistic : {"norm", "max", "min", "mean", "zeros"}) {
      run.values[{rank, step, metric, target.name, target.vpp_stage, target.call, statistic}] =
          kMissing;
    }
    const std::vector<std::string>& statistics = kMetrics[record->metric].statistics;
    for (std::size_t i = 0; i < statistics.size(); ++i) {
      run.values[{rank, step, metric, target.name, target.vpp_stage, target.call, statistics[i]}] =
          record->values[i];
    }
  }
  return run;
}

void expect_equal(const std::map<TrendDatabase::Cell, double>& actual,
                  const std::map<TrendDatabase::Cell, double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (auto a = actual.begin(), e = expected.begin(); a != actual.end(); ++a, ++e) {
    ASSERT_EQ(a->first, e->first);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(a->second), std::bit_cast<std::uint64_t>(e->second))
        << a->second << " instead of " << e->second;
  }
}

TEST_F(MergerTest, RandomSourcesGiveWhatBruteForceGives) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    const bool as_msprobe = seed % 3 == 2;
    const RandomRun run = random_run(seed, as_msprobe);
    std::string first_bytes;
    for (const unsigned jobs : {1U, 3U}) {
      std::vector<std::unique_ptr<RecordSource>> sources;
      for (const auto& [format, units] : run.sources)
        sources.push_back(std::make_unique<FakeSource>(format, units));
      MergeOptions options;
      options.jobs = jobs;
      options.as_msprobe = as_msprobe;
      Diagnostics diagnostics;
      const MergeSummary summary =
          merge_and_publish(std::move(sources), database(), options, diagnostics);
      EXPECT_EQ(summary.records, run.records);
      EXPECT_EQ(summary.superseded, run.total - run.records);

      TrendDatabase found(database());
      std::map<TrendDatabase::Cell, double> rows;
      std::map<TrendDatabase::Cell, double> tiles;
      std::size_t nonfinite = 0;
      const bool has_zeros =
          found.rows("SELECT 1 FROM pragma_table_info('trend_data') WHERE name='zeros'").size() ==
          1;
      for (const auto& [cell, value] : run.values) {
        if (!is_missing(value)) tiles[cell] = value;
        if (!is_missing(value) && !std::isfinite(value)) ++nonfinite;
        if (!has_zeros && std::get<6>(cell) == "zeros") continue;
        rows[cell] = std::isnan(value)     ? kMissing
                     : value == kInfinity  ? 1e9 + 1
                     : value == -kInfinity ? -1e9 - 1
                                           : std::clamp(value, -1e9, 1e9);
      }
      expect_equal(found.row_values(), rows);
      expect_equal(found.tile_values(), tiles);
      EXPECT_EQ(summary.nonfinite_values, nonfinite);
      for (const std::string& row :
           found.rows("SELECT rank, step, metric_name, target_name, vpp_stage, t.micro_step, "
                      "statistic, value FROM trendprobe_nonfinite "
                      "JOIN monitoring_metrics USING(metric_id) JOIN monitoring_targets t "
                      "USING(target_id)")) {
        std::istringstream line(row);
        std::vector<std::string> words;
        for (std::string word; std::getline(line, word, '|');) words.push_back(word);
        const double value =
            tiles.at({std::stoll(words[0]), std::stoll(words[1]), words[2], words[3],
                      std::stoll(words[4]), std::stoll(words[5]), words[6]});
        EXPECT_EQ(words[7], std::isnan(value) ? "NaN" : value > 0 ? "+inf" : "-inf");
        --nonfinite;
      }
      EXPECT_EQ(nonfinite, 0U);
      EXPECT_THAT(found.rows("PRAGMA integrity_check"), ElementsAre("ok"));
      EXPECT_THAT(found.rows("SELECT target_id FROM monitoring_targets EXCEPT SELECT target_id "
                             "FROM trendprobe_target_order"),
                  IsEmpty());
      const std::string bytes = bytes_of(database());
      if (first_bytes.empty()) first_bytes = bytes;
      EXPECT_TRUE(bytes == first_bytes) << "the database depends on the number of threads";
    }
  }
}

TEST(UnitPrefetcher, HandsOutInOrderAndHoldsNoMoreThanItsWindow) {
  constexpr std::size_t kUnits = 200;
  for (const unsigned threads : {1U, 2U, 8U}) {
    std::atomic<std::size_t> started = 0;
    std::atomic<std::size_t> taken = 0;
    std::atomic<std::size_t> most = 0;
    const auto read = [&](std::size_t unit) {
      const std::size_t ahead = ++started - taken;
      std::size_t seen = most;
      while (ahead > seen && !most.compare_exchange_weak(seen, ahead)) {
      }
      UnitRecords records;
      const auto targets = std::make_shared<TargetTable>();
      targets->intern(std::to_string(unit), 0, 0);
      records.targets = targets;
      return records;
    };
    UnitPrefetcher prefetcher(std::vector<std::uint64_t>(kUnits, 10), read, threads, 40);
    for (std::size_t i = 0; i < kUnits; ++i) {
      const UnitRecords records = prefetcher.next();
      ++taken;
      ASSERT_EQ((*records.targets)[0].name, std::to_string(i));
    }
    // One more than the window: next() frees the place before the test counts it.
    EXPECT_LE(most, 5U);
  }
}

TEST(UnitPrefetcher, AUnitLargerThanTheWindowIsReadAlone) {
  UnitPrefetcher prefetcher(
      {100, 1, 100}, [](std::size_t) { return UnitRecords(); }, 4, 10);
  for (int i = 0; i < 3; ++i) prefetcher.next();
}

}  // namespace
}  // namespace trendprobe
