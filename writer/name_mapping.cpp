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

std::vector<std::uint32_t> intern_mapped(const TargetTable& from, const NameMapping& mapping,
                                         TargetTable& to) {
  std::vector<std::uint32_t> ids;
  ids.reserve(from.size());
  for (std::uint32_t i = 0; i < from.size(); ++i) {
    const Target& target = from[i];
    ids.push_back(to.intern(mapped_name(target.name, mapping), target.vpp_stage, target.call));
  }
  return ids;
}

}  // namespace trendprobe
