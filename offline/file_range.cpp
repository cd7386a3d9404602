#include "offline/file_range.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace trendprobe {

FileRange::FileRange(const std::filesystem::path& path, std::uint64_t begin, std::uint64_t end)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),
      position_(begin),
      end_(end) {
  struct stat status {};
  int error = 0;
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    // A pipe or device in place of a file would block or never end.
    error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  }
  if (error == 0) return;
  if (descriptor_ >= 0) ::close(descriptor_);
  throw std::system_error(error, std::generic_category(), path.string());
}

FileRange::FileRange(FileRange&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      position_(other.position_),
      end_(other.end_),
      error_(other.error_) {}

FileRange::~FileRange() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::size_t FileRange::read(char* buffer, std::size_t size) {
  size = static_cast<std::size_t>(std::min<std::uint64_t>(size, end_ - position_));
  while (size > 0 && error_ == 0) {
    const ssize_t count = ::pread(descriptor_, buffer, size, static_cast<off_t>(position_));
    if (count >= 0) {
      position_ += static_cast<std::uint64_t>(count);
      return static_cast<std::size_t>(count);
    }
    if (errno != EINTR) error_ = errno;
  }
  return 0;
}

}  // namespace trendprobe
