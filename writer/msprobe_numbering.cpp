#include "writer/msprobe_numbering.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "writer/block_sorter.h"
#include "writer/dump_name.h"

namespace trendprobe {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool opens_micro_step(std::string_view name) {
  return name.starts_with("Module") || name.starts_with("Cell") || name.starts_with("optimizer");
}

/// The node that stands for a name when its root is looked for.
std::string forward_name(std::string_view name) {
  return replace_all(replace_all(name, ".backward", ".forward"), ".parameters_grad", ".forward");
}

/// extract_root_nodes(): the micro-step of every node that has one.
class RootNodes {
 public:
  explicit RootNodes(const DumpStep& step) {
    parents_.reserve(step.construct.size());
    for (const ConstructNode& node : step.construct) {
      if (node.parent) {
        parents_[node.name] = {*node.parent, -1, false};
      } else if (contains(node.name, ".backward")) {
        parents_[node.name] = {{}, -1, true};
      } else if (opens_micro_step(node.name)) {
        parents_[node.name] = {{}, micro_steps_++, true};
      }
    }
  }

  std::int32_t micro_steps() const { return micro_steps_; }

  std::optional<std::int32_t> micro_step_of(std::string_view name) const {
    std::string node = forward_name(name);
    // A chain longer than this is a circle.
    for (std::size_t depth = 0; depth <= parents_.size(); ++depth) {
      const auto found = parents_.find(node);
      if (found == parents_.end()) return std::nullopt;
      if (found->second.is_root) {
        if (found->second.micro_step < 0) return std::nullopt;
        return found->second.micro_step;
      }
      node = forward_name(found->second.parent);
    }
    return std::nullopt;
  }

 private:
  struct Parent {
    std::string_view parent;
    std::int32_t micro_step;
    bool is_root;
  };
  std::unordered_map<std::string_view, Parent> parents_;
  std::int32_t micro_steps_ = 0;
};

/// Where the number of the call stands in a name: the last part, or the one before it.
struct CallNumber {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t value = 0;
};

std::optional<CallNumber> find_call_number(std::string_view name) {
  std::size_t end = name.size();
  for (int part = 0; part < 2; ++part) {
    const std::size_t dot = name.substr(0, end).rfind('.');
    const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
    if (const auto value = parse_index(name.substr(begin, end - begin))) {
      return CallNumber{begin, end, *value};
    }
    if (dot == std::string_view::npos) break;
    end = dot;
  }
  return std::nullopt;
}

/// reindex_keys_with_mapping(): the names with calls renumbered inside their micro-step.
std::unordered_map<std::string_view, std::string> renumbered_names(
    const std::vector<std::pair<std::string_view, std::int32_t>>& names) {
  struct Call {
    CallNumber number;
    std::string_view name;
  };
  std::unordered_map<std::string_view, std::string> result;
  std::map<std::pair<std::int32_t, std::string>, std::vector<Call>> groups;
  for (const auto& [name, micro_step] : names) {
    const std::optional<CallNumber> number = find_call_number(name);
    if (!number) {
      result.emplace(name, name);
      continue;
    }
    std::string without_number(name.substr(0, number->begin == 0 ? 0 : number->begin - 1));
    without_number.append(name.substr(number->end));
    groups[{micro_step, std::move(without_number)}].push_back({*number, name});
  }
  for (auto& [key, calls] : groups) {
    std::stable_sort(calls.begin(), calls.end(),
                     [](const Call& a, const Call& b) { return a.number.value < b.number.value; });
    for (std::size_t index = 0; index < calls.size(); ++index) {
      const auto& [number, name] = calls[index];
      std::string renumbered(name);
      renumbered.replace(number.begin, number.end - number.begin, std::to_string(index));
      result.emplace(name, std::move(renumbered));
    }
  }
  return result;
}

struct NamedMetric {
  DumpMetric metric;
  std::string name;
};

/// _determine_metric_type(): cuts the direction out of the name.
std::optional<NamedMetric> metric_of(std::string name, bool is_recompute) {
  const auto cut = [&name](std::string_view direction) {
    const std::string segment = "." + std::string(direction);
    name = replace_all(name, segment + ".", ".");
    name = replace_all(name, segment, "");
  };
  if (contains(name, ".forward.") || name.ends_with(".forward")) {
    cut("forward");
    return NamedMetric{is_recompute ? DumpMetric::kRecompute : DumpMetric::kForward,
                       std::move(name)};
  }
  if (contains(name, ".backward.") || name.ends_with(".backward")) {
    cut("backward");
    return NamedMetric{DumpMetric::kBackward, std::move(name)};
  }
  if (name.ends_with("parameters_grad")) {
    return NamedMetric{DumpMetric::kParametersGrad, replace_all(name, ".parameters_grad", "")};
  }
  const std::size_t last_dot = name.rfind('.');
  if (last_dot == std::string::npos) return std::nullopt;
  std::string head = name.substr(0, last_dot);
  constexpr std::string_view kSegment = ".parameters_grad";
  if (!head.ends_with(kSegment)) return std::nullopt;
  head.resize(head.size() - kSegment.size());
  if (parse_index(std::string_view(name).substr(last_dot + 1))) head += name.substr(last_dot);
  return NamedMetric{DumpMetric::kParametersGrad, std::move(head)};
}

}  // namespace

std::int32_t count_micro_steps_as_msprobe(const DumpStep& step) {
  const RootNodes roots(step);
  std::int32_t last = 0;
  for (const ConstructNode& node : step.construct) {
    last = std::max(last, roots.micro_step_of(node.name).value_or(0));
  }
  return last + 1;
}

std::vector<RecordBlock> number_dump_step_as_msprobe(const DumpStep& step,
                                                     std::int64_t training_step,
                                                     const NumberingOptions& options,
                                                     TargetTable& targets) {
  std::unordered_map<std::string_view, std::int32_t> micro_steps;
  std::unordered_map<std::string_view, std::string> renumbered;
  if (options.micro_steps) {
    const RootNodes roots(step);
    std::vector<std::pair<std::string_view, std::int32_t>> names;
    for (const ConstructNode& node : step.construct) {
      if (const auto micro_step = roots.micro_step_of(node.name)) {
        if (micro_steps.emplace(node.name, *micro_step).second) {
          names.emplace_back(node.name, *micro_step);
        }
      }
    }
    renumbered = renumbered_names(names);
  }
  BlockSorter blocks(training_step);
  std::string target_name;
  for (const DumpEntry& entry : step.entries) {
    std::string name;
    std::int32_t micro_step = 0;
    const auto micro_step_of = [&](std::string_view node) {
      const auto found = micro_steps.find(node);
      return found == micro_steps.end() ? 0 : found->second;
    };
    if (renumbered.empty()) {
      name = entry.name;
      micro_step = micro_step_of(entry.name);
    } else if (const auto found = renumbered.find(entry.name); found != renumbered.end()) {
      name = found->second;
      micro_step = micro_step_of(entry.name);
    } else if (contains(entry.name, "parameters_grad")) {
      name = entry.name;
      micro_step = micro_step_of(replace_all(entry.name, ".parameters_grad", ".forward"));
    } else {
      continue;
    }
    name = mapped_name(name, options.mapping);
    std::optional<NamedMetric> named = metric_of(std::move(name), entry.is_recompute);
    if (!named) continue;
    // extract_target_info(): trailing digits are the call.
    std::int32_t call = 0;
    if (const std::size_t dot = named->name.rfind('.'); true) {
      const std::string_view last =
          std::string_view(named->name).substr(dot == std::string::npos ? 0 : dot + 1);
      if (const auto number = parse_index(last)) {
        call = *number;
        named->name.resize(dot == std::string::npos ? 0 : dot);
      }
    }
    for (std::uint32_t i = 0; i < entry.tensor_count; ++i) {
      const std::size_t tensor = entry.first_tensor + i;
      if (!step.tensors[tensor].read_by_msprobe) continue;
      target_name.assign(named->name).append(step.tensors[tensor].suffix);
      blocks.add(micro_step, named->metric, targets.intern(target_name, 0, call),
                 step.values_of(tensor));
    }
  }
  return blocks.take();
}

}  // namespace trendprobe
