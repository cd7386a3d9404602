#include "offline/mapping_file.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "offline/file_contents.h"

namespace trendprobe {

NameMapping read_mapping_file(const std::filesystem::path& path) {
  const auto fail = [&path](const std::string& what) {
    throw std::runtime_error("mapping file " + path.string() + ": " + what +
                             "; expected a JSON object of strings, such as {\"old\": \"new\"}");
  };
  const FileContents contents(path);
  nlohmann::ordered_json json;
  try {
    json = nlohmann::ordered_json::parse(contents.text());
  } catch (const nlohmann::json::parse_error& error) {
    fail("is no JSON (byte " + std::to_string(error.byte) + ")");
  }
  if (!json.is_object()) fail("is no object");
  NameMapping mapping;
  for (const auto& [from, to] : json.items()) {
    if (from.empty()) fail("has an empty key");
    if (!to.is_string()) fail("the value of \"" + from + "\" is no string");
    mapping.emplace_back(from, to.get<std::string>());
  }
  return mapping;
}

}  // namespace trendprobe
