// Every call into the SQLite library goes through the four types here: one connection, one
// prepared statement, one transaction, and one file without a connection, each owning its handle.
// Errors are thrown as SqliteError with the file, SQLite's extended code and errno.
//
// A Database and its statements, or a StorageFile, belong to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_file;
struct sqlite3_stmt;

namespace trendprobe {

/// Thrown for every failed SQLite call. what() names the file, what was tried, SQLite's message and
/// errno's text.
class SqliteError : public std::runtime_error {
 public:
  SqliteError(const std::string& what, int extended_code, int system_errno)
      : std::runtime_error(what), extended_code_(extended_code), system_errno_(system_errno) {}

  int extended_code() const { return extended_code_; }
  /// errno of the failed system call; 0 where there was none.
  int system_errno() const { return system_errno_; }
  /// True when the file is no SQLite database or is damaged.
  bool is_corruption() const;

 private:
  int extended_code_;
  int system_errno_;
};

enum class OpenMode {
  kReadOnly,
  /// The file must not exist: it is created, with mode 0640 less the umask, never through a
  /// symbolic link.
  kCreateNew,
  kReadWrite,
};

struct OpenOptions {
  OpenMode mode = OpenMode::kReadOnly;
  /// Neither locks nor shared memory (VFS unix-none, exclusive locking mode): for files with one
  /// writer by construction.
  bool without_locks = false;
  /// The file is known not to change while it is open: no locks, no look at a journal.
  bool immutable = false;
  /// The file is thrown away should anything fail: neither a journal nor a sync. A failed statement
  /// may leave it damaged.
  bool disposable = false;
  /// Name of a registered VFS; empty = the default, or unix-none with without_locks.
  std::string vfs;
};

class Statement;

/// One connection. Move-only; closes on destruction (errors there are ignored: call close() to see
/// them).
class Database {
 public:
  Database() = default;
  Database(const std::filesystem::path& path, const OpenOptions& options);

  /// Runs one or more statements that return no rows.
  void execute(const std::string& sql);
  /// One integer from the first row of a query.
  std::int64_t query_integer(const std::string& sql);
  /// Prepares one statement.
  Statement prepare(std::string_view sql);
  bool has_table(std::string_view name);
  std::int64_t last_insert_rowid() const;
  int changes() const;
  /// Closes the connection; throws SqliteError if statements are still open.
  void close();
  bool is_open() const { return handle_ != nullptr; }
  const std::filesystem::path& path() const { return path_; }
  sqlite3* handle() const { return handle_.get(); }

  /// Throws SqliteError for the connection's last failed call. `doing` completes "… failed while
  /// <doing>".
  [[noreturn]] void fail(std::string_view doing) const;

 private:
  struct Closer {
    void operator()(sqlite3* handle) const noexcept;
  };
  std::unique_ptr<sqlite3, Closer> handle_;
  std::filesystem::path path_;
};

/// One prepared statement, reused by reset(). Borrows its Database, which must outlive it (moves of
/// the Database included). Parameters and columns count from 0.
class Statement {
 public:
  Statement() = default;
  Statement(sqlite3* database, const std::filesystem::path& path, std::string_view sql);

  Statement& bind(int parameter, std::int64_t value);
  Statement& bind(int parameter, int value) { return bind(parameter, std::int64_t{value}); }
  Statement& bind(int parameter, double value);
  /// The text or bytes are borrowed until the next reset().
  Statement& bind(int parameter, std::string_view text);
  Statement& bind_blob(int parameter, std::span<const std::byte> bytes);
  Statement& bind_null(int parameter);

  /// Advances to the next row; false when there is none.
  bool step();
  /// Runs the statement to its end and resets it, also on failure.
  void run();
  void reset() noexcept;

  bool is_null(int column) const;
  std::int64_t integer(int column) const;
  /// The nearest that fits.
  std::int32_t integer32(int column) const;
  double real(int column) const;
  /// Borrowed until the next step() or reset().
  std::string_view text(int column) const;
  std::span<const std::byte> blob(int column) const;
  int column_count() const;
  std::string column_name(int column) const;

 private:
  [[noreturn]] void fail(std::string_view doing) const;

  struct Finalizer {
    void operator()(sqlite3_stmt* handle) const noexcept;
  };
  std::unique_ptr<sqlite3_stmt, Finalizer> handle_;
  const std::filesystem::path* path_ = nullptr;
};

/// BEGIN on construction; ROLLBACK on destruction unless commit() was reached.
class Transaction {
 public:
  explicit Transaction(Database& database);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit();

 private:
  Database* database_;
};

/// A file that exists, opened for reading and writing through a SQLite VFS as a database's main
/// file is, but without a connection. Not for a file that a connection has open.
class StorageFile {
 public:
  /// `vfs`: name of a registered VFS; empty = unix-none.
  StorageFile(std::filesystem::path path, const std::string& vfs);
  StorageFile(const StorageFile&) = delete;
  StorageFile& operator=(const StorageFile&) = delete;
  ~StorageFile();

  /// Fills `bytes`, 64 KiB at most, from the file. Throws SqliteError also if the file ends before.
  void read(std::span<std::byte> bytes, std::uint64_t offset);
  void write(std::span<const std::byte> bytes, std::uint64_t offset);

 private:
  void check(int code, std::string_view doing) const;

  std::filesystem::path path_;
  const char* sqlite_name_ = nullptr;
  std::unique_ptr<std::byte[]> storage_;  // what file_ points to
  sqlite3_file* file_ = nullptr;
};

}  // namespace trendprobe
