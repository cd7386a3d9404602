// Finds what a data directory holds: shards, dump trees, monitor trees and trend databases, at any
// depth.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "offline/diagnostics.h"

namespace trendprobe {

struct Inputs {
  std::vector<std::filesystem::path> dump_trees;
  std::vector<std::filesystem::path> monitor_trees;
  std::vector<std::filesystem::path> monitor_v2_trees;
  std::vector<std::filesystem::path> shards;
  std::vector<std::filesystem::path> trend_databases;

  bool empty() const {
    return dump_trees.empty() && monitor_trees.empty() && monitor_v2_trees.empty() &&
           shards.empty() && trend_databases.empty();
  }
};

/// Which trend databases are taken as input.
enum class TrendDatabases : std::uint8_t {
  /// Those that are named themselves: what an earlier merge wrote beside its input is no input.
  kNamed,
  /// Those in the directories, too.
  kFound,
};

/// Searches directories (a shard or trend database may also be named itself), each place once, also
/// where symbolic links lead to it twice. Each list is in the order of the arguments, then by path.
/// What can't be read is reported.
Inputs find_inputs(std::span<const std::filesystem::path> data, TrendDatabases trend_databases,
                   Diagnostics& diagnostics);

}  // namespace trendprobe
