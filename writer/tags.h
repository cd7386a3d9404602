// Tags: what a target's name says about where in the network it is. msProbe's viewer lists them,
// ours filters by them.
//
// Pure functions; thread-safe.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "writer/record.h"

namespace trendprobe {

/// One tag of a target. Categories are msProbe's: "index", "default", "layer", "module",
/// "function".
struct Tag {
  std::string name;
  std::string_view category;

  auto operator<=>(const Tag&) const = default;
};

/// The tags of a target name, sorted, each once. The rules are those of msProbe's data2db:
/// parse_full_key for dump names (`Module.layers.0.mlp.MLP.input.0`), get_tags_from_target for
/// monitor names (`layers.0.mlp.input`). A tensor nested in a tuple (`….output.1.0`), which msProbe
/// leaves out, gets the index tag `output.1.0`.
std::vector<Tag> tags_of(RecordKind kind, std::string_view target_name);

/// The module or API that a target of a metric belongs to: its name less the tensor part.
std::string_view module_of(RecordKind kind, std::string_view metric, std::string_view target_name);

}  // namespace trendprobe
