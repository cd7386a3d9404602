#include "writer/replacement_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace trendprobe {
namespace {

// SQLite's lock bytes (https://sqlite.org/fileformat2.html, "The Lock-Byte Page"): PENDING,
// RESERVED, and the shared range. A connection that only reads holds a read lock on the shared
// range; a write lock on any of them means a writer.
constexpr off_t kSqliteLockByte = 0x40000000;
constexpr off_t kSqliteLockLength = 512;

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw std::filesystem::filesystem_error(what, path,
                                          std::error_code(error, std::generic_category()));
}

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

void sync(const std::filesystem::path& path, int flags) {
  const Descriptor file(path, flags);
  if (file.get() < 0) fail("can't open to sync", path, errno);
  // Some network file systems can't sync a directory; what they can do has then been done.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    fail("can't sync", path, errno);
}

void check_not_written(const std::filesystem::path& database) {
  const Descriptor file(database, O_RDONLY);
  if (file.get() < 0) return;
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kSqliteLockByte;
  lock.l_len = kSqliteLockLength;
  if (::fcntl(file.get(), F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK) {
    throw BusyError(database.string() + ": process " + std::to_string(lock.l_pid) +
                    " is writing this database now; it was left as it is. Wait for it to end, or "
                    "choose another output directory");
  }
}

std::string owner_of(int lock_descriptor) {
  std::array<char, 256> text{};
  const ssize_t size = ::pread(lock_descriptor, text.data(), text.size(), 0);
  if (size <= 0) return "another process";
  return {text.data(), static_cast<std::size_t>(size)};
}

std::string this_process() {
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(::getpid()) + " on " + host.data();
}

}  // namespace

ReplacementFile::ReplacementFile(std::filesystem::path final_path) : final_(std::move(final_path)) {
  std::error_code error;
  if (std::filesystem::is_directory(final_, error)) fail("is a directory", final_, EISDIR);
  temporary_ = final_;
  temporary_ += ".part";
  lock_ = final_;
  lock_ += ".lock";
  check_not_written(final_);
  lock();
}

void ReplacementFile::lock() {
  for (;;) {
    lock_descriptor_ = ::open(lock_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                              S_IRUSR | S_IWUSR | S_IRGRP);
    if (lock_descriptor_ < 0) fail("can't create", lock_, errno);
    if (::flock(lock_descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      const std::string owner = owner_of(lock_descriptor_);
      ::close(std::exchange(lock_descriptor_, -1));
      if (error == EWOULDBLOCK) {
        throw BusyError(
            final_.string() + ": " + owner +
            " is writing this file now; wait for it to end, or choose another output directory");
      }
      // No locks on this file system: the temporary file's exclusive creation is what is left, and
      // it must be free.
      if (std::filesystem::exists(temporary_)) {
        throw BusyError(temporary_.string() +
                        ": exists, and this file system has no locks to tell whether another merge "
                        "is writing it; remove it if none is");
      }
      return;
    }
    // The previous owner may have removed the file between our open and its unlock: then we hold a
    // lock that nobody sees.
    struct stat ours = {};
    struct stat named = {};
    if (::fstat(lock_descriptor_, &ours) == 0 && ::stat(lock_.c_str(), &named) == 0 &&
        ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) {
      break;
    }
    ::close(std::exchange(lock_descriptor_, -1));
  }
  const std::string owner = this_process();
  if (::ftruncate(lock_descriptor_, 0) == 0) {
    // For the message of whoever comes second; not being able to say who is no reason to stop.
    [[maybe_unused]] const ssize_t written =
        ::pwrite(lock_descriptor_, owner.data(), owner.size(), 0);
  }
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

ReplacementFile::~ReplacementFile() {
  // The name of a published file is gone already.
  ::unlink(temporary_.c_str());
  if (lock_descriptor_ >= 0) {
    ::unlink(lock_.c_str());
    ::close(lock_descriptor_);
  }
}

void ReplacementFile::publish() {
  check_not_written(final_);
  sync(temporary_, O_RDONLY);
  // A journal that a crashed writer left beside the old file would be played back into the new one.
  for (const std::string_view suffix : {"-journal", "-wal", "-shm"}) {
    std::filesystem::path left = final_;
    left += suffix;
    ::unlink(left.c_str());
  }
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) fail("can't replace", final_, errno);
  const std::filesystem::path directory = final_.parent_path().empty() ? "." : final_.parent_path();
  sync(directory, O_RDONLY | O_DIRECTORY);
}

}  // namespace trendprobe
