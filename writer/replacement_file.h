// A file that is written beside its final name and takes its place once it is complete.
//
// Readers of the old file keep reading it; on any failure, a kill included, the old file stays as
// it was. While one is alive no other, of any process on this machine or on a file system that has
// locks, can replace the same file.
#pragma once

#include <filesystem>
#include <stdexcept>

namespace trendprobe {

/// Thrown when somebody else is at work on the same file. what() says who and what to do.
class BusyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ReplacementFile {
 public:
  /// Takes the lock and removes what a killed predecessor left. The file itself is for the caller
  /// to create, at temporary(). Throws BusyError, and std::filesystem::filesystem_error when the
  /// directory can't be written.
  explicit ReplacementFile(std::filesystem::path final_path);
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;
  /// Removes the temporary file, if it was not published, and the lock.
  ~ReplacementFile();

  const std::filesystem::path& final_path() const { return final_; }
  const std::filesystem::path& temporary() const { return temporary_; }

  /// Syncs the file, moves it to its final name and syncs the directory. REQUIRES: nobody has it
  /// open for writing. Throws BusyError when a SQLite connection of another process is writing the
  /// old file.
  void publish();

 private:
  void lock();

  std::filesystem::path final_;
  std::filesystem::path temporary_;
  std::filesystem::path lock_;
  int lock_descriptor_ = -1;
};

}  // namespace trendprobe
