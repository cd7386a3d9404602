#include "offline/dump_parser.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "offline/json_cursor.h"
#include "offline/utf8_text.h"
#include "writer/dump_name.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

constexpr std::size_t kMaxValueDepth = 32;
// A model has some hundred; files without end of new ones must not fill the memory.
constexpr std::size_t kMaxSuffixes = 100'000;

bool is_tensor_type(std::string_view type) {
  return type == "torch.Tensor" || type == "mindspore.Tensor" || type == "mindtorch.Tensor";
}

/// The dtypes that msProbe's data2db reads.
bool is_trend_dtype(std::string_view dtype) {
  return dtype == "torch.float32" || dtype == "torch.bfloat16" || dtype == "torch.float16" ||
         dtype == "Float32" || dtype == "BFloat16" || dtype == "Float16";
}

/// Index of one of msProbe's four (DumpStatistics), or -1.
int statistic_of(std::string_view key) {
  if (key.size() > 4) return -1;  // as most are
  if (key == "Norm") return 0;
  if (key == "Max") return 1;
  if (key == "Min") return 2;
  if (key == "Mean") return 3;
  return -1;
}

/// What a string in place of a number means: Python's float() of it, if any.
std::optional<double> number_in_text(std::string_view text) {
  std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str()) return std::nullopt;
  while (*end == ' ' || *end == '\t' || *end == '\n' || *end == '\r') ++end;
  if (*end != '\0') return std::nullopt;
  return value;
}

/// The next value as a statistic; none where it is neither a number nor null.
std::optional<double> statistic_value(JsonCursor& json) {
  switch (json.kind()) {
    case JsonCursor::Kind::kNumber:
      return canonical(json.number());
    case JsonCursor::Kind::kString: {
      const std::optional<double> value = number_in_text(json.string());
      return value ? std::optional(canonical(*value)) : std::nullopt;
    }
    case JsonCursor::Kind::kTrue:
      json.skip();
      return 1;
    case JsonCursor::Kind::kFalse:
      json.skip();
      return 0;
    case JsonCursor::Kind::kNull:
      json.skip();
      return kMissing;
    default:
      json.skip();
      return std::nullopt;
  }
}

std::string without_bad_bytes(std::string_view bytes, std::size_t first) {
  std::string text(bytes);
  for (std::optional<std::size_t> bad = first; bad;) {
    text[*bad] = '?';
    const std::optional<std::size_t> next = find_bad_byte(std::string_view(text).substr(*bad));
    bad = next ? std::optional(*bad + *next) : std::nullopt;
  }
  return text;
}

std::string byte_location(std::size_t byte) { return "byte " + std::to_string(byte); }

}  // namespace

/// Reads the value of one key of "data".
class DumpParser::EntryReader {
 public:
  EntryReader(DumpParser& parser, JsonCursor& json, std::string_view name)
      : parser_(parser), json_(json), name_(name), direction_(parse_dump_name(name).direction) {}

  DumpDirection direction() const { return direction_; }
  bool is_recompute() const { return is_recompute_; }

  void read() {
    json_.object([this](std::string_view key) {
      if (direction_ == DumpDirection::kParametersGrad) {
        suffix_.assign(".").append(key);
        read_parameter();
        return;
      }
      if (key == "is_recompute") {
        is_recompute_ = json_.kind() == JsonCursor::Kind::kTrue;
        json_.skip();
        return;
      }
      const bool forward = direction_ == DumpDirection::kForward;
      const bool backward = direction_ == DumpDirection::kBackward;
      if (key == "parameters") {
        suffix_ = ".parameters";
        read_parameters(forward);
        return;
      }
      const bool inputs = key == "input_args" || key == "input_kwargs" || key == "input";
      suffix_.assign(inputs ? std::string_view(".input") : ".").append(inputs ? "" : key);
      if (inputs || key == "output") check_kind();
      read_list((forward && (key == "input_args" || key == "output")) ||
                (backward && (key == "input" || key == "output")));
    });
  }

 private:
  /// Says it where the next value can hold no tensor.
  void check_kind() {
    const JsonCursor::Kind kind = json_.kind();
    if (kind != JsonCursor::Kind::kArray && kind != JsonCursor::Kind::kObject &&
        kind != JsonCursor::Kind::kNull) {
      count_fault("holds a bare value where a tensor or a list of values belongs",
                  "the other values", json_.byte());
    }
  }

  /// {name: tensor}, in older versions {name: [tensor]}.
  void read_parameters(bool read_by_msprobe) {
    if (json_.kind() != JsonCursor::Kind::kObject) {
      check_kind();
      read_value(false, 0);
      return;
    }
    const std::size_t size = suffix_.size();
    json_.object([&](std::string_view name) {
      suffix_.resize(size);
      suffix_.append(".").append(name);
      read_parameter(read_by_msprobe);
    });
  }

  void read_parameter(bool read_by_msprobe = true) {
    if (json_.kind() != JsonCursor::Kind::kArray) {
      check_kind();
      read_value(read_by_msprobe, 0);
      return;
    }
    const std::size_t size = suffix_.size();
    json_.array([&](std::size_t index) {
      check_kind();
      suffix_.resize(size);
      if (index > 0) suffix_.append(".").append(std::to_string(index));
      read_value(read_by_msprobe && index == 0, 0);
    });
  }

  void read_list(bool read_by_msprobe) {
    if (json_.kind() != JsonCursor::Kind::kArray) {
      read_value(false, 0);
      return;
    }
    read_elements(read_by_msprobe, 0);
  }

  void read_elements(bool read_by_msprobe, std::size_t depth) {
    const std::size_t size = suffix_.size();
    json_.array([&](std::size_t index) {
      suffix_.resize(size);
      suffix_.append(".").append(std::to_string(index));
      // Deeper lists may be those of a typed value, such as the bounds of a slice.
      if (depth == 0) check_kind();
      read_value(read_by_msprobe, depth);
    });
    suffix_.resize(size);
  }

  /// A tensor, another typed value, or a list or object of values.
  void read_value(bool read_by_msprobe, std::size_t depth) {
    const JsonCursor::Kind kind = json_.kind();
    if (kind != JsonCursor::Kind::kArray && kind != JsonCursor::Kind::kObject) {
      json_.skip();
      return;
    }
    const std::size_t start = json_.byte();
    if (depth > kMaxValueDepth) {
      count_fault("holds values that are nested deeper than 32", "the values above", start);
      json_.skip();
      return;
    }
    if (kind == JsonCursor::Kind::kArray) {
      read_elements(false, depth + 1);
      return;
    }
    std::string_view type;
    std::string_view dtype;
    std::array<double, 4> statistics = {kMissing, kMissing, kMissing, kMissing};
    bool has_statistics = false;
    const std::size_t size = suffix_.size();
    json_.object([&](std::string_view key) {
      const JsonCursor::Kind member = json_.kind();
      const bool nested = member == JsonCursor::Kind::kArray || member == JsonCursor::Kind::kObject;
      if (const int statistic = statistic_of(key); statistic >= 0) {
        const std::size_t byte = json_.byte();
        const std::optional<double> value = statistic_value(json_);
        if (!value) {
          count_fault("holds a statistic that is no number", "the record, without this statistic",
                      byte);
        }
        statistics[static_cast<std::size_t>(statistic)] = value.value_or(kMissing);
        has_statistics = true;
      } else if (key == "type" && member == JsonCursor::Kind::kString) {
        type = json_.string();
      } else if (key == "dtype" && member == JsonCursor::Kind::kString) {
        dtype = json_.string();
      } else if (nested && !is_tensor_type(type)) {
        suffix_.append(".").append(key);
        read_value(false, depth + 1);
        suffix_.resize(size);
      } else {
        json_.skip();
      }
    });
    if (has_statistics && type.empty()) {
      count_fault("holds statistics without the type of what they are of", "the other values",
                  start);
    }
    if (!is_tensor_type(type)) return;
    DumpStep& step = parser_.step_;
    step.tensors.push_back(
        {parser_.keep_suffix(suffix_), read_by_msprobe && is_trend_dtype(dtype)});
    step.values.insert(step.values.end(), statistics.begin(), statistics.end());
  }

  void count_fault(std::string_view what, std::string_view kept, std::size_t byte) {
    parser_.count_fault(what, kept, name_, byte);
  }

  DumpParser& parser_;
  JsonCursor& json_;
  std::string_view name_;
  DumpDirection direction_;
  bool is_recompute_ = false;
  std::string suffix_;
};

bool DumpParser::load(const std::filesystem::path& path, FileContents& contents,
                      Diagnostics& diagnostics) {
  try {
    contents.read(path);
  } catch (const std::system_error& error) {
    diagnostics.report({Severity::kSkipped,
                        path.string(),
                        {},
                        "can't be read: " + error.code().message(),
                        "nothing of this file"});
    return false;
  }
  if (contents.text().empty()) {
    diagnostics.report(
        {Severity::kSkipped, path.string(), {}, "is empty (0 bytes)", "nothing of this file"});
    return false;
  }
  return true;
}

bool DumpParser::repair(const std::filesystem::path& path, FileContents& contents,
                        Diagnostics& diagnostics) {
  const std::optional<std::size_t> bad = find_bad_byte(contents.text());
  if (!bad) return true;
  const bool is_nul = contents.text()[*bad] == '\0';
  diagnostics.report({Severity::kRepaired, path.string(), byte_location(*bad),
                      is_nul ? "holds NUL bytes, such as a disk leaves that lost its power"
                             : "holds bytes that are no UTF-8",
                      "what can be read, with \"?\" for each bad byte"});
  // One byte for one, so that what else is wrong is found where it is in the file.
  contents = FileContents(std::string_view(without_bad_bytes(contents.text(), *bad)));
  return false;
}

void DumpParser::count_fault(std::string_view what, std::string_view kept, std::string_view example,
                             std::size_t byte) {
  for (Fault& fault : faults_) {
    if (fault.what != what) continue;
    ++fault.count;
    return;
  }
  faults_.push_back({what, kept, std::string(example.substr(0, 200)), byte, 1});
}

void DumpParser::report_faults(const std::string& path, Diagnostics& diagnostics) {
  for (const Fault& fault : faults_) {
    std::string what = "\"" + repaired_text(fault.example) + "\" " + std::string(fault.what);
    if (fault.count > 1) what += " (the first of " + std::to_string(fault.count) + " such)";
    diagnostics.report({Severity::kRepaired, path, byte_location(fault.byte), std::move(what),
                        std::string(fault.kept)});
  }
  faults_.clear();
}

std::string_view DumpParser::keep_suffix(std::string_view suffix) {
  const std::size_t tensor = step_.tensors.size();
  // Mostly the tensor at this place of the file before had the same.
  if (tensor < suffix_of_tensor_.size() && suffix_of_tensor_[tensor] == suffix) {
    return suffix_of_tensor_[tensor];
  }
  const auto found = suffixes_.find(suffix);
  const std::string& kept = found != suffixes_.end() ? *found : *suffixes_.emplace(suffix).first;
  suffix_of_tensor_.resize(std::max(suffix_of_tensor_.size(), tensor + 1));
  suffix_of_tensor_[tensor] = kept;
  return kept;
}

void DumpParser::clear_construct() {
  construct_is_sound_ = false;
  if (step_.construct.empty()) return;
  step_.construct.clear();
  step_.has_construct = false;
  ++construct_version_;
}

void DumpParser::parse_construct(const std::filesystem::path& path, Diagnostics& diagnostics) {
  if (!load(path, next_construct_, diagnostics)) {
    clear_construct();
    return;
  }
  if (construct_is_sound_ && next_construct_.text() == construct_.text()) return;
  clear_construct();
  std::swap(construct_, next_construct_);
  const bool is_text = repair(path, construct_, diagnostics);
  construct_is_sound_ = read_construct(path.string(), diagnostics) && is_text;
  step_.has_construct = !step_.construct.empty();
  ++construct_version_;
}

bool DumpParser::read_construct(const std::string& file, Diagnostics& diagnostics) {
  unescaped_in_construct_.clear();
  bool is_sound = true;
  JsonCursor json(construct_.text(), unescaped_in_construct_);
  try {
    json.object([&](std::string_view name) {
      if (name == "megatron_micro_step_number") {
        json.skip();
        return;
      }
      ConstructNode node;
      node.name = name;
      const bool has_list = json.kind() == JsonCursor::Kind::kArray;
      const std::size_t start = json.byte();
      bool valid = true;
      const auto read_parent = [&] {
        if (json.kind() == JsonCursor::Kind::kString) {
          node.parent = json.string();
        } else {
          valid = valid && json.kind() == JsonCursor::Kind::kNull;
          json.skip();
        }
      };
      if (has_list) {
        json.array([&](std::size_t index) {
          if (index == 0) {
            read_parent();
          } else if (index == 1 && json.kind() == JsonCursor::Kind::kNumber) {
            const double counter = json.number();
            if (counter >= 0 && counter <= std::numeric_limits<std::int32_t>::max() &&
                counter == std::floor(counter)) {
              node.megatron_micro_step = static_cast<std::int32_t>(counter);
            } else {
              valid = false;
            }
          } else {
            valid = valid && index == 1 && json.kind() == JsonCursor::Kind::kNull;
            json.skip();
          }
        });
      } else {
        read_parent();
      }
      if (valid) {
        step_.construct.push_back(node);
      } else {
        count_fault("has a parent that is no name", "the other nodes", name, start);
      }
    });
    json.finish();
  } catch (const JsonError& error) {
    is_sound = false;
    diagnostics.report(
        {Severity::kRepaired, file, byte_location(error.byte()), error.what(),
         "the first " + std::to_string(step_.construct.size()) +
             " nodes; modules behind them have no parent, so micro-steps may be wrong"});
  }
  is_sound = is_sound && faults_.empty();
  report_faults(file, diagnostics);
  return is_sound;
}

void DumpParser::report_circles(const std::filesystem::path& path, Diagnostics& diagnostics) {
  if (circles_checked_ == construct_version_ && construct_is_sound_) return;
  circles_checked_ = construct_version_;
  std::unordered_map<std::string_view, std::size_t> index;
  index.reserve(step_.construct.size());
  for (std::size_t i = 0; i < step_.construct.size(); ++i) index[step_.construct[i].name] = i;
  // The walk, from 1, in which a node was first come by.
  std::vector<std::size_t> walk_of(step_.construct.size(), 0);
  for (std::size_t start = 0; start < step_.construct.size(); ++start) {
    for (std::size_t node = start; walk_of[node] == 0;) {
      walk_of[node] = start + 1;
      const auto& parent = step_.construct[node].parent;
      const auto found = parent ? index.find(*parent) : index.end();
      if (found == index.end()) break;
      node = found->second;
      if (walk_of[node] != start + 1) continue;
      diagnostics.report(
          {Severity::kRepaired,
           path,
           {},
           "\"" + std::string(step_.construct[node].name) + "\" is among its own ancestors",
           "all nodes; the micro-steps of those in the circle may be wrong"});
      construct_is_sound_ = false;
      return;  // one is enough to know that the file is damaged
    }
  }
}

void DumpParser::parse_dump(const std::filesystem::path& path, Diagnostics& diagnostics) {
  step_.entries.clear();
  step_.tensors.clear();
  step_.values.clear();
  level_ = {};
  unescaped_.clear();
  if (suffixes_.size() > kMaxSuffixes) {
    suffix_of_tensor_.clear();
    suffixes_.clear();
  }
  if (!load(path, dump_, diagnostics)) return;
  repair(path, dump_, diagnostics);
  JsonCursor json(dump_.text(), unescaped_);
  const std::string file = path.string();
  const auto skipped = [&](std::string location, std::string what, std::string kept) {
    diagnostics.report(
        {Severity::kSkipped, file, std::move(location), std::move(what), std::move(kept)});
  };
  bool has_data = false;
  bool in_data = false;
  try {
    json.object([&](std::string_view section) {
      if (section == "level" && json.kind() == JsonCursor::Kind::kString) {
        level_ = json.string();
        return;
      }
      if (section != "data") {
        json.skip();
        return;
      }
      has_data = true;
      if (json.kind() != JsonCursor::Kind::kObject) {
        skipped(byte_location(json.byte()), "\"data\" is no object", "nothing of this file");
        json.skip();
        return;
      }
      in_data = true;
      json.object([&](std::string_view name) {
        const bool is_object = json.kind() == JsonCursor::Kind::kObject;
        const std::size_t start = json.byte();
        if (!is_object) {
          count_fault("is no entry: its value is no object", "the other entries", name, start);
          json.skip();
          return;
        }
        DumpEntry entry;
        entry.name = name;
        entry.first_tensor = static_cast<std::uint32_t>(step_.tensors.size());
        EntryReader reader(*this, json, name);
        try {
          reader.read();
        } catch (const JsonError&) {
          step_.tensors.resize(entry.first_tensor);  // half an entry is none
          step_.values.resize(entry.first_tensor * step_.statistics.size());
          throw;
        }
        entry.is_recompute = reader.is_recompute();
        entry.tensor_count = static_cast<std::uint32_t>(step_.tensors.size()) - entry.first_tensor;
        if (entry.tensor_count > 0 && reader.direction() == DumpDirection::kNone) {
          count_fault("is no name of dump data (no .forward, .backward or .parameters_grad)",
                      "the other entries", name, start);
          return;
        }
        step_.entries.push_back(entry);
      });
      in_data = false;
    });
    json.finish();
    report_faults(file, diagnostics);
  } catch (const JsonError& error) {
    report_faults(file, diagnostics);
    if (has_data) {
      diagnostics.report({Severity::kRepaired, file, byte_location(error.byte()), error.what(),
                          in_data ? "the first " + std::to_string(step_.entries.size()) +
                                        " entries, which are complete"
                                  : "all " + std::to_string(step_.entries.size()) + " entries"});
    } else {
      skipped(byte_location(error.byte()), error.what(), "nothing of this file");
    }
    return;
  }
  if (!has_data) {
    skipped({}, "has no \"data\": it is no dump of msProbe", "nothing of this file");
  }
}

}  // namespace trendprobe
