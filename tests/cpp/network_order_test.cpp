#include "offline/network_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace trendprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

class NetworkOrderTest : public testing::Test {
 protected:
  // "a b.2 3:c" = module a, module b in its third call, module c of vpp stage 3; one output each.
  void add(NetworkOrder& order, std::string_view metric, const std::vector<std::string>& modules,
           const std::string& suffix = ".output.0") {
    std::vector<std::uint32_t> block;
    for (std::string name : modules) {
      int call = 0;
      int vpp = 0;
      if (const std::size_t dot = name.find('.'); dot != std::string::npos) {
        call = std::stoi(name.substr(dot + 1));
        name.resize(dot);
      }
      if (const std::size_t colon = name.find(':'); colon != std::string::npos) {
        vpp = std::stoi(name.substr(0, colon));
        name.erase(0, colon + 1);
      }
      std::string target = "Module.";
      target.append(name).append(suffix);
      block.push_back(targets_.intern(target, vpp, call));
    }
    order.add(metric, block, targets_);
  }

  std::vector<std::string> result(const NetworkOrder& order) {
    std::vector<std::string> names;
    for (const std::uint32_t target : order.order()) {
      const Target& entry = targets_[target];
      std::string name = entry.name.substr(7);
      name = name.substr(0, name.find('.'));
      if (entry.vpp_stage != 0) name.insert(0, std::to_string(entry.vpp_stage) + ":");
      if (entry.call != 0) name += "." + std::to_string(entry.call);
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }

  TargetTable targets_;
};

TEST_F(NetworkOrderTest, NothingAddedHasNoOrder) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {});
  EXPECT_THAT(order.order(), IsEmpty());
}

TEST_F(NetworkOrderTest, PipelineStagesComeOneAfterAnother) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {"embed", "layer0", "layer1"});
  add(order, "forward", {"layer2", "layer3", "head"});
  EXPECT_THAT(result(order), ElementsAre("embed", "layer0", "layer1", "layer2", "layer3", "head"));
}

TEST_F(NetworkOrderTest, AModuleOfOneRankOnlyFindsItsPlaceBetweenItsNeighbours) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {"embed", "layer0", "layer1", "norm"});
  add(order, "forward", {"layer0", "inject", "layer1", "head"});
  EXPECT_THAT(result(order), ElementsAre("embed", "layer0", "inject", "layer1", "norm", "head"));
}

TEST_F(NetworkOrderTest, WhatIsFoundBeforeItsPredecessorsIsMovedBehindThem) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {"layer1", "head"});
  add(order, "forward", {"embed", "layer0", "layer1"});
  EXPECT_THAT(result(order), ElementsAre("embed", "layer0", "layer1", "head"));
}

TEST_F(NetworkOrderTest, GradientsRunBackwards) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "backward", {"head", "extra", "layer1", "layer0"});
  add(order, "forward", {"embed", "layer0", "layer1", "head"});
  EXPECT_THAT(result(order), ElementsAre("embed", "layer0", "layer1", "extra", "head"));
}

TEST_F(NetworkOrderTest, GradientsAloneAreTurnedAround) {
  NetworkOrder order(RecordKind::kMonitor);
  add(order, "grad_unreduced", {"norm", "layer1", "layer0"}, ".weight");
  EXPECT_THAT(result(order), ElementsAre("layer0", "layer1", "norm"));
}

TEST_F(NetworkOrderTest, WhichWayAListRunsIsFoundByComparing) {
  NetworkOrder order(RecordKind::kMonitor);
  add(order, "actv", {"embed", "layer0", "layer1"}, ".input");
  // Usually backwards, but here in the network's order.
  add(order, "actv_grad", {"layer0", "extra", "layer1"}, ".input");
  // Usually forwards.
  add(order, "param_origin", {"layer1", "other", "layer0"}, ".weight");
  EXPECT_THAT(result(order), ElementsAre("embed", "layer0", "extra", "other", "layer1"));
}

TEST_F(NetworkOrderTest, AModuleThatIsCalledAgainKeepsItsFirstPlaceAndEachCallHasItsOwn) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {"a", "drop", "b", "drop.1", "a", "c"});
  EXPECT_THAT(result(order), ElementsAre("a", "drop", "b", "drop.1", "c"));
}

TEST_F(NetworkOrderTest, ModelChunksFollowTheOrderInTime) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {"embed", "layer", "1:layer"});
  add(order, "forward", {"layer", "1:layer", "1:head"});
  EXPECT_THAT(result(order), ElementsAre("embed", "layer", "1:layer", "1:head"));
}

TEST_F(NetworkOrderTest, ContradictionsBreakTheFewestLists) {
  NetworkOrder order(RecordKind::kDump);
  add(order, "forward", {"a", "b", "c"});
  add(order, "forward", {"x", "a", "b"});
  add(order, "forward", {"y", "a", "b"});
  add(order, "forward", {"b", "a"});
  EXPECT_THAT(result(order), ElementsAre("x", "y", "a", "b", "c"));
}

TEST_F(NetworkOrderTest, TheTensorsOfAModuleAreTogetherInTheOrderTheyCame) {
  NetworkOrder order(RecordKind::kDump);
  const std::uint32_t grad = targets_.intern("Module.a.Linear.weight", 0, 0);
  order.add("parameters_grad", std::vector<std::uint32_t>{grad}, targets_);
  const std::uint32_t input = targets_.intern("Module.a.Linear.input.0", 0, 0);
  const std::uint32_t next = targets_.intern("Module.b.Linear.input.0", 0, 0);
  const std::uint32_t output = targets_.intern("Module.a.Linear.output.0", 0, 0);
  const std::uint32_t weight = targets_.intern("Module.a.Linear.parameters.weight", 0, 0);
  order.add("forward", std::vector<std::uint32_t>{input, output, weight, next}, targets_);
  EXPECT_THAT(order.order(), ElementsAre(input, output, weight, grad, next));
}

TEST_F(NetworkOrderTest, PartsOfOneOrderGiveThatOrder) {
  std::mt19937 random(7);
  std::vector<std::string> truth;
  truth.reserve(200);
  for (int i = 0; i < 200; ++i) truth.push_back("m" + std::to_string(i));
  for (int round = 0; round < 20; ++round) {
    NetworkOrder order(RecordKind::kDump);
    targets_ = TargetTable();
    // Every neighbouring pair occurs in some list, so only one order agrees with all of them.
    for (int begin : {150, 40, 0, 90}) {
      add(order, "forward", {truth.begin() + begin, truth.begin() + std::min(begin + 61, 200)});
    }
    for (int list = 0; list < 20; ++list) {
      std::vector<std::string> part;
      std::sample(truth.begin(), truth.end(), std::back_inserter(part), 50, random);
      add(order, "forward", part);
      std::reverse(part.begin(), part.end());
      add(order, "backward", part);
    }
    EXPECT_THAT(result(order), ElementsAreArray(truth));
  }
}

}  // namespace
}  // namespace trendprobe
