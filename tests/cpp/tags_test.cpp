#include "writer/tags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trendprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> tags(RecordKind kind, std::string_view name) {
  std::vector<std::string> texts;
  for (const Tag& tag : tags_of(kind, name)) {
    texts.push_back(std::string(tag.category) + " " + tag.name);
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

TEST(DumpTags, SplitAModuleIntoLayersAndWhatLiesBetween) {
  EXPECT_THAT(tags(RecordKind::kDump, "Module.blocks.3.layer.1.conv2.Conv2d.input.2"),
              ElementsAre("default Module", "index input.2", "layer blocks.3", "layer layer.1",
                          "module conv2.Conv2d"));
  EXPECT_THAT(tags(RecordKind::kDump, "Module.module.layers.0.mlp.MLP.output.0"),
              ElementsAre("default Module", "index output.0", "layer layers.0", "module mlp.MLP",
                          "module module"));
  EXPECT_THAT(tags(RecordKind::kDump, "Cell.dense.Dense.parameters.weight"),
              ElementsAre("default Cell", "default parameters", "index parameters.weight",
                          "module dense.Dense"));
}

TEST(DumpTags, ANumberWithoutANameBeforeItMakesNoLayer) {
  EXPECT_THAT(tags(RecordKind::kDump, "Module.0.1.proj.2.3.Linear.input.0"),
              ElementsAre("default Module", "index input.0", "layer proj.2", "module Linear"));
}

TEST(DumpTags, AnApiIsAFunction) {
  EXPECT_THAT(tags(RecordKind::kDump, "Functional.linear.input.1"),
              ElementsAre("function Functional.linear", "index input.1"));
}

TEST(DumpTags, ANameOfLessThanThreePartsHasNone) {
  EXPECT_THAT(tags(RecordKind::kDump, "linear.input"), IsEmpty());
  EXPECT_THAT(tags(RecordKind::kDump, ""), IsEmpty());
  EXPECT_THAT(tags(RecordKind::kDump, "Module.input.0"), IsEmpty());
}

TEST(DumpTags, ATensorInATupleKeepsItsWholePath) {
  EXPECT_THAT(tags(RecordKind::kDump, "Module.attn.Attention.output.1.0"),
              ElementsAre("default Module", "index output.1.0", "module attn.Attention"));
  // A parameter list below a module called "input" is no tuple.
  EXPECT_THAT(tags(RecordKind::kDump, "Module.input.0.ParameterList.3"),
              ElementsAre("default Module", "index ParameterList.3", "layer input.0"));
}

TEST(MonitorTags, EveryWordIsAModuleAndEveryNumberALayer) {
  EXPECT_THAT(tags(RecordKind::kMonitor, "layers.22.self_attention.linear_qkv.layer_norm_weight"),
              ElementsAre("layer layers.22", "module layer_norm_weight", "module layers",
                          "module linear_qkv", "module self_attention"));
  EXPECT_THAT(tags(RecordKind::kMonitor, "0.1.a.2.3"), ElementsAre("layer a.2", "module a"));
  EXPECT_THAT(tags(RecordKind::kMonitor, ".input_0"), ElementsAre("module ", "module input_0"));
}

TEST(ModuleOf, IsTheNameLessTheTensor) {
  EXPECT_EQ(module_of(RecordKind::kDump, "forward", "Module.a.MLP.input.0"), "Module.a.MLP");
  EXPECT_EQ(module_of(RecordKind::kDump, "forward", "Module.a.MLP.output.1.0"), "Module.a.MLP");
  EXPECT_EQ(module_of(RecordKind::kDump, "backward", "Module.output.MLP.input.scale"),
            "Module.output.MLP");
  EXPECT_EQ(module_of(RecordKind::kDump, "forward", "Module.a.MLP.parameters.weight"),
            "Module.a.MLP");
  EXPECT_EQ(module_of(RecordKind::kDump, "parameters_grad", "Module.output.MLP.weight"),
            "Module.output.MLP");
  EXPECT_EQ(module_of(RecordKind::kMonitor, "actv", "layers.0.mlp.input"), "layers.0.mlp");
  EXPECT_EQ(module_of(RecordKind::kMonitor, "actv", ".input_0"), "");
}

}  // namespace
}  // namespace trendprobe
