#include "offline/monitor_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "offline/merger.h"
#include "offline/monitor_names.h"
#include "tests/cpp/merge_and_publish.h"
#include "tests/cpp/temporary_directory.h"
#include "tests/cpp/trend_database.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::string_view kHeader = "vpp_stage,name,step,micro_step,norm\n";

class MonitorSourceTest : public testing::Test {
 protected:
  /// Writes <tree>/<directory>/<file>: the header, then rows "name,step,micro_step,norm".
  void write(const std::string& directory, const std::string& file,
             const std::vector<std::string>& rows) const {
    fs::create_directories(tree() / directory);
    std::ofstream stream(tree() / directory / file, std::ios::binary);
    stream << kHeader;
    for (const std::string& row : rows) stream << "0," << row << '\n';
  }

  /// Merges the tree; the rows "rank|training step|micro-step|metric|target|norm".
  std::vector<std::string> merge_tree(MonitorOptions options = {}) {
    MergeOptions merge_options;
    merge_options.micro_steps = options.micro_steps;
    merge_options.as_msprobe = options.as_msprobe;
    std::vector<std::unique_ptr<RecordSource>> sources;
    sources.push_back(make_monitor_source(tree(), std::move(options)));
    const fs::path database = directory_ / "monitor_data.trend.db";
    summary_ = merge_and_publish(std::move(sources), database, merge_options, diagnostics_);
    if (summary_.records == 0) return {};
    return TrendDatabase(database).rows(
        "SELECT rank, s.training_step, s.micro_step, metric_name, target_name, norm FROM "
        "trend_data "
        "JOIN trendprobe_steps s USING(step) JOIN monitoring_targets USING(target_id) "
        "JOIN monitoring_metrics USING(metric_id) ORDER BY 1, 2, 3, 4, 5");
  }

  std::vector<std::string> losses() const {
    std::vector<std::string> found;
    for (const Issue& issue : diagnostics_.issues()) {
      if (issue.severity == Severity::kNotice) continue;
      found.push_back(fs::path(issue.path).filename().string() + ": " + issue.what);
    }
    return found;
  }

  fs::path tree() const { return directory_ / "monitor"; }

  TemporaryDirectory directory_;
  Diagnostics diagnostics_;
  MergeSummary summary_;
};

TEST_F(MonitorSourceTest, OfSeveralRunsOfARankTheLaterOneWinsRecordByRecord) {
  // The identifiers are in the reverse order, so that neither name nor listing order decides.
  write("Dec01_10-00-00-rank0-c", "actv_0-3.csv", {"m,0,0,10", "m,1,0,11", "m,2,0,12", "n,2,0,5"});
  write("Dec01_11-00-00-rank0-b", "actv_1-3.csv", {"m,1,0,21", "m,2,0,22"});
  write("Dec02_09-00-00-rank0-a", "actv_2-4.csv", {"m,2,0,32", "m,3,0,33"});
  write("Dec01_10-00-00-rank1-z", "actv_0-3.csv", {"m,0,0,40"});
  EXPECT_THAT(merge_tree(),
              ElementsAre("0|0|0|actv|m|10.0", "0|1|0|actv|m|21.0", "0|2|0|actv|m|32.0",
                          "0|2|0|actv|n|5.0", "0|3|0|actv|m|33.0", "1|0|0|actv|m|40.0"));
  EXPECT_EQ(summary_.superseded, 3U);
  EXPECT_FALSE(diagnostics_.has_losses());
}

TEST_F(MonitorSourceTest, TheLaterRunWinsAcrossNewYear) {
  write("Dec30_10-00-00-rank0-a", "actv_0-1.csv", {"m,0,0,1", "m,1,0,1", "m,2,0,1"});
  write("Dec31_23-59-59-rank0-b", "actv_1-2.csv", {"m,1,0,2", "m,2,0,2"});
  write("Jan01_00-00-00-rank0-c", "actv_2-3.csv", {"m,2,0,3"});
  EXPECT_THAT(merge_tree(),
              ElementsAre("0|0|0|actv|m|1.0", "0|1|0|actv|m|2.0", "0|2|0|actv|m|3.0"));
}

TEST_F(MonitorSourceTest, WithoutATimeInTheNameItIsSaidWhoWins) {
  write("run-rank0-a", "actv_0-0.csv", {"m,0,0,1"});
  write("Dec31_23-59-59-rank0-b", "actv_0-0.csv", {"m,0,0,2"});
  EXPECT_THAT(merge_tree(), ElementsAre("0|0|0|actv|m|2.0"));
  ASSERT_THAT(diagnostics_.issues(), SizeIs(1));
  EXPECT_THAT(diagnostics_.issues()[0].what, HasSubstr("has a name without a time"));
  EXPECT_THAT(diagnostics_.issues()[0].path, HasSubstr("run-rank0-a"));
}

TEST_F(MonitorSourceTest, AsMsProbeTheDirectoryListedLastIsTheOnlyOne) {
  for (int i = 0; i < 20; ++i) {
    write("Dec01_10-00-" + std::to_string(10 + i) + "-rank0-a", "actv_0-0.csv",
          {"m,0,0," + std::to_string(i)});
  }
  fs::path last;
  for (const fs::directory_entry& entry : fs::directory_iterator(tree())) last = entry.path();
  MonitorOptions options;
  options.as_msprobe = true;
  const int number = std::stoi(last.filename().string().substr(12, 2)) - 10;
  EXPECT_THAT(merge_tree(options), ElementsAre("0|0|0|actv|m|" + std::to_string(number) + ".0"));
  EXPECT_THAT(losses(), SizeIs(19));
}

TEST_F(MonitorSourceTest, OfTwoRowsOfOneRecordTheLastWinsAndMsProbesFirst) {
  write("Dec01_10-00-00-rank0-a", "actv_0-0.csv", {"m,0,0,1", "n,0,0,5", "m,0,0,2", "m,0,0,3"});
  EXPECT_THAT(merge_tree(), ElementsAre("0|0|0|actv|m|3.0", "0|0|0|actv|n|5.0"));
  EXPECT_EQ(summary_.superseded, 2U);
  ASSERT_THAT(diagnostics_.issues(), SizeIs(1));
  const Issue issue = diagnostics_.issues()[0];
  EXPECT_EQ(issue.location, "line 4");
  EXPECT_EQ(issue.what, "repeats a record that its step has already (the first of 2 such)");
  EXPECT_EQ(issue.kept, "the last of them");
  MonitorOptions options;
  options.as_msprobe = true;
  EXPECT_THAT(merge_tree(options), ElementsAre("0|0|0|actv|m|1.0", "0|0|0|actv|n|5.0"));
}

TEST_F(MonitorSourceTest, MicroStepsAreStepsOrTellTargetsApart) {
  write("Dec01_10-00-00-rank0-a", "actv_0-1.csv",
        {"m,0,0,1", "m,0,1,2", "m,0,2,3", "m,1,0,4", "m,1,1,5"});
  write("Dec01_10-00-00-rank0-a", "param_origin_0-1.csv", {"p,0,0,7", "p,1,0,8"});
  EXPECT_THAT(merge_tree(), ElementsAre("0|0|0|actv|m|1.0", "0|0|0|param_origin|p|7.0",
                                        "0|0|1|actv|m|2.0", "0|0|2|actv|m|3.0", "0|1|0|actv|m|4.0",
                                        "0|1|0|param_origin|p|8.0", "0|1|1|actv|m|5.0"));
  MonitorOptions options;
  options.micro_steps = false;
  EXPECT_THAT(merge_tree(options), SizeIs(7));
  EXPECT_THAT(TrendDatabase(summary_.database)
                  .rows("SELECT DISTINCT step, target_name, micro_step FROM trend_data JOIN "
                        "monitoring_targets USING(target_id) WHERE step=0 ORDER BY 2, 3"),
              ElementsAre("0|m|0", "0|m|1", "0|m|2", "0|p|0"));
}

TEST_F(MonitorSourceTest, HugeStepNumbersAreNumbers) {
  write("Dec01_10-00-00-rank99999-a", "actv_1000000000000-9007199254740992.csv",
        {"m,1000000000000,0,1", "m,9007199254740992,0,2", "m,9007199254740993,0,3"});
  EXPECT_THAT(merge_tree(), ElementsAre("99999|1000000000000|0|actv|m|1.0",
                                        "99999|9007199254740992|0|actv|m|2.0"));
  EXPECT_THAT(losses(), ElementsAre("actv_1000000000000-9007199254740992.csv: has a step beyond "
                                    "2^53"));
}

TEST_F(MonitorSourceTest, WhatIsNoMonitorFileIsLeftOutAndNamed) {
  write("Dec01_10-00-00-rank0-a", "actv_0-0.csv", {"m,0,0,1"});
  write("Dec01_10-00-00-rank0-a", "actv_0-0.csv.bak", {"m,0,0,2"});
  write("Dec01_10-00-00-rank0-a", "unknown_0-0.csv", {"m,0,0,3"});
  write("Dec01_10-00-00-rank0-a", "actv_x-0.csv", {"m,0,0,4"});
  write("Dec01_10-00-00-rank0-a", "actv_0-99999999999999999999.csv", {"m,0,0,5"});
  write("Dec01_10-00-00-rank0-a", "anomaly.json", {});
  write("Dec01_10-00-00-rank1x-a", "actv_0-0.csv", {"m,0,0,6"});
  fs::create_directories(tree() / "Dec01_10-00-00-rank2-a");
  EXPECT_THAT(merge_tree(), ElementsAre("0|0|0|actv|m|1.0"));
  EXPECT_THAT(losses(), ElementsAre("Dec01_10-00-00-rank2-a: has no monitor CSV"));
  EXPECT_THAT(diagnostics_.issues(), SizeIs(5));
}

TEST_F(MonitorSourceTest, AFileWithoutRowsIsReportedOnceAlsoWhereItsStepsAreAlone) {
  write("Dec01_10-00-00-rank0-a", "actv_0-0.csv", {"m,0,0,1"});
  fs::create_directories(tree() / "Dec01_10-00-00-rank0-a");
  std::ofstream(tree() / "Dec01_10-00-00-rank0-a" / "actv_1-1.csv") << "";
  std::ofstream(tree() / "Dec01_10-00-00-rank0-a" / "actv_2-2.csv") << "0,m,2,0,1\n";
  EXPECT_THAT(merge_tree(), ElementsAre("0|0|0|actv|m|1.0"));
  EXPECT_THAT(losses(), ElementsAre("actv_1-1.csv: is empty (0 bytes)",
                                    "actv_2-2.csv: has a header without the column name"));
}

TEST_F(MonitorSourceTest, LinksAndLoopsAreFollowedOnce) {
  write("Dec01_10-00-00-rank0-a", "actv_0-0.csv", {"m,0,0,1"});
  fs::create_directory_symlink(tree() / "Dec01_10-00-00-rank0-a",
                               tree() / "Dec01_11-00-00-rank1-b");
  fs::create_symlink("nowhere", tree() / "Dec01_10-00-00-rank0-a" / "actv_1-1.csv");
  fs::create_symlink("actv_2-2.csv", tree() / "Dec01_10-00-00-rank0-a" / "actv_2-2.csv");
  EXPECT_THAT(merge_tree(), ElementsAre("0|0|0|actv|m|1.0", "1|0|0|actv|m|1.0"));
  EXPECT_THAT(losses(), ElementsAre(HasSubstr("actv_1-1.csv: can't be read"),
                                    HasSubstr("actv_2-2.csv: can't be read"),
                                    HasSubstr("actv_1-1.csv: can't be read"),
                                    HasSubstr("actv_2-2.csv: can't be read")));
}

// Units of more than 32 MiB are cut at the steps: every record is read once, in the right unit.
TEST_F(MonitorSourceTest, LargeFilesAreReadInParts) {
  constexpr int kSteps = 30;
  constexpr int kTargets = 2000;
  for (const char* metric : {"actv", "actv_grad"}) {
    std::vector<std::string> rows;
    for (int step = 0; step < kSteps; ++step) {
      for (int target = 0; target < kTargets; ++target) {
        rows.push_back(std::string(300, 'n') + std::to_string(target) + "," + std::to_string(step) +
                       ",0," + std::to_string(step * kTargets + target));
      }
      if (step == kSteps / 2) rows.emplace_back("bad row");
    }
    rows.emplace_back("late,3,1,7");
    write("Dec01_10-00-00-rank0-a", std::string(metric) + "_0-29.csv", rows);
  }
  const std::unique_ptr<RecordSource> source = make_monitor_source(tree(), {});
  const std::vector<ReadUnit> units = source->scan(diagnostics_, 2);
  EXPECT_GT(units.size(), 1U);
  std::set<std::int64_t> steps;
  std::size_t records = 0;
  std::size_t late = 0;
  std::size_t wrong = 0;
  for (const ReadUnit& unit : units) {
    for (const auto& [step, micro_steps] : unit.steps) {
      EXPECT_TRUE(steps.insert(step).second) << "step " << step << " is in two units";
      EXPECT_EQ(micro_steps, step == 3 ? 2 : 1);
    }
    const UnitRecords read = source->read(unit, diagnostics_);
    for (const RecordBlock& block : read.blocks) {
      records += block.targets.size();
      for (std::size_t i = 0; i < block.targets.size(); ++i) {
        const std::string& name = (*read.targets)[block.targets[i]].name;
        if (name == "late") {
          late += static_cast<std::size_t>(block.training_step == 3 && block.micro_step == 1);
        } else if (block.values[i] != static_cast<double>(block.training_step * kTargets +
                                                          std::stoi(name.substr(300)))) {
          ++wrong;
        }
      }
    }
  }
  EXPECT_THAT(steps, SizeIs(kSteps));
  EXPECT_EQ(records, 2U * (kSteps * kTargets + 1));
  EXPECT_EQ(late, 2U);
  EXPECT_EQ(wrong, 0U);
  EXPECT_TRUE(diagnostics_.has_losses());
}

TEST(MonitorNamesTest, DirectoryNames) {
  const auto rank = [](const char* name) {
    const auto directory = parse_rank_directory(fs::path("/tmp") / name);
    return directory ? directory->rank : -1;
  };
  EXPECT_EQ(rank("Dec03_21-34-40-rank7-c9123fdc"), 7);
  EXPECT_EQ(rank("-rank12-"), 12);
  EXPECT_EQ(rank("a-rank1-rank2-x"), 2);
  EXPECT_EQ(rank("a-rank1-rank2"), 1);
  EXPECT_EQ(rank("\xE6\xA8\xA1-rank3-x"), 3);
  for (const char* name : {"rank0-x", "a-rank-x", "a-rank123456-x", "a-rank1x-x", "a b-rank0-x", "",
                           "a_name_of_more_than_20_bytes-rank0-x", "a-rank0"}) {
    EXPECT_EQ(rank(name), -1) << name;
  }
}

TEST(MonitorNamesTest, FileNames) {
  const auto name = parse_monitor_file_name("exp_avg_sq_10-1000000000000.csv", false);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->first_step, 10);
  EXPECT_EQ(name->last_step, 1'000'000'000'000);
  EXPECT_FALSE(parse_monitor_file_name("actv_0-1.csv~", false));
  EXPECT_TRUE(parse_monitor_file_name("actv_0-1.csv~", true));
  for (const char* bad : {"", "actv.csv", "actv_0.csv", "actv_-1-2.csv", "actv_0-1.txt",
                          "x_0-1.csv", "_0-1.csv", "actv_0-1-2.csv", "actv_0-.csv"}) {
    EXPECT_FALSE(parse_monitor_file_name(bad, false)) << bad;
  }
}

}  // namespace
}  // namespace trendprobe
