#include "writer/module_row_numbering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace trendprobe {
namespace {

using ::testing::ElementsAre;

// "F a" = a forward row of module a, "B a" = its backward; → "name micro-step.call", R for
// recompute.
std::vector<std::string> numbered(const std::vector<std::string>& events) {
  std::vector<std::string> names;
  names.reserve(events.size());
  for (const std::string& event : events) {
    names.push_back(event.substr(2) + (event[0] == 'F' ? ".input.0" : ".grad_output.0"));
  }
  std::vector<ModuleRow> rows;
  for (std::size_t i = 0; i < events.size(); ++i) rows.push_back({names[i], events[i][0] == 'B'});
  std::vector<std::string> found;
  for (const ModuleRowNumber& number : number_module_rows(rows)) {
    std::ostringstream text;
    text << (number.is_recompute ? "R" : "") << number.micro_step << '.' << number.call;
    found.push_back(text.str());
  }
  return found;
}

TEST(ModuleRowNumbering, MicroBatchesOneAfterAnother) {
  EXPECT_THAT(numbered({"F ", "F a", "B a", "F ", "F a", "B a"}),
              ElementsAre("0.0", "0.0", "0.0", "1.0", "1.0", "1.0"));
}

TEST(ModuleRowNumbering, ForwardAndBackwardOfSeveralMicroBatchesInFlight) {
  EXPECT_THAT(numbered({"F ", "F a", "F ", "F a", "B a", "F ", "F a", "B a", "B a"}),
              ElementsAre("0.0", "0.0", "1.0", "1.0", "0.0", "2.0", "2.0", "1.0", "2.0"));
}

TEST(ModuleRowNumbering, ACheckpointedModuleRunsAgainBeforeItsBackward) {
  EXPECT_THAT(numbered({"F ", "F a", "F a", "B a", "F ", "F a", "F a", "B a"}),
              ElementsAre("0.0", "0.0", "R0.0", "0.0", "1.0", "1.0", "R1.0", "1.0"));
}

TEST(ModuleRowNumbering, RecomputationWithSeveralMicroBatchesInFlight) {
  EXPECT_THAT(numbered({"F ", "F a", "F ", "F a", "F a", "B a", "F a", "B a"}),
              ElementsAre("0.0", "0.0", "1.0", "1.0", "R0.0", "0.0", "R1.0", "1.0"));
}

TEST(ModuleRowNumbering, ARecomputationThatStopsEarlyLeavesTheRestAsItIs) {
  // b, the last in the checkpointed part, is not run again.
  EXPECT_THAT(numbered({"F ", "F a", "F b", "F a", "B b", "B a"}),
              ElementsAre("0.0", "0.0", "0.0", "R0.0", "0.0", "0.0"));
}

TEST(ModuleRowNumbering, AModuleThatRunsTwiceInAMicroBatch) {
  EXPECT_THAT(numbered({"F ", "F a", "F a", "B a", "B a", "F ", "F a", "F a", "B a", "B a"}),
              ElementsAre("0.0", "0.0", "0.1", "0.1", "0.0", "1.0", "1.0", "1.1", "1.1", "1.0"));
}

TEST(ModuleRowNumbering, AnEvaluationInBetweenIsNoRecomputation) {
  // Twice as many forward as backward passes, but each backward follows one forward only.
  EXPECT_THAT(numbered({"F a", "B a", "F a", "F a", "B a", "F a"}),
              ElementsAre("0.0", "0.0", "1.0", "2.0", "1.0", "3.0"));
}

TEST(ModuleRowNumbering, WithoutTheRootTheLeastOftenModuleCountsTheMicroSteps) {
  EXPECT_THAT(numbered({"F a", "F b", "F b", "F a", "F b", "F b"}),
              ElementsAre("0.0", "0.0", "0.1", "1.0", "1.0", "1.1"));
  EXPECT_THAT(numbered({"B a", "B a"}), ElementsAre("0.0", "1.0"));
  EXPECT_THAT(numbered({}), ElementsAre());
}

TEST(ModuleRowNumbering, ModuleOfARow) {
  EXPECT_EQ(module_of_row("a.b.input.0"), "a.b");
  EXPECT_EQ(module_of_row(".output.1"), "");
  EXPECT_EQ(module_of_row("a.input.proj.grad_output.0"), "a.input.proj");
  EXPECT_EQ(module_of_row("a"), "a");
}

}  // namespace
}  // namespace trendprobe
