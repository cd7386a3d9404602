#include "offline/file_contents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace trendprobe {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::filesystem::path& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

[[noreturn]] void fail(int error, const std::filesystem::path& path) {
  throw std::system_error(error, std::generic_category(), path.string());
}

}  // namespace

FileContents::FileContents(const std::filesystem::path& path) { read(path); }

void FileContents::read(const std::filesystem::path& path) {
  size_ = 0;
  const FileDescriptor file(path);
  if (file.get() < 0) fail(errno, path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno, path);
  // A pipe or device in place of a file would block or never end.
  if (!S_ISREG(status.st_mode)) fail(S_ISDIR(status.st_mode) ? EISDIR : EINVAL, path);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (capacity_ < size + 1) {
    bytes_.reset();
    capacity_ = 0;
    // A little more, so that files which grow by a few digits find room.
    bytes_ = std::make_unique_for_overwrite<char[]>(size + size / 8 + 1);
    capacity_ = size + size / 8 + 1;
  }
  while (size_ < size) {
    const ssize_t count = ::read(file.get(), bytes_.get() + size_, size - size_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      size_ = 0;
      fail(error, path);
    }
    if (count == 0) break;  // it was cut while being read
    size_ += static_cast<std::size_t>(count);
  }
  bytes_[size_] = '\0';
}

FileContents::FileContents(std::string_view text)
    : bytes_(std::make_unique_for_overwrite<char[]>(text.size() + 1)),
      size_(text.size()),
      capacity_(text.size() + 1) {
  std::copy(text.begin(), text.end(), bytes_.get());
  bytes_[size_] = '\0';
}

}  // namespace trendprobe
