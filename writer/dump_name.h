// The parts of a name in msProbe's dump data.
//
// Modules:   Module.<path>.<Class>.forward.<call>, .backward.<call>, .parameters_grad[.<call>]
//            (Cell. in MindSpore)
// APIs:      Functional.linear.<call>.forward, .backward
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trendprobe {

enum class DumpDirection : std::uint8_t {
  kForward,
  kBackward,
  kParametersGrad,
  /// Not a name of dump data.
  kNone,
};

struct DumpName {
  /// What was called: `Module.layers.0.mlp.MLP`, `Functional.linear`. Views the parsed name.
  std::string_view base;
  DumpDirection direction = DumpDirection::kNone;
  /// Number of the call within the training step.
  std::optional<std::int32_t> call;
  /// A module (or MindSpore cell) and not an API.
  bool is_module = false;
};

DumpName parse_dump_name(std::string_view name);

/// The number of the model chunk that a module belongs to: `Module.<chunk>.…`; none for other
/// names. A list of one model and a Sequential have names of this form, too.
std::optional<std::int32_t> model_chunk(std::string_view base);

/// The number that a part of a name is, if it consists of digits only and fits.
std::optional<std::int32_t> parse_index(std::string_view part);

}  // namespace trendprobe
