// Parses one directory's dump.json and construct.json into a DumpStep.
//
// What is damaged is reported, never thrown: every complete entry before the damage is kept.
// The files are those of msProbe 26.2.0.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// Owns the text that the step's views point into. One parser may parse one directory after
/// another: a construct.json like the one before costs no more than reading it. Belongs to one
/// thread; not movable.
class DumpParser {
 public:
  DumpParser() = default;
  DumpParser(const DumpParser&) = delete;
  DumpParser& operator=(const DumpParser&) = delete;

  /// Fills the step's construct; leaves it empty where the file is missing, empty or unreadable.
  void parse_construct(const std::filesystem::path& path, Diagnostics& diagnostics);
  /// Reports it if a node of construct.json, at `path`, is among its own ancestors. After
  /// parse_construct().
  void report_circles(const std::filesystem::path& path, Diagnostics& diagnostics);
  /// In place of parse_construct() where there is no file.
  void clear_construct();
  /// Fills the step's entries and tensors.
  void parse_dump(const std::filesystem::path& path, Diagnostics& diagnostics);

  const DumpStep& step() const { return step_; }
  /// Changes whenever the step's construct does.
  std::uint64_t construct_version() const { return construct_version_; }
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
  static bool load(const std::filesystem::path& path, FileContents& contents,
                   Diagnostics& diagnostics);
  /// Replaces what is no text; false, after a report, if there was any.
  static bool repair(const std::filesystem::path& path, FileContents& contents,
                     Diagnostics& diagnostics);
  /// The nodes of construct_; false, after reports, if something is wrong with it.
  bool read_construct(const std::string& file, Diagnostics& diagnostics);
  /// The texts must outlive the parser; the example is the name of what has the fault.
  void count_fault(std::string_view what, std::string_view kept, std::string_view example,
                   std::size_t byte);
  void report_faults(const std::string& path, Diagnostics& diagnostics);
  std::string_view keep_suffix(std::string_view suffix);

  DumpStep step_;
  std::string_view level_;
  FileContents dump_;
  FileContents construct_;
  FileContents next_construct_;
  std::uint64_t construct_version_ = 0;
  std::uint64_t circles_checked_ = 0;
  bool construct_is_sound_ = false;  // nothing of it was reported
  std::deque<std::string> unescaped_in_construct_;
  std::deque<std::string> unescaped_;
  std::unordered_set<std::string, TextHash, std::equal_to<>> suffixes_;
  std::vector<std::string_view> suffix_of_tensor_;  // of this file, and beyond it of those before
  std::vector<Fault> faults_;                       // of the file that is being read
};

}  // namespace trendprobe
