#include "offline/network_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "writer/tags.h"

namespace trendprobe {
namespace {

struct MetricRole {
  std::string_view name;
  // Gradients are recorded as the backward pass reaches them.
  bool usually_backward;
};

// The earlier, the more its order says about the network's.
constexpr std::array<MetricRole, 13> kRoles = {{{"forward", false},
                                                {"actv", false},
                                                {"param_origin", false},
                                                {"param_updated", false},
                                                {"grad_reduced", false},
                                                {"exp_avg", false},
                                                {"exp_avg_sq", false},
                                                {"other", false},
                                                {"recompute", true},
                                                {"backward", true},
                                                {"actv_grad", true},
                                                {"parameters_grad", true},
                                                {"grad_unreduced", true}}};

std::uint64_t hash_of(std::span<const std::uint32_t> values) {
  std::uint64_t hash = 0xCBF29CE484222325ULL ^ values.size();
  for (const std::uint32_t value : values) hash = (hash ^ value) * 0x100000001B3ULL;
  return hash;
}

constexpr std::uint32_t before_of(std::uint64_t edge) {
  return static_cast<std::uint32_t>(edge >> 32);
}
constexpr std::uint32_t after_of(std::uint64_t edge) { return static_cast<std::uint32_t>(edge); }

// A topological order of `modules`; where there is a choice, the module that comes first in
// `modules`. In a cycle, the one with the least weight of edges into it goes next.
std::vector<std::uint32_t> topological_order(
    const std::vector<std::uint32_t>& modules,
    const std::vector<std::pair<std::uint64_t, std::uint32_t>>& edges, std::size_t module_count) {
  std::vector<std::uint32_t> rank(module_count, 0);
  for (std::uint32_t i = 0; i < modules.size(); ++i) rank[modules[i]] = i;
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> following(modules.size());
  std::vector<std::uint64_t> weight_before(modules.size(), 0);
  for (const auto& [edge, weight] : edges) {
    const std::uint32_t before = rank[before_of(edge)];
    const std::uint32_t after = rank[after_of(edge)];
    following[before].emplace_back(after, weight);
    weight_before[after] += weight;
  }

  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < modules.size(); ++i) {
    if (weight_before[i] == 0) ready.push(i);
  }
  std::vector<bool> placed(modules.size(), false);
  std::vector<std::uint32_t> order;
  order.reserve(modules.size());
  while (order.size() < modules.size()) {
    if (ready.empty()) {
      std::uint32_t best = 0;
      bool found = false;
      for (std::uint32_t i = 0; i < modules.size(); ++i) {
        if (!placed[i] && (!found || weight_before[i] < weight_before[best])) {
          best = i;
          found = true;
        }
      }
      ready.push(best);
    }
    const std::uint32_t next = ready.top();
    ready.pop();
    if (placed[next]) continue;
    placed[next] = true;
    order.push_back(modules[next]);
    for (const auto& [after, weight] : following[next]) {
      weight_before[after] -= weight;
      if (weight_before[after] == 0 && !placed[after]) ready.push(after);
    }
  }
  return order;
}

// Inserts the modules of `addition` that `order` lacks, each behind the module before it.
void insert_missing(std::vector<std::uint32_t>& order, const std::vector<std::uint32_t>& addition,
                    std::size_t module_count) {
  std::vector<bool> known(module_count, false);
  for (const std::uint32_t module : order) known[module] = true;
  // What follows each known module; the last entry is for what comes before the first known one.
  std::vector<std::vector<std::uint32_t>> behind(module_count + 1);
  std::size_t anchor = module_count;
  for (const std::uint32_t module : addition) {
    if (known[module]) {
      anchor = module;
    } else {
      behind[anchor].push_back(module);
    }
  }
  std::vector<std::uint32_t> merged;
  merged.reserve(order.size() + addition.size());
  const auto take = [&](std::size_t from) {
    merged.insert(merged.end(), behind[from].begin(), behind[from].end());
  };
  take(module_count);
  for (const std::uint32_t module : order) {
    merged.push_back(module);
    take(module);
  }
  order = std::move(merged);
}

}  // namespace

NetworkOrder::MetricLists& NetworkOrder::lists_of(std::string_view metric) {
  for (MetricLists& lists : metrics_) {
    if (lists.name == metric) return lists;
  }
  const auto* role = std::find_if(kRoles.begin(), kRoles.end(),
                                  [&](const MetricRole& known) { return known.name == metric; });
  MetricLists& lists = metrics_.emplace_back();
  lists.name = metric;
  lists.priority = static_cast<std::uint32_t>(role - kRoles.begin());
  lists.usually_backward = role != kRoles.end() && role->usually_backward;
  return lists;
}

std::uint32_t NetworkOrder::module_of_target(std::string_view metric, std::uint32_t target,
                                             const TargetTable& targets) {
  if (target >= module_of_target_.size()) {
    module_of_target_.resize(targets.size(), -1);
    place_.resize(targets.size(), Place{static_cast<std::uint32_t>(-1), 0});
  }
  std::int64_t& module = module_of_target_[target];
  if (module < 0) {
    const Target& entry = targets[target];
    module = modules_.intern(module_of(kind_, metric, entry.name), entry.vpp_stage, entry.call);
  }
  return static_cast<std::uint32_t>(module);
}

void NetworkOrder::add(std::string_view metric, std::span<const std::uint32_t> block,
                       const TargetTable& targets) {
  if (block.empty()) return;
  MetricLists& lists = lists_of(metric);
  if (!lists.seen.insert(hash_of(block)).second) return;

  std::vector<std::uint32_t> sequence;
  for (const std::uint32_t target : block) {
    const std::uint32_t module = module_of_target(metric, target, targets);
    if (sequence.empty() || sequence.back() != module) sequence.push_back(module);
    Place& place = place_[target];
    if (lists.priority < place.priority) place = {lists.priority, next_sequence_++};
  }
  // A module that comes again later in the list has its place where it came first.
  std::vector<bool> taken(modules_.size(), false);
  std::int64_t before = -1;
  lists.has_module.resize(modules_.size(), false);
  for (const std::uint32_t module : sequence) {
    if (taken[module]) continue;
    taken[module] = true;
    if (!lists.has_module[module]) {
      lists.has_module[module] = true;
      lists.modules.push_back(module);
    }
    if (before >= 0) ++lists.edges[static_cast<std::uint64_t>(before) << 32 | module];
    before = module;
  }
}

std::vector<std::uint32_t> NetworkOrder::order() const {
  std::vector<const MetricLists*> by_priority;
  for (const MetricLists& lists : metrics_) by_priority.push_back(&lists);
  std::stable_sort(
      by_priority.begin(), by_priority.end(),
      [](const MetricLists* a, const MetricLists* b) { return a->priority < b->priority; });

  std::vector<std::uint32_t> modules;
  for (const MetricLists* lists : by_priority) {
    std::vector<std::int64_t> position(modules_.size(), -1);
    for (std::size_t i = 0; i < modules.size(); ++i)
      position[modules[i]] = static_cast<std::int64_t>(i);
    std::vector<std::pair<std::uint64_t, std::uint32_t>> edges(lists->edges.begin(),
                                                               lists->edges.end());
    std::sort(edges.begin(), edges.end());
    std::vector<std::uint32_t> addition = topological_order(lists->modules, edges, modules_.size());
    // Along the order so far or against it? Told by the modules that both have.
    std::int64_t agreement = 0;
    std::int64_t last = -1;
    for (const std::uint32_t module : addition) {
      if (position[module] < 0) continue;
      if (last >= 0) agreement += last < position[module] ? 1 : -1;
      last = position[module];
    }
    if (agreement < 0 || (agreement == 0 && lists->usually_backward)) {
      for (auto& [edge, weight] : edges) {
        edge = std::uint64_t{after_of(edge)} << 32 | before_of(edge);
      }
      std::sort(edges.begin(), edges.end());
      addition = topological_order(lists->modules, edges, modules_.size());
    }
    insert_missing(modules, addition, modules_.size());
  }

  std::vector<std::uint32_t> module_position(modules_.size(), 0);
  for (std::uint32_t i = 0; i < modules.size(); ++i) module_position[modules[i]] = i;
  std::vector<std::uint32_t> order;
  for (std::uint32_t target = 0; target < module_of_target_.size(); ++target) {
    if (module_of_target_[target] >= 0) order.push_back(target);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto key = [&](std::uint32_t target) {
      return std::tuple(module_position[static_cast<std::size_t>(module_of_target_[target])],
                        place_[target].priority, place_[target].sequence, target);
    };
    return key(a) < key(b);
  });
  return order;
}

}  // namespace trendprobe
