#include "offline/input_discovery.h"

#include <algorithm>
#include <set>
#include <string>
#include <system_error>

#include "offline/directory_listing.h"
#include "offline/dump_source.h"
#include "offline/monitor_source.h"
#include "offline/monitor_v2_source.h"
#include "offline/shard_source.h"
#include "offline/trend_source.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 32;

class Search {
 public:
  Search(Inputs& inputs, TrendDatabases trend_databases, Diagnostics& diagnostics)
      : inputs_(inputs), trend_databases_(trend_databases), diagnostics_(diagnostics) {}

  void visit(const fs::path& directory, int depth) {
    std::error_code error;
    const fs::path real = fs::canonical(directory, error);
    if (error || !visited_.insert(real).second) return;
    if (depth > kMaxDepth) {
      diagnostics_.report({Severity::kSkipped,
                           directory.string(),
                           {},
                           "lies more than " + std::to_string(kMaxDepth) +
                               " directories below --data: name a directory nearer to it",
                           "nothing of it"});
      return;
    }
    std::vector<fs::path> children;
    for (fs::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code type_error;
      if (it->is_directory(type_error)) children.push_back(it->path());
    }
    if (error) {
      diagnostics_.report({Severity::kSkipped,
                           directory.string(),
                           {},
                           "can't be read: " + error.message(),
                           "nothing of it"});
      return;
    }
    const std::vector<fs::path> shards = files_ending_in(directory, ".shard");
    inputs_.shards.insert(inputs_.shards.end(), shards.begin(), shards.end());
    if (trend_databases_ == TrendDatabases::kFound) {
      const std::vector<fs::path> found = files_ending_in(directory, ".trend.db");
      inputs_.trend_databases.insert(inputs_.trend_databases.end(), found.begin(), found.end());
    }
    if (is_monitor_tree(directory)) inputs_.monitor_trees.push_back(directory);
    if (is_monitor_v2_tree(directory)) inputs_.monitor_v2_trees.push_back(directory);
    const bool dump_tree = is_dump_tree(directory);
    if (dump_tree) inputs_.dump_trees.push_back(directory);
    std::sort(children.begin(), children.end());
    for (const fs::path& child : children) {
      // A dump tree's steps hold nothing else, and there may be many.
      if (dump_tree && child.filename().string().starts_with("step")) continue;
      visit(child, depth + 1);
    }
  }

 private:
  Inputs& inputs_;
  TrendDatabases trend_databases_;
  Diagnostics& diagnostics_;
  std::set<fs::path> visited_;
};

}  // namespace

Inputs find_inputs(std::span<const fs::path> data, TrendDatabases trend_databases,
                   Diagnostics& diagnostics) {
  Inputs inputs;
  Search search(inputs, trend_databases, diagnostics);
  for (const fs::path& path : data) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      search.visit(path, 0);
    } else if (!error && path.extension() == ".shard") {
      inputs.shards.push_back(path);
    } else if (!error && fs::is_regular_file(path, error) && path.extension() == ".db") {
      inputs.trend_databases.push_back(path);
    } else {
      diagnostics.report({Severity::kSkipped,
                          path.string(),
                          {},
                          error ? "can't be read: " + error.message()
                                : "is neither a directory, nor a shard, nor a trend database",
                          "nothing of it"});
    }
  }
  return inputs;
}

}  // namespace trendprobe
