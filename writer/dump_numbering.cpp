// TrendProbe's own numbering of dump data.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "writer/block_sorter.h"
#include "writer/dump_name.h"
#include "writer/dump_step.h"
#include "writer/msprobe_numbering.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

constexpr std::uint32_t kNoNode = std::numeric_limits<std::uint32_t>::max();
constexpr std::int32_t kUnknown = -1;

/// One call of a module or API: a node of construct.json, or an entry without one.
struct Call {
  DumpName name;
  std::uint32_t base = 0;  // index into the bases
  std::uint32_t parent = kNoNode;
  std::optional<std::int32_t> megatron_micro_step;
  bool in_construct = false;
  bool has_parent = false;  // also true for a parent that is no node
  bool is_recompute = false;
  std::int32_t micro_step = kUnknown;
};

/// The calls of a step, who called whom, and the micro-step of each.
///
/// Only construct.json is needed to count the micro-steps; entries add the calls that it lacks.
class CallGraph {
 public:
  explicit CallGraph(const DumpStep& step) {
    calls_.reserve(step.construct.size());
    index_.reserve(step.construct.size() * 2);
    for (const ConstructNode& node : step.construct) {
      const std::uint32_t id = add(node.name);
      Call& call = calls_[id];
      call.in_construct = true;
      call.has_parent = node.parent.has_value();
      call.megatron_micro_step = node.megatron_micro_step;
      has_counters_ = has_counters_ || node.megatron_micro_step.has_value();
    }
    for (const ConstructNode& node : step.construct) {
      if (!node.parent) continue;
      const auto parent = index_.find(*node.parent);
      if (parent != index_.end()) calls_[index_.at(node.name)].parent = parent->second;
    }
    find_recompute();
    number_roots();
    for (std::uint32_t id = 0; id < calls_.size(); ++id) place(id);
  }

  std::int32_t micro_steps() const { return micro_steps_; }
  const std::vector<Call>& calls() const { return calls_; }

  /// The call of an entry; added where construct.json lacks it.
  std::uint32_t call_of(const DumpEntry& entry) {
    const auto found = index_.find(entry.name);
    const std::uint32_t id = found == index_.end() ? add(entry.name) : found->second;
    Call& call = calls_[id];
    if (entry.is_recompute && call.name.direction == DumpDirection::kForward) {
      call.is_recompute = true;
    }
    if (call.micro_step == kUnknown && call.name.direction == DumpDirection::kBackward) {
      if (const std::uint32_t forward = forward_of(id); forward != kNoNode) {
        call.micro_step = calls_[forward].micro_step;
      }
    }
    if (call.name.direction == DumpDirection::kParametersGrad) {
      call.micro_step = backward_pass(call.base, call.name.call.value_or(0));
    }
    return id;
  }

  void set_micro_step(std::uint32_t id, std::int32_t micro_step) {
    calls_[id].micro_step = micro_step;
  }

  /// The model chunk, where there are several: known only by Megatron's counters.
  std::int32_t chunk_of(const Call& call) const {
    if (!has_counters_) return 0;
    const Call* ancestor = &call;
    for (std::size_t depth = 0; depth <= calls_.size(); ++depth) {
      if (ancestor->name.is_module || ancestor->parent == kNoNode) break;
      ancestor = &calls_[ancestor->parent];
    }
    return model_chunk(ancestor->name.base).value_or(0);
  }

 private:
  std::uint32_t add(std::string_view name) {
    const auto [found, is_new] =
        index_.try_emplace(name, static_cast<std::uint32_t>(calls_.size()));
    if (!is_new) return found->second;
    Call call;
    call.name = parse_dump_name(name);
    call.base =
        bases_.try_emplace(call.name.base, static_cast<std::uint32_t>(bases_.size())).first->second;
    calls_.push_back(call);
    return found->second;
  }

  /// The forward call that a backward call belongs to: the same base and number.
  std::uint32_t forward_of(std::uint32_t id) {
    if (forwards_.empty()) {
      for (std::uint32_t i = 0; i < calls_.size(); ++i) {
        if (calls_[i].name.direction != DumpDirection::kForward) continue;
        forwards_.emplace(forward_key(calls_[i]), i);
      }
    }
    const auto found = forwards_.find(forward_key(calls_[id]));
    return found == forwards_.end() ? kNoNode : found->second;
  }
  static std::uint64_t forward_key(const Call& call) {
    return std::uint64_t{call.base} << 32 | static_cast<std::uint32_t>(call.name.call.value_or(0));
  }

  /// A forward call is a repetition when it runs inside the backward pass (non-reentrant
  /// checkpointing: its parent is a backward call), or when it has no parent although other calls
  /// of its module have one (reentrant). With Megatron's 1F1B schedule the next micro-batch's
  /// forward is recorded below a backward call, too: its counter is ahead of its parent's.
  void find_recompute() {
    std::unordered_set<std::uint32_t> called_by_forward;  // bases
    for (const Call& call : calls_) {
      if (call.name.direction == DumpDirection::kForward && call.parent != kNoNode &&
          calls_[call.parent].name.direction == DumpDirection::kForward) {
        called_by_forward.insert(call.base);
      }
    }
    enum class State : std::uint8_t { kOpen, kVisiting, kDone };
    std::vector<State> states(calls_.size(), State::kOpen);
    std::vector<std::uint32_t> path;
    for (std::uint32_t start = 0; start < calls_.size(); ++start) {
      std::uint32_t id = start;
      while (id != kNoNode && states[id] == State::kOpen &&
             calls_[id].name.direction == DumpDirection::kForward) {
        states[id] = State::kVisiting;
        path.push_back(id);
        id = calls_[id].parent;
      }
      // Parents first. A circle of parents ends at a call that is still being visited.
      while (!path.empty()) {
        Call& call = calls_[path.back()];
        if (call.parent == kNoNode) {
          call.is_recompute =
              !call.has_parent && call.name.is_module && called_by_forward.contains(call.base);
        } else {
          const Call& parent = calls_[call.parent];
          call.is_recompute =
              parent.name.direction == DumpDirection::kForward
                  ? parent.is_recompute
                  : parent.name.direction == DumpDirection::kBackward && !is_ahead(call, parent);
        }
        states[path.back()] = State::kDone;
        path.pop_back();
      }
    }
  }

  static bool is_ahead(const Call& forward, const Call& backward) {
    return forward.megatron_micro_step && backward.megatron_micro_step &&
           *forward.megatron_micro_step > *backward.megatron_micro_step;
  }

  bool is_root(const Call& call) const {
    return call.name.direction == DumpDirection::kForward && call.name.is_module &&
           !call.is_recompute &&
           (!call.has_parent || (call.parent != kNoNode &&
                                 calls_[call.parent].name.direction == DumpDirection::kBackward));
  }

  /// The n-th forward of a root is micro-step n. Roots of one model chunk are called equally often,
  /// as a rule; one that is called k times as often as most is called k times a micro-step, and
  /// others belong to the micro-step that is running when they are called.
  void number_roots() {
    std::map<std::int32_t, std::map<std::uint32_t, std::vector<std::uint32_t>>> chunks;
    for (std::uint32_t id = 0; id < calls_.size(); ++id) {
      if (is_root(calls_[id])) chunks[chunk_of(calls_[id])][calls_[id].base].push_back(id);
    }
    for (auto& [chunk, roots] : chunks) {
      std::map<std::size_t, std::size_t> frequencies;  // number of calls → number of roots
      for (const auto& [base, ids] : roots) ++frequencies[ids.size()];
      std::size_t count = 0;
      std::size_t most = 0;
      for (const auto& [calls, frequency] : frequencies) {
        if (frequency > most) {
          most = frequency;
          count = calls;
        }
      }
      micro_steps_ = std::max(micro_steps_, static_cast<std::int32_t>(count));
      const std::vector<std::uint32_t>* leader = nullptr;
      for (const auto& [base, ids] : roots) {
        if (ids.size() == count && (leader == nullptr || ids.front() < leader->front())) {
          leader = &ids;
        }
      }
      for (const auto& [base, ids] : roots) {
        for (std::size_t n = 0; n < ids.size(); ++n) {
          std::size_t micro_step = 0;
          if (ids.size() % count == 0) {
            micro_step = n / (ids.size() / count);
          } else {
            const auto started = static_cast<std::size_t>(
                std::lower_bound(leader->begin(), leader->end(), ids[n]) - leader->begin());
            const bool comes_first = ids.front() < leader->front();
            micro_step = comes_first ? started : started - 1;
            micro_step = std::min(micro_step, count - 1);
          }
          calls_[ids[n]].micro_step = static_cast<std::int32_t>(micro_step);
        }
      }
    }
    // A parentless repetition repeats the first forwards in their order.
    std::unordered_map<std::uint32_t, std::uint32_t> repeated;  // base → how many so far
    std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> first_calls;
    for (std::uint32_t id = 0; id < calls_.size(); ++id) {
      const Call& call = calls_[id];
      if (call.name.direction != DumpDirection::kForward) continue;
      if (!call.is_recompute) {
        first_calls[call.base].push_back(id);
      } else if (call.parent == kNoNode) {
        reentrant_.emplace(id, repeated[call.base]++);
      }
    }
    for (auto& [id, n] : reentrant_) {
      const std::vector<std::uint32_t>& first = first_calls[calls_[id].base];
      n = first.empty() ? kNoNode : first[std::min<std::size_t>(n, first.size() - 1)];
    }
  }

  /// The call whose micro-step a call shares; kNoNode if only its place in time tells.
  std::uint32_t anchor_of(std::uint32_t id) {
    const Call& call = calls_[id];
    if (call.name.direction == DumpDirection::kForward) {
      if (const auto found = reentrant_.find(id); found != reentrant_.end()) return found->second;
      // An API of the next micro-batch, recorded below a backward call by a 1F1B schedule.
      if (call.parent != kNoNode && !call.is_recompute &&
          calls_[call.parent].name.direction != DumpDirection::kForward) {
        return kNoNode;
      }
      return call.parent;
    }
    if (call.name.direction == DumpDirection::kBackward) {
      const std::uint32_t forward = forward_of(id);
      return forward != kNoNode ? forward : call.parent;
    }
    return kNoNode;
  }

  void place(std::uint32_t start) {
    std::vector<std::uint32_t>& path = path_;
    path.clear();
    std::uint32_t id = start;
    while (calls_[id].micro_step == kUnknown && path.size() <= calls_.size()) {
      path.push_back(id);
      const std::uint32_t anchor = anchor_of(id);
      if (anchor == kNoNode) return;
      id = anchor;
    }
    const std::int32_t micro_step = calls_[id].micro_step;
    if (micro_step == kUnknown) return;
    for (const std::uint32_t member : path) calls_[member].micro_step = micro_step;
  }

  /// The micro-step of a module's n-th backward pass: gradients of its parameters are collected
  /// once a pass.
  std::int32_t backward_pass(std::uint32_t base, std::int32_t n) {
    if (passes_.empty()) {
      for (const DumpDirection direction : {DumpDirection::kBackward, DumpDirection::kForward}) {
        std::unordered_map<std::uint32_t, std::vector<std::int32_t>> passes;
        for (const Call& call : calls_) {
          if (call.name.direction != direction || !call.in_construct || call.is_recompute ||
              call.micro_step == kUnknown) {
            continue;
          }
          std::vector<std::int32_t>& seen = passes[call.base];
          if (std::find(seen.begin(), seen.end(), call.micro_step) == seen.end()) {
            seen.push_back(call.micro_step);
          }
        }
        for (auto& [key, value] : passes) passes_.try_emplace(key, std::move(value));
      }
    }
    const auto found = passes_.find(base);
    if (found == passes_.end()) return std::min(n, micro_steps_ - 1);
    return found
        ->second[std::min<std::size_t>(static_cast<std::size_t>(n), found->second.size() - 1)];
  }

  std::vector<Call> calls_;
  std::unordered_map<std::string_view, std::uint32_t> index_;
  std::unordered_map<std::string_view, std::uint32_t> bases_;
  std::unordered_map<std::uint64_t, std::uint32_t> forwards_;
  std::unordered_map<std::uint32_t, std::uint32_t> reentrant_;  // repetition → what it repeats
  std::unordered_map<std::uint32_t, std::vector<std::int32_t>> passes_;
  std::vector<std::uint32_t> path_;
  std::int32_t micro_steps_ = 1;
  bool has_counters_ = false;
};

DumpMetric metric_of(const Call& call) {
  switch (call.name.direction) {
    case DumpDirection::kBackward:
      return DumpMetric::kBackward;
    case DumpDirection::kParametersGrad:
      return DumpMetric::kParametersGrad;
    default:
      return call.is_recompute ? DumpMetric::kRecompute : DumpMetric::kForward;
  }
}

/// Numbers calls with one (base, metric, micro-step) from 0, by their number within the step.
std::vector<std::int32_t> calls_within_micro_steps(const std::vector<Call>& calls) {
  std::vector<std::uint32_t> order(calls.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto group = [&calls](std::uint32_t id) {
    return std::tuple(calls[id].base, metric_of(calls[id]), calls[id].micro_step);
  };
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto key = [&](std::uint32_t id) {
      return std::tuple_cat(group(id), std::tuple(calls[id].name.call.value_or(0), id));
    };
    return key(a) < key(b);
  });
  std::vector<std::int32_t> numbers(calls.size(), 0);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (group(order[i]) == group(order[i - 1])) numbers[order[i]] = numbers[order[i - 1]] + 1;
  }
  return numbers;
}

/// The base with the replacements of --mapping, which are made on the whole name.
std::string mapped_base(const DumpEntry& entry, const NameMapping& mapping) {
  const std::string name = mapped_name(entry.name, mapping);
  return std::string(parse_dump_name(name).base);
}

}  // namespace

std::vector<Metric> dump_metrics(DumpStatistics statistics) {
  std::vector<Metric> metrics;
  for (const char* name : {"forward", "backward", "recompute", "parameters_grad"}) {
    metrics.push_back({RecordKind::kDump, name, statistics.names()});
  }
  return metrics;
}

bool has_statistic(std::span<const double> values) {
  return std::any_of(values.begin(), values.end(), [](double value) { return !is_missing(value); });
}

std::int32_t count_micro_steps(const DumpStep& step, const NumberingOptions& options) {
  if (!options.micro_steps || !step.has_construct) return 1;
  if (options.as_msprobe) return count_micro_steps_as_msprobe(step);
  return CallGraph(step).micro_steps();
}

NumberedDumpStep number_dump_step(const DumpStep& step, std::int64_t training_step,
                                  const NumberingOptions& options, TargetTable& targets) {
  if (options.as_msprobe) {
    return {count_micro_steps(step, options),
            number_dump_step_as_msprobe(step, training_step, options, targets)};
  }
  CallGraph graph(step);
  const bool micro_steps = options.micro_steps && step.has_construct;
  std::vector<std::uint32_t> calls;
  calls.reserve(step.entries.size());
  // A call that only its place in time tells belongs to the micro-step of what was flushed before
  // it: the loss to the forward that it follows, the optimizer to the last backward pass.
  std::int32_t running = 0;
  for (const DumpEntry& entry : step.entries) {
    const std::uint32_t id = graph.call_of(entry);
    calls.push_back(id);
    if (graph.calls()[id].micro_step == kUnknown) graph.set_micro_step(id, running);
    running = graph.calls()[id].micro_step;
  }
  std::vector<std::int32_t> numbers;
  if (micro_steps) numbers = calls_within_micro_steps(graph.calls());

  BlockSorter blocks(training_step);
  std::string target_name;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const DumpEntry& entry = step.entries[i];
    const Call& call = graph.calls()[calls[i]];
    if (call.name.direction == DumpDirection::kNone || entry.tensor_count == 0) continue;
    const std::int32_t micro_step = micro_steps ? call.micro_step : 0;
    const std::int32_t number = micro_steps ? numbers[calls[i]] : call.name.call.value_or(0);
    const std::int32_t chunk = graph.chunk_of(call);
    if (options.mapping.empty()) {
      target_name.assign(call.name.base);
    } else {
      target_name = mapped_base(entry, options.mapping);
    }
    const std::size_t base_size = target_name.size();
    for (std::uint32_t k = 0; k < entry.tensor_count; ++k) {
      const std::size_t tensor = entry.first_tensor + k;
      if (!has_statistic(step.values_of(tensor))) continue;
      target_name.resize(base_size);
      target_name.append(step.tensors[tensor].suffix);
      blocks.add(micro_step, metric_of(call), targets.intern(target_name, chunk, number),
                 step.values_of(tensor));
    }
  }
  return {micro_steps ? graph.micro_steps() : 1, blocks.take()};
}

}  // namespace trendprobe
