#include "writer/name_mapping.h"

namespace trendprobe {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  while (true) {
    const std::size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    result.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

std::string mapped_name(std::string_view name, const NameMapping& mapping) {
  std::string result(name);
  for (const auto& [from, to] : mapping) result = replace_all(result, from, to);
  return result;
}

}  // namespace trendprobe
