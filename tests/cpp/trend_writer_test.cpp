#include "writer/trend_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "tests/cpp/temporary_directory.h"
#include "tests/cpp/trend_database.h"
#include "writer/trend_schema.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TrendOptions two_by_two() {
  TrendOptions options;
  options.steps = {{0, 5, 0}, {1, 5, 1}};
  options.ranks = {{0, "host-a", "/data/step5/rank0"}, {3, "host-b", "/data/step5/rank3"}};
  return options;
}

const Metric kForward = {RecordKind::kDump, "forward", {"norm", "max", "min", "mean"}};
const Metric kBackward = {RecordKind::kDump, "backward", {"max", "norm"}};

class TrendWriterTest : public testing::Test {
 protected:
  // Two targets, two metrics of different statistics; one record of each special value.
  void write_some(TrendWriter& writer) {
    const std::uint32_t a = targets_.intern("Module.layers.0.Linear.input.0", 0, 0);
    const std::uint32_t b = targets_.intern("Module.layers.1.Linear.output.0", 0, 1);
    const std::uint32_t forward = writer.add_metric(kForward);
    const std::uint32_t backward = writer.add_metric(kBackward);
    const double plain[4] = {1, 2, -3, 0.1};
    const double special[4] = {kInfinity, 2e9, -kInfinity, kNaN};
    const double gradient[2] = {kMissing, -5e12};
    writer.append(0, 0,
                  std::vector<TrendRecord>{
                      {a, forward, plain}, {a, backward, gradient}, {b, forward, special}});
    writer.append(0, 1, std::vector<TrendRecord>{{b, forward, plain}});
    writer.append(1, 1, std::vector<TrendRecord>{{a, forward, special}});
  }

  TrendSummary summary() const {
    TrendSummary summary;
    summary.max_rank = 3;
    summary.max_step = 1;
    summary.network_order = {1, 0};
    summary.sources = {{"dump", 0, "/data/step5/rank0", 5, 5, 4, 1}};
    summary.issues = {{"repaired", "/data/x", "byte 7", "cut", "3 entries"}};
    return summary;
  }

  fs::path write_database() {
    fs::path path = directory_ / "dump_data.trend.db";
    TrendWriter writer(path, two_by_two());
    write_some(writer);
    writer.finish(targets_, summary());
    writer.close()->publish();
    return path;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryDirectory directory_;
  TargetTable targets_;
};

TEST_F(TrendWriterTest, RowsAreWhatMsProbeWouldHaveWritten) {
  TrendDatabase database(write_database());
  EXPECT_THAT(database.rows("SELECT * FROM trend_data"),
              ElementsAre("0|0|1|1|1.0|2.0|-3.0|0.1", "0|0|1|2|-1000000000.0|NULL|NULL|NULL",
                          "0|0|2|1|1000000001.0|1000000000.0|-1000000001.0|NULL",
                          "0|1|2|1|1.0|2.0|-3.0|0.1",
                          "3|1|1|1|1000000001.0|1000000000.0|-1000000001.0|NULL"));
  EXPECT_THAT(database.rows("SELECT * FROM global_stats"),
              ElementsAre("3|0|1|norm,max,min,mean|norm,max|norm,max,min,mean|norm,max,min,mean"));
  EXPECT_THAT(database.rows("SELECT * FROM monitoring_metrics"),
              ElementsAre("1|forward", "2|backward", "3|recompute", "4|parameters_grad"));
  EXPECT_THAT(
      database.rows("SELECT * FROM monitoring_targets"),
      ElementsAre("1|Module.layers.0.Linear.input.0|0|0", "2|Module.layers.1.Linear.output.0|0|1"));
  EXPECT_THAT(database.rows(
                  "SELECT t.tag_name, t.category, t.metric_id, m.target_id FROM monitoring_tags t "
                  "JOIN tag_target_mapping m USING(tag_id) WHERE t.category='layer' ORDER BY 3, 4"),
              ElementsAre("layers.0|layer|1|1", "layers.1|layer|1|2", "layers.0|layer|2|1"));
}

TEST_F(TrendWriterTest, TilesAndNonFiniteAreExact) {
  TrendDatabase database(write_database());
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_nonfinite"),
              ElementsAre("0|0|2|1|mean|NaN", "0|0|2|1|min|-inf", "0|0|2|1|norm|+inf",
                          "1|3|1|1|mean|NaN", "1|3|1|1|min|-inf", "1|3|1|1|norm|+inf"));
  const auto values = database.tile_values();
  EXPECT_EQ(values.size(), 17U);
  const std::string name = "Module.layers.0.Linear.input.0";
  EXPECT_EQ(values.at({3, 1, "forward", name, 0, 0, "norm"}), kInfinity);
  EXPECT_EQ(values.at({3, 1, "forward", name, 0, 0, "max"}), 2e9);
  EXPECT_TRUE(std::isnan(values.at({3, 1, "forward", name, 0, 0, "mean"})));
  // 0.1 as the float32 that a tile holds.
  EXPECT_EQ(values.at({0, 0, "forward", name, 0, 0, "mean"}), static_cast<double>(0.1F));
  EXPECT_EQ(values.at({0, 0, "backward", name, 0, 0, "norm"}), -5e12);
}

TEST_F(TrendWriterTest, OurTablesSayWhatMsProbesCannot) {
  TrendDatabase database(write_database());
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_steps"), ElementsAre("0|5|0", "1|5|1"));
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_ranks"),
              ElementsAre("0|host-a|/data/step5/rank0", "3|host-b|/data/step5/rank3"));
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_target_order"), ElementsAre("1|1", "2|0"));
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_metric_targets"),
              ElementsAre("1|0|1", "1|1|2", "2|0|1"));
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_sources"),
              ElementsAre("1|dump|0|/data/step5/rank0|5|5|4|1"));
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_issues"),
              ElementsAre("1|repaired|/data/x|byte 7|cut|3 entries"));
  EXPECT_THAT(database.rows("SELECT * FROM trendprobe_planes"),
              ElementsAre("1|1|norm", "2|1|max", "3|1|min", "4|1|mean", "5|2|max", "6|2|norm"));
  EXPECT_EQ(database.info("layout"), "both");
  EXPECT_EQ(database.info("kind"), "dump");
  EXPECT_EQ(database.info("records"), "5");
  EXPECT_EQ(database.sql().query_integer("PRAGMA application_id"), kTrendApplicationId);
  EXPECT_EQ(database.sql().query_integer("PRAGMA user_version"), kTrendFormatVersion);
  EXPECT_EQ(database.sql().query_integer("PRAGMA page_size"), 16384);
  EXPECT_THAT(database.rows("PRAGMA integrity_check"), ElementsAre("ok"));
  EXPECT_THAT(database.rows("PRAGMA foreign_key_check"), IsEmpty());
  EXPECT_THAT(files(), ElementsAre("dump_data.trend.db"));
  struct stat status = {};
  ASSERT_EQ(::stat((directory_ / "dump_data.trend.db").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07027U, 0U);
}

TEST_F(TrendWriterTest, ThePlannersStatisticsAreWhatAnalyzeFinds) {
  const fs::path path = write_database();
  const std::string query = "SELECT * FROM sqlite_stat1 WHERE tbl='trend_data'";
  const std::vector<std::string> ours = TrendDatabase(path).rows(query);
  {
    Database database(path, OpenOptions{.mode = OpenMode::kReadWrite});
    database.execute("ANALYZE");
  }
  EXPECT_EQ(TrendDatabase(path).rows(query), ours);
  EXPECT_EQ(ours.size(), 1U);
}

TEST_F(TrendWriterTest, AStatisticThatComesLaterIsAColumnMore) {
  const fs::path path = directory_ / "monitor_data.trend.db";
  TrendOptions options = two_by_two();
  options.kind = RecordKind::kMonitor;
  TrendWriter writer(path, options);
  const std::uint32_t a = targets_.intern("a.weight", 0, 0);
  const double values[3] = {1, 2, 3};
  const std::uint32_t first =
      writer.add_metric({RecordKind::kMonitor, "other", {"max", "unheard of\"", "norm"}});
  writer.append(0, 0, std::vector<TrendRecord>{{a, first, values}});
  const std::uint32_t second =
      writer.add_metric({RecordKind::kMonitor, "other", {"zeros", "norm"}});
  const std::uint32_t unknown = writer.add_metric({RecordKind::kMonitor, "new metric", {"norm"}});
  writer.append(0, 1, std::vector<TrendRecord>{{a, second, values}, {a, unknown, values}});
  TrendSummary summary;
  summary.network_order = {0};
  writer.finish(targets_, summary);
  writer.close()->publish();
  TrendDatabase database(path);
  EXPECT_THAT(
      database.rows("SELECT metric_id, norm, max, \"unheard of\"\"\", zeros FROM trend_data"),
      ElementsAre("9|3.0|1.0|2.0|NULL", "9|2.0|NULL|NULL|1.0", "10|1.0|NULL|NULL|NULL"));
  EXPECT_THAT(database.rows("SELECT * FROM monitoring_metrics"),
              ElementsAre("9|other", "10|new metric"));
  EXPECT_THAT(database.rows("SELECT * FROM global_stats"),
              ElementsAre("0|0|0|norm,max,zeros,unheard of\"|norm"));
  EXPECT_EQ(database.tile_values().size(), 6U);
}

TEST_F(TrendWriterTest, LayoutsHoldOnlyWhatTheySay) {
  for (const bool rows : {true, false}) {
    TrendOptions options = two_by_two();
    options.write_rows = rows;
    options.write_tiles = !rows;
    const fs::path path = directory_ / "dump_data.trend.db";
    TrendWriter writer(path, options);
    write_some(writer);
    writer.finish(targets_, summary());
    writer.close()->publish();
    TrendDatabase database(path);
    EXPECT_EQ(database.info("layout"), rows ? "rows" : "tiles");
    EXPECT_EQ(database.sql().query_integer("SELECT count(*) FROM trend_data"), rows ? 5 : 0);
    EXPECT_EQ(database.sql().query_integer("SELECT count(*) FROM trendprobe_tiles"), rows ? 0 : 5);
    EXPECT_EQ(database.sql().query_integer("SELECT count(*) FROM trendprobe_nonfinite"), 6);
    EXPECT_EQ(database.sql().query_integer("SELECT count(*) FROM trendprobe_metric_targets"), 3);
  }
}

TEST_F(TrendWriterTest, WithoutPublishNothingIsReplaced) {
  const fs::path path = directory_ / "dump_data.trend.db";
  std::ofstream(path) << "the old database";
  {
    TrendWriter writer(path, two_by_two());
    write_some(writer);
    writer.finish(targets_, summary());
  }
  EXPECT_THAT(files(), ElementsAre("dump_data.trend.db"));
  EXPECT_EQ(fs::file_size(path), 16U);
}

TEST_F(TrendWriterTest, WhatAKilledMergeLeftIsCleanedUp) {
  const fs::path path = directory_ / "dump_data.trend.db";
  const pid_t child = ::fork();
  if (child == 0) {
    TrendWriter writer(path, two_by_two());
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_THAT(files(), ElementsAre("dump_data.trend.db.lock", "dump_data.trend.db.part"));
  // The journal of a writer that crashed on the old database must not be played back into the new
  // one.
  std::ofstream(directory_ / "dump_data.trend.db-journal") << "old";
  TrendDatabase database(write_database());
  EXPECT_THAT(database.rows("PRAGMA integrity_check"), ElementsAre("ok"));
  EXPECT_THAT(files(), ElementsAre("dump_data.trend.db"));
}

TEST_F(TrendWriterTest, ASecondMergeOnTheSameFileIsTold) {
  const fs::path path = directory_ / "dump_data.trend.db";
  TrendWriter writer(path, two_by_two());
  try {
    const TrendWriter second(path, two_by_two());
    FAIL() << "two writers at once";
  } catch (const BusyError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(::getpid())));
  }
  // The first is not disturbed.
  write_some(writer);
  writer.finish(targets_, summary());
  writer.close()->publish();
  EXPECT_EQ(TrendDatabase(path).info("records"), "5");
}

TEST_F(TrendWriterTest, ADatabaseThatAnotherProcessIsWritingIsLeftAlone) {
  const fs::path path = write_database();
  int ready[2];
  int done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Database other(path, OpenOptions{.mode = OpenMode::kReadWrite});
    other.execute("BEGIN IMMEDIATE");
    char byte = 0;
    if (::write(ready[1], "x", 1) != 1 || ::read(done[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(TrendWriter(path, two_by_two()), BusyError);
  ASSERT_EQ(::write(done[1], "x", 1), 1);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(TrendDatabase(path).info("records"), "5");
}

TEST_F(TrendWriterTest, AReaderOfTheOldDatabaseKeepsIt) {
  const fs::path path = write_database();
  TrendDatabase reader(path);
  Statement select = reader.sql().prepare("SELECT rank FROM trend_data");
  ASSERT_TRUE(select.step());
  TrendWriter writer(path, two_by_two());
  writer.finish(targets_, summary());
  writer.close()->publish();
  EXPECT_TRUE(select.step());
  EXPECT_EQ(reader.info("records"), "5");
  EXPECT_EQ(TrendDatabase(path).info("records"), "0");
}

TEST_F(TrendWriterTest, AnOutputThatCannotBeWrittenIsNamed) {
  try {
    const TrendWriter writer(directory_.path() / "missing" / "dump_data.trend.db", two_by_two());
    FAIL();
  } catch (const fs::filesystem_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing/dump_data.trend.db"));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
  fs::create_directory(directory_ / "dump_data.trend.db");
  EXPECT_THROW(TrendWriter(directory_ / "dump_data.trend.db", two_by_two()), fs::filesystem_error);
  // A temporary file that is a link to somebody's file is replaced, never followed.
  const fs::path precious = directory_ / "precious";
  std::ofstream(precious) << "mine";
  fs::create_symlink(precious, directory_ / "x.trend.db.part");
  { const TrendWriter writer(directory_ / "x.trend.db", two_by_two()); }
  EXPECT_EQ(fs::file_size(precious), 4U);
}

TEST_F(TrendWriterTest, FirstNonFiniteFollowStepNetworkOrderAndRank) {
  TrendWriter writer(directory_ / "dump_data.trend.db", two_by_two());
  write_some(writer);
  writer.finish(targets_, summary());
  const std::vector<TrendNonFinite> found = writer.first_nonfinite(4);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].step.training_step, 5);
  EXPECT_EQ(found[0].target, "Module.layers.1.Linear.output.0");
  EXPECT_EQ(found[0].statistic, "mean");
  EXPECT_EQ(found[0].value, "NaN");
  EXPECT_EQ(found[3].step.micro_step, 1);
  EXPECT_EQ(found[3].rank, 3);
}

TEST_F(TrendWriterTest, NonFiniteValuesBeyondTheBufferAllArriveInOrder) {
  TrendOptions options = two_by_two();
  TrendWriter writer(directory_ / "dump_data.trend.db", options);
  const std::uint32_t forward = writer.add_metric(kForward);
  const double values[4] = {kNaN, kNaN, kNaN, kNaN};
  constexpr std::uint32_t kTargets = 150000;
  std::vector<TrendRecord> records;
  for (std::uint32_t i = 0; i < kTargets; ++i) {
    records.push_back({targets_.intern("t" + std::to_string(i), 0, 0), forward, values});
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t step = 0; step < 2; ++step) writer.append(rank, step, records);
  }
  TrendSummary summary;
  for (std::uint32_t i = 0; i < kTargets; ++i) summary.network_order.push_back(i);
  writer.finish(targets_, summary);
  writer.close()->publish();
  TrendDatabase database(directory_ / "dump_data.trend.db");
  EXPECT_EQ(database.sql().query_integer("SELECT count(*) FROM trendprobe_nonfinite"),
            16 * std::int64_t{kTargets});
  EXPECT_THAT(database.rows("PRAGMA integrity_check"), ElementsAre("ok"));
}

}  // namespace
}  // namespace trendprobe
