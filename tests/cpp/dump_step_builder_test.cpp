#include "hook/dump_step_builder.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace trendprobe {
namespace {

/// "name: suffix value, …" of every entry.
std::vector<std::string> described(const DumpStep& step) {
  std::vector<std::string> lines;
  for (const DumpEntry& entry : step.entries) {
    std::string line(entry.name);
    if (entry.is_recompute) line += " (recompute)";
    for (std::uint32_t i = 0; i < entry.tensor_count; ++i) {
      const std::size_t tensor = entry.first_tensor + i;
      line += " " + std::string(step.tensors[tensor].suffix) + "=" +
              std::to_string(static_cast<int>(step.values_of(tensor)[0]));
    }
    lines.push_back(line);
  }
  return lines;
}

struct Tensor {
  std::string_view suffix;
  double norm;
};

Tensor tensor(std::string_view suffix, double norm) { return {suffix, norm}; }

class DumpStepBuilderTest : public ::testing::Test {
 protected:
  void add(std::string_view entry, DumpSection section, const std::vector<Tensor>& measured,
           bool is_recompute = false) {
    std::vector<DumpTensor> tensors;
    std::vector<double> values;
    for (const Tensor& tensor : measured) {
      tensors.push_back({tensor.suffix});
      values.insert(values.end(), {tensor.norm, 1, 0, 0});
    }
    const DumpStepBuilder::Section added{section, tensors, values};
    builder.add(entry, {&added, 1}, is_recompute);
  }

  DumpStepBuilder builder;
  const std::string module = "Module.fc.Linear.forward.0";
  const std::string function = "Functional.relu.0.forward";
  const std::string other = "Module.act.ReLU.forward.0";
};

TEST_F(DumpStepBuilderTest, JoinsTheSectionsOfAnEntry) {
  add(function, DumpSection::kInputArgs, {tensor(".input.0", 1), tensor(".input.1", 2)});
  add(other, DumpSection::kInputArgs, {tensor(".input.0", 3)});
  add(function, DumpSection::kOutput, {tensor(".output.0", 4)}, true);
  EXPECT_EQ(builder.tensor_count(), 4U);
  EXPECT_EQ(described(builder.take()),
            (std::vector<std::string>{
                "Functional.relu.0.forward (recompute) .input.0=1 .input.1=2 .output.0=4",
                "Module.act.ReLU.forward.0 .input.0=3"}));
  EXPECT_TRUE(builder.empty());
}

TEST_F(DumpStepBuilderTest, ParametersOfAModuleDoNotReplaceEachOther) {
  const std::string gradients = "Module.fc.Linear.parameters_grad.0";
  const std::string weight = ".weight";
  const std::string bias = ".bias";
  add(gradients, DumpSection::kParametersGrad, {tensor(weight, 1)});
  add(gradients, DumpSection::kParametersGrad, {tensor(bias, 2)});
  add(gradients, DumpSection::kParametersGrad, {tensor(weight, 3)});
  EXPECT_EQ(described(builder.take()),
            (std::vector<std::string>{"Module.fc.Linear.parameters_grad.0 .weight=3 .bias=2"}));
}

TEST_F(DumpStepBuilderTest, AModuleMovesToTheEndWhenItsOutputArrives) {
  add(module, DumpSection::kInputArgs, {tensor(".input.0", 1)});
  add(other, DumpSection::kInputArgs, {tensor(".input.0", 2)});
  add(other, DumpSection::kOutput, {tensor(".output.0", 3)});
  add(module, DumpSection::kOutput, {tensor(".output.0", 4)});
  EXPECT_EQ(described(builder.take()),
            (std::vector<std::string>{"Module.act.ReLU.forward.0 .input.0=2 .output.0=3",
                                      "Module.fc.Linear.forward.0 .input.0=1 .output.0=4"}));
}

TEST_F(DumpStepBuilderTest, ASectionThatComesAgainReplacesTheFirstInItsPlace) {
  add(module, DumpSection::kInputArgs, {tensor(".input.0", 1), tensor(".input.1", 2)});
  add(module, DumpSection::kOutput, {tensor(".output.0", 3)});
  add(module, DumpSection::kInputArgs, {tensor(".input.0", 4)});
  EXPECT_EQ(builder.tensor_count(), 2U);
  EXPECT_EQ(described(builder.take()),
            std::vector<std::string>{"Module.fc.Linear.forward.0 .input.0=4 .output.0=3"});
}

TEST_F(DumpStepBuilderTest, TakesAnEntryBack) {
  add(module, DumpSection::kInputArgs, {tensor(".input.0", 1)});
  add(other, DumpSection::kInputArgs, {tensor(".input.0", 2)});
  builder.remove(module);
  builder.remove(function);
  EXPECT_EQ(builder.tensor_count(), 1U);
  add(module, DumpSection::kOutput, {tensor(".output.0", 3)});
  EXPECT_EQ(described(builder.take()),
            (std::vector<std::string>{"Module.act.ReLU.forward.0 .input.0=2",
                                      "Module.fc.Linear.forward.0 .output.0=3"}));
}

TEST_F(DumpStepBuilderTest, ANodeKeepsItsPlaceAndItsLatestParent) {
  builder.set_parent(other, std::nullopt);
  builder.set_parent(module, std::nullopt, 3);
  builder.set_parent(other, module, 1);
  const DumpStep step = builder.take();
  ASSERT_EQ(step.construct.size(), 2U);
  EXPECT_TRUE(step.has_construct);
  EXPECT_EQ(step.construct[0].name, other);
  EXPECT_EQ(step.construct[0].parent, module);
  EXPECT_EQ(step.construct[0].megatron_micro_step, 1);
  EXPECT_EQ(step.construct[1].parent, std::nullopt);
  EXPECT_FALSE(builder.take().has_construct);
}

TEST_F(DumpStepBuilderTest, ThreadsAddToTheSameStep) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEntries = 500;
  std::vector<std::string> names;
  names.reserve(kThreads * kEntries);
  for (std::size_t i = 0; i < kThreads * kEntries; ++i)
    names.push_back("Tensor.add." + std::to_string(i));
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kEntries; ++i) {
        const std::string& name = names[t * kEntries + i];
        const auto value = static_cast<double>(i);
        add(name, DumpSection::kInputArgs, {tensor(".input.0", value)});
        add(name, DumpSection::kOutput, {tensor(".output.0", -value)});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DumpStep step = builder.take();
  ASSERT_EQ(step.entries.size(), names.size());
  for (const DumpEntry& entry : step.entries) {
    ASSERT_EQ(entry.tensor_count, 2U);
    EXPECT_EQ(step.values_of(entry.first_tensor)[0], -step.values_of(entry.first_tensor + 1)[0]);
  }
}

}  // namespace
}  // namespace trendprobe
