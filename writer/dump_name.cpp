#include "writer/dump_name.h"

#include <charconv>
#include <system_error>

namespace trendprobe {
namespace {

DumpDirection direction_of(std::string_view part) {
  if (part == "forward") return DumpDirection::kForward;
  if (part == "backward") return DumpDirection::kBackward;
  if (part == "parameters_grad") return DumpDirection::kParametersGrad;
  return DumpDirection::kNone;
}

/// Cuts the last part of a dotted name off.
std::string_view take_last_part(std::string_view& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) {
    const std::string_view all = name;
    name = {};
    return all;
  }
  const std::string_view part = name.substr(dot + 1);
  name = name.substr(0, dot);
  return part;
}

bool is_module_name(std::string_view name) {
  return name.starts_with("Module.") || name.starts_with("Cell.");
}

}  // namespace

std::optional<std::int32_t> parse_index(std::string_view part) {
  if (part.empty() || part.front() < '0' || part.front() > '9') return std::nullopt;
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return value;
}

DumpName parse_dump_name(std::string_view name) {
  DumpName result;
  result.is_module = is_module_name(name);
  std::string_view head = name;
  const std::string_view last = take_last_part(head);
  if (head.empty()) return {name, DumpDirection::kNone, std::nullopt, result.is_module};
  if (const DumpDirection direction = direction_of(last); direction != DumpDirection::kNone) {
    result.direction = direction;
    std::string_view before = head;
    const std::optional<std::int32_t> call = parse_index(take_last_part(before));
    if (!result.is_module && call && !before.empty()) {
      result.base = before;
      result.call = call;
    } else {
      result.base = head;
    }
    return result;
  }
  if (const std::optional<std::int32_t> call = parse_index(last)) {
    std::string_view before = head;
    const DumpDirection direction = direction_of(take_last_part(before));
    if (direction != DumpDirection::kNone && !before.empty()) {
      result.base = before;
      result.direction = direction;
      result.call = call;
      return result;
    }
  }
  return {name, DumpDirection::kNone, std::nullopt, result.is_module};
}

std::optional<std::int32_t> model_chunk(std::string_view base) {
  if (!is_module_name(base)) return std::nullopt;
  base.remove_prefix(base.find('.') + 1);
  const std::size_t dot = base.find('.');
  return dot == std::string_view::npos ? std::nullopt : parse_index(base.substr(0, dot));
}

}  // namespace trendprobe
