// The order in which the network runs, found from the order in which its records were flushed.
//
// Modules are ordered first, then the tensors of each. The lists of forward metrics are merged into
// one order that agrees with every list as far as the lists agree with each other (a topological
// order; where they contradict each other, the order that breaks the fewest of them). Other metrics
// only place the modules that have no forward record: each runs along that order or against it
// (gradients arrive backwards), which is found by comparing, and a module goes behind the one that
// precedes it. Modules with nothing to compare them by, such as those of two pipeline stages, stay
// in the order in which they were added: rank by rank.
//
// Deterministic in the order of the calls. Belongs to one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "writer/record.h"

namespace trendprobe {

class NetworkOrder {
 public:
  explicit NetworkOrder(RecordKind kind) : kind_(kind) {}

  /// Takes the targets of one block of a metric, in flush order. Indices into `targets`, which must
  /// be the same table in every call.
  void add(std::string_view metric, std::span<const std::uint32_t> block,
           const TargetTable& targets);

  /// Every target that was added, in network order.
  std::vector<std::uint32_t> order() const;

 private:
  /// How often one module came directly before another, by (before << 32 | after).
  using Edges = std::unordered_map<std::uint64_t, std::uint32_t>;

  struct MetricLists {
    std::string name;
    std::uint32_t priority = 0;
    bool usually_backward = false;
    std::unordered_set<std::uint64_t>
        seen;  // hashes of the lists, so that a training loop's costs nothing
    Edges edges;
    std::vector<std::uint32_t> modules;  // in the order of first appearance
    std::vector<bool> has_module;
  };
  struct Place {
    std::uint32_t priority;
    std::uint32_t sequence;
  };

  MetricLists& lists_of(std::string_view metric);
  std::uint32_t module_of_target(std::string_view metric, std::uint32_t target,
                                 const TargetTable& targets);

  RecordKind kind_;
  std::vector<MetricLists> metrics_;
  TargetTable modules_;
  std::vector<std::int64_t> module_of_target_;  // -1: not seen
  std::vector<Place> place_;                    // of a target within its module
  std::uint32_t next_sequence_ = 0;
};

}  // namespace trendprobe
