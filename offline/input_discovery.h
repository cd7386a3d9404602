// Finds what a data directory holds: shards, dump trees and monitor trees, at any depth.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "offline/diagnostics.h"

namespace trendprobe {

struct Inputs {
  std::vector<std::filesystem::path> dump_trees;
  std::vector<std::filesystem::path> monitor_trees;
  std::vector<std::filesystem::path> shards;

  bool empty() const { return dump_trees.empty() && monitor_trees.empty() && shards.empty(); }
};

/// Searches directories (a shard may also be named itself), each place once, also where symbolic
/// links lead to it twice. Each list is in the order of the arguments, then by path. What can't be
/// read is reported.
Inputs find_inputs(std::span<const std::filesystem::path> data, Diagnostics& diagnostics);

}  // namespace trendprobe
