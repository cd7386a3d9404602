#include "writer/tags.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace trendprobe {
namespace {

constexpr std::string_view kIndex = "index";
constexpr std::string_view kDefault = "default";
constexpr std::string_view kLayer = "layer";
constexpr std::string_view kModule = "module";
constexpr std::string_view kFunction = "function";

using Parts = std::vector<std::string_view>;

Parts split(std::string_view name) {
  Parts parts;
  for (;;) {
    const std::size_t dot = name.find('.');
    parts.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    name.remove_prefix(dot + 1);
  }
}

std::string join(std::span<const std::string_view> parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i != 0) text += '.';
    text += parts[i];
  }
  return text;
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// How many parts at the end of a dump name are the tensor's: 2, and more for one nested in a tuple.
std::size_t tensor_parts(const Parts& parts) {
  std::size_t count = 0;
  while (count < parts.size() && is_number(parts[parts.size() - 1 - count])) ++count;
  if (count >= 2 && count < parts.size()) {
    const std::string_view marker = parts[parts.size() - 1 - count];
    if (marker == "input" || marker == "output") return count + 1;
  }
  return 2;
}

void add_layer_tags(const Parts& path, std::vector<Tag>& tags) {
  const std::span<const std::string_view> all(path);
  // First part that no layer tag has covered yet.
  std::size_t begin = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (!is_number(path[i])) continue;
    // A number at the start, or after another one, has no name to make a layer with.
    if (i != begin) {
      tags.push_back({join(all.subspan(i - 1, 2)), kLayer});
      std::string before = join(all.subspan(begin, i - 1 - begin));
      if (!before.empty()) tags.push_back({std::move(before), kModule});
    }
    begin = i + 1;
  }
  std::string rest = join(all.subspan(begin));
  if (!rest.empty()) tags.push_back({std::move(rest), kModule});
}

std::vector<Tag> dump_tags(std::string_view name) {
  const Parts parts = split(name);
  if (parts.size() < 3) return {};
  std::vector<Tag> tags;
  const std::size_t tensor = tensor_parts(parts);
  tags.push_back({join(std::span(parts).last(tensor)), kIndex});
  if (std::find(parts.begin(), parts.end(), "parameters") != parts.end()) {
    tags.push_back({"parameters", kDefault});
  }
  Parts path;
  bool is_module = false;
  for (const std::string_view part : std::span(parts).first(parts.size() - tensor)) {
    if (part == "Module" || part == "Cell") {
      tags.push_back({std::string(part), kDefault});
      is_module = true;
    } else {
      path.push_back(part);
    }
  }
  if (path.empty()) return {};
  if (is_module) {
    add_layer_tags(path, tags);
  } else {
    tags.push_back({join(path), kFunction});
  }
  return tags;
}

std::vector<Tag> monitor_tags(std::string_view name) {
  const Parts parts = split(name);
  std::vector<Tag> tags;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!is_number(parts[i])) {
      tags.push_back({std::string(parts[i]), kModule});
    } else if (i != 0 && !is_number(parts[i - 1])) {
      tags.push_back({join(std::span(parts).subspan(i - 1, 2)), kLayer});
    }
  }
  return tags;
}

std::string_view without_last_part(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(0, dot);
}

}  // namespace

std::vector<Tag> tags_of(RecordKind kind, std::string_view target_name) {
  std::vector<Tag> tags =
      kind == RecordKind::kDump ? dump_tags(target_name) : monitor_tags(target_name);
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  return tags;
}

std::string_view module_of(RecordKind kind, std::string_view metric, std::string_view target_name) {
  // A parameter's gradient is named by the module and the parameter, with nothing between them; a
  // module may itself be called "output".
  if (kind == RecordKind::kMonitor || metric == "parameters_grad") {
    return without_last_part(target_name);
  }
  std::size_t end = std::string_view::npos;
  for (const std::string_view marker : {".input.", ".output.", ".parameters."}) {
    const std::size_t found = target_name.rfind(marker);
    if (found != std::string_view::npos && (end == std::string_view::npos || found > end)) {
      end = found;
    }
  }
  return end == std::string_view::npos ? without_last_part(target_name)
                                       : target_name.substr(0, end);
}

}  // namespace trendprobe
