// A SQLite VFS over unix-none whose writes fail while a test wants them to: a full or broken disk.
// It also counts what is synced.
#pragma once

#include <sqlite3.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

namespace trendprobe {

class FailingVfs {
 public:
  explicit FailingVfs(std::string name) : name_(std::move(name)), vfs_(*base()) {
    vfs_.zName = name_.c_str();
    vfs_.szOsFile = static_cast<int>(sizeof(File)) + base()->szOsFile;
    vfs_.pAppData = this;
    vfs_.xOpen = open;
    sqlite3_vfs_register(&vfs_, 0);
  }
  FailingVfs(const FailingVfs&) = delete;
  FailingVfs& operator=(const FailingVfs&) = delete;
  ~FailingVfs() { sqlite3_vfs_unregister(&vfs_); }

  /// SQLITE_FULL, SQLITE_IOERR_WRITE, …; SQLITE_OK: writes succeed.
  std::atomic<int> write_result{SQLITE_OK};
  std::atomic<int> open_result{SQLITE_OK};
  std::atomic<int> sync_result{SQLITE_OK};
  /// While true, writes wait.
  std::atomic<bool> is_stuck{false};
  std::atomic<int> syncs{0};
  /// Open files with bytes that a power cut would lose.
  std::atomic<int> unsynced_files{0};

 private:
  struct File {
    sqlite3_file head;
    sqlite3_io_methods methods;
    FailingVfs* owner;
    bool is_unsynced;
    void set_unsynced(bool now) {
      owner->unsynced_files += static_cast<int>(now) - static_cast<int>(is_unsynced);
      is_unsynced = now;
    }
    sqlite3_file* inner() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };

  static sqlite3_vfs* base() { return sqlite3_vfs_find("unix-none"); }
  static File* of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
  static sqlite3_file* inner(sqlite3_file* file) { return of(file)->inner(); }
  static const sqlite3_io_methods* methods(sqlite3_file* file) { return inner(file)->pMethods; }

  static int open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out) {
    auto* owner = static_cast<FailingVfs*>(vfs->pAppData);
    File* mine = ::new (file) File{};
    mine->owner = owner;
    if (const int result = owner->open_result; result != SQLITE_OK) return result;
    const int result = base()->xOpen(base(), name, mine->inner(), flags, out);
    if (mine->inner()->pMethods == nullptr) return result;
    sqlite3_io_methods& io = mine->methods;
    io.iVersion = 1;  // no memory mapping, no shared memory: neither is used on unix-none
    io.xClose = [](sqlite3_file* f) {
      of(f)->set_unsynced(false);
      return methods(f)->xClose(inner(f));
    };
    io.xRead = [](sqlite3_file* f, void* data, int size, sqlite3_int64 offset) {
      return methods(f)->xRead(inner(f), data, size, offset);
    };
    io.xWrite = [](sqlite3_file* f, const void* data, int size, sqlite3_int64 offset) {
      of(f)->owner->is_stuck.wait(true);
      const int failure = of(f)->owner->write_result;
      if (failure != SQLITE_OK) return failure;
      of(f)->set_unsynced(true);
      return methods(f)->xWrite(inner(f), data, size, offset);
    };
    io.xTruncate = [](sqlite3_file* f, sqlite3_int64 size) {
      return methods(f)->xTruncate(inner(f), size);
    };
    io.xSync = [](sqlite3_file* f, int sync_flags) {
      const int failure = of(f)->owner->sync_result;
      if (failure != SQLITE_OK) return failure;
      ++of(f)->owner->syncs;
      of(f)->set_unsynced(false);
      return methods(f)->xSync(inner(f), sync_flags);
    };
    io.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
      return methods(f)->xFileSize(inner(f), size);
    };
    io.xLock = [](sqlite3_file* f, int level) { return methods(f)->xLock(inner(f), level); };
    io.xUnlock = [](sqlite3_file* f, int level) { return methods(f)->xUnlock(inner(f), level); };
    io.xCheckReservedLock = [](sqlite3_file* f, int* reserved) {
      return methods(f)->xCheckReservedLock(inner(f), reserved);
    };
    io.xFileControl = [](sqlite3_file* f, int operation, void* argument) {
      return methods(f)->xFileControl(inner(f), operation, argument);
    };
    io.xSectorSize = [](sqlite3_file* f) { return methods(f)->xSectorSize(inner(f)); };
    io.xDeviceCharacteristics = [](sqlite3_file* f) {
      return methods(f)->xDeviceCharacteristics(inner(f));
    };
    mine->head.pMethods = &io;
    return result;
  }

  std::string name_;
  sqlite3_vfs vfs_;
};

}  // namespace trendprobe
