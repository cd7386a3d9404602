// Parses one directory's dump.json and construct.json into a DumpStep.
//
// What is damaged is reported, never thrown: every complete entry before the damage is kept.
// The files are those of msProbe 26.2.0.
#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "offline/diagnostics.h"
#include "offline/file_contents.h"
#include "writer/dump_step.h"

namespace trendprobe {

/// Owns the text that the step's views point into. Belongs to one thread; not movable.
class DumpParser {
 public:
  /// Reports go to `diagnostics`, which is borrowed.
  explicit DumpParser(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}
  DumpParser(const DumpParser&) = delete;
  DumpParser& operator=(const DumpParser&) = delete;

  /// Fills the step's construct; leaves it empty where the file is missing, empty or unreadable.
  void parse_construct(const std::filesystem::path& path);
  /// Reports it if a node of construct.json, at `path`, is among its own ancestors. After
  /// parse_construct().
  void report_circles(const std::filesystem::path& path);
  /// Fills the step's entries and tensors.
  void parse_dump(const std::filesystem::path& path);

  const DumpStep& step() const { return step_; }
  /// The value of "level" in dump.json: "L0", "L1", "mix"; empty if there is none.
  std::string_view level() const { return level_; }

 private:
  class EntryReader;
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  /// A kind of fault in a file, its first place, and how often it was found.
  struct Fault {
    std::string_view what;
    std::string_view kept;
    std::string example;
    std::size_t byte;
    std::size_t count;
  };

  /// The file's text; nothing, after a report, if it can't be read or is empty.
  bool load(const std::filesystem::path& path, FileContents& contents);
  /// The texts must outlive the parser; the example is the name of what has the fault.
  void count_fault(std::string_view what, std::string_view kept, std::string_view example,
                   std::size_t byte);
  void report_faults(const std::string& path);
  std::string_view keep_suffix(std::string_view suffix);

  Diagnostics& diagnostics_;
  DumpStep step_;
  std::string_view level_;
  FileContents dump_;
  FileContents construct_;
  std::deque<std::string> unescaped_;
  std::unordered_set<std::string, TextHash, std::equal_to<>> suffixes_;
  std::vector<Fault> faults_;  // of the file that is being read
};

}  // namespace trendprobe
