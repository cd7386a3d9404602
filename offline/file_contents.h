// A whole file in memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string_view>

namespace trendprobe {

/// Owns the bytes of a file, followed by a NUL that is not part of them, so that a parser needs no
/// bounds check to look at the next byte. Movable; views stay valid when it is moved.
class FileContents {
 public:
  FileContents() = default;
  /// Reads the file. Throws std::system_error with the file's name.
  explicit FileContents(const std::filesystem::path& path);
  /// Copies text.
  explicit FileContents(std::string_view text);

  /// Reads another file into the same memory where that is large enough. Throws as the constructor
  /// does, and then holds nothing.
  void read(const std::filesystem::path& path);

  std::string_view text() const { return {bytes_ ? bytes_.get() : "", size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace trendprobe
