// The bytes of a part of a file, read one after another.
//
// Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace trendprobe {

/// Owns the open file. Movable.
class FileRange {
 public:
  /// Bytes `begin` to `end` of the file, or to its end where it is shorter. Throws
  /// std::system_error with the file's name if it can't be opened or is no regular file.
  explicit FileRange(const std::filesystem::path& path, std::uint64_t begin = 0,
                     std::uint64_t end = UINT64_MAX);
  FileRange(FileRange&& other) noexcept;
  FileRange& operator=(FileRange&&) = delete;
  ~FileRange();

  /// Reads at most `size` bytes; 0 at the end, and after an error.
  std::size_t read(char* buffer, std::size_t size);
  /// errno of the read that failed; 0 if none did.
  int error() const { return error_; }
  /// Where the next read begins.
  std::uint64_t position() const { return position_; }

 private:
  int descriptor_;
  std::uint64_t position_;
  std::uint64_t end_;
  int error_ = 0;
};

}  // namespace trendprobe
