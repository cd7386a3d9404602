#include "hook/dump_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "writer/dump_step.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

using ::testing::ElementsAre;

constexpr TensorStatistics kMeasured = {.norm = 5,
                                        .max = 4,
                                        .min = -3,
                                        .mean = 0.5,
                                        .nans = 1,
                                        .infs = 2,
                                        .zeros = 6,
                                        .count = 9,
                                        .std = 1.5};

DumpStatistics named(const std::vector<std::string>& names) {
  return DumpStatistics::named(names).value();
}

std::vector<double> values(DumpStatistics statistics, bool is_floating_point,
                           const TensorStatistics& measured = kMeasured) {
  std::vector<double> values(statistics.size());
  write_dump_values(measured, is_floating_point, statistics, values);
  return values;
}

TEST(DumpStatisticsTest, AreMsprobesFourUnlessChosenOtherwise) {
  EXPECT_THAT(DumpStatistics().names(), ElementsAre("norm", "max", "min", "mean"));
  EXPECT_EQ(DumpStatistics().size(), 4U);
  EXPECT_EQ(named({"norm", "max", "min", "mean"}), DumpStatistics());
}

TEST(DumpStatisticsTest, KeepTheOrderOfEveryFileWhateverTheOrderOfTheChoice) {
  EXPECT_THAT(named({"zeros", "std", "mean", "norm"}).names(),
              ElementsAre("norm", "mean", "std", "zeros"));
  EXPECT_THAT(named({"zeros", "infs", "nans", "std", "mean", "min", "max", "norm"}).names(),
              ElementsAre("norm", "max", "min", "mean", "std", "nans", "infs", "zeros"));
  EXPECT_EQ(named({"max", "max"}).size(), 1U);
}

TEST(DumpStatisticsTest, KnowNoOtherNames) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{}, {"Norm"}, {"norm", "median"}, {""}}) {
    EXPECT_FALSE(DumpStatistics::named(names).has_value());
  }
}

TEST(DumpStatisticsTest, AreThoseOfEveryMetric) {
  const std::vector<Metric> metrics = dump_metrics(named({"std", "norm"}));
  ASSERT_EQ(metrics.size(), 4U);
  for (const Metric& metric : metrics) EXPECT_THAT(metric.statistics, ElementsAre("norm", "std"));
}

TEST(DumpValuesTest, StandInTheOrderOfTheStatistics) {
  EXPECT_THAT(values({}, true), ElementsAre(5, 4, -3, 0.5));
  EXPECT_THAT(values(named({"zeros", "infs", "nans", "std", "mean", "min", "max", "norm"}), true),
              ElementsAre(5, 4, -3, 0.5, 1.5, 1, 2, 6));
  EXPECT_THAT(values(named({"std", "min", "zeros"}), true), ElementsAre(-3, 1.5, 6));
}

TEST(DumpValuesTest, IntegersHaveNoNormMeanAndStandardDeviation) {
  const std::vector<double> found =
      values(named({"norm", "max", "min", "mean", "std", "nans", "infs", "zeros"}), false);
  for (const std::size_t missing : {0U, 3U, 4U}) EXPECT_TRUE(is_missing(found[missing]));
  EXPECT_THAT(std::vector(found.begin() + 1, found.begin() + 3), ElementsAre(4, -3));
  EXPECT_THAT(std::vector(found.begin() + 5, found.end()), ElementsAre(1, 2, 6));
}

TEST(DumpValuesTest, ANaNIsMeasuredWhateverItsBits) {
  TensorStatistics measured = kMeasured;
  measured.std = std::nan("7");
  const std::vector<double> found = values(named({"std"}), true, measured);
  EXPECT_TRUE(std::isnan(found[0]) && !is_missing(found[0]));
}

TEST(DumpStepTest, IsNumberedWithTheStatisticsThatItHas) {
  DumpStep step;
  step.statistics = named({"mean", "nans"});
  step.entries = {{"Module.fc.Linear.forward.0", false, 0, 3}};
  step.tensors = {{".input.0"}, {".input.1"}, {".output.0"}};
  step.values = {0.5, 1, kMissing, kMissing, kMissing, 2};
  TargetTable targets;
  const NumberedDumpStep numbered = number_dump_step(step, 7, {}, targets);
  ASSERT_EQ(numbered.blocks.size(), 1U);
  ASSERT_EQ(targets.size(), 2U);  // what has no value is no record
  EXPECT_EQ(targets[1].name, "Module.fc.Linear.output.0");
  const std::vector<double>& found = numbered.blocks[0].values;
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0], 0.5);
  EXPECT_EQ(found[1], 1);
  EXPECT_TRUE(is_missing(found[2]));
  EXPECT_EQ(found[3], 2);
}

}  // namespace
}  // namespace trendprobe
