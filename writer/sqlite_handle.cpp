#include "writer/sqlite_handle.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

namespace trendprobe {
namespace {

// SQLite's unix VFS, made for single pages, takes less than 128 KiB a call.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 16;

std::string describe(const std::filesystem::path& path, std::string_view doing,
                     std::string_view message, int extended_code, int system_errno) {
  std::string text = path.string();
  text += ": ";
  text += doing;
  text += " failed: ";
  text += message;
  text += " (SQLite code " + std::to_string(extended_code);
  if (system_errno != 0) {
    text += ", " + std::error_code(system_errno, std::generic_category()).message();
  }
  text += ")";
  return text;
}

// errno of the last failure on the connection's files: a failed COMMIT leaves none with the
// connection.
int errno_of_files(sqlite3* handle) {
  for (const int which : {SQLITE_FCNTL_JOURNAL_POINTER, SQLITE_FCNTL_FILE_POINTER}) {
    sqlite3_file* file = nullptr;
    if (sqlite3_file_control(handle, "main", which, static_cast<void*>(&file)) != SQLITE_OK ||
        file == nullptr || file->pMethods == nullptr) {
      continue;
    }
    int last = 0;
    if (file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &last) == SQLITE_OK &&
        last != 0) {
      return last;
    }
  }
  return 0;
}

[[noreturn]] void fail_with(sqlite3* handle, const std::filesystem::path& path,
                            std::string_view doing) {
  const int code = sqlite3_extended_errcode(handle);
  const int primary = code & 0xFF;
  // errno is left over from an earlier, unrelated call unless the failure came from the file
  // system.
  const bool from_system =
      primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN || primary == SQLITE_FULL;
  const std::string message = sqlite3_errmsg(handle);
  int system_errno = from_system ? sqlite3_system_errno(handle) : 0;
  if (primary == SQLITE_IOERR && system_errno == 0) system_errno = errno_of_files(handle);
  throw SqliteError(describe(path, doing, message, code, system_errno), code, system_errno);
}

// SQLite would create the file with mode 0644 and follow a symbolic link that somebody else
// planted.
void create_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_RDWR,
                                S_IRUSR | S_IWUSR | S_IRGRP);
  if (descriptor < 0) {
    const int error = errno;
    throw SqliteError(describe(path, "creating the file", "unable to create database file",
                               SQLITE_CANTOPEN, error),
                      SQLITE_CANTOPEN, error);
  }
  ::close(descriptor);
}

std::string uri_of(const std::filesystem::path& path, const OpenOptions& options) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string uri = "file:";
  // A relative path that begins with two slashes, or contains ? # %, would be read as another part
  // of the URI.
  for (const char c : std::filesystem::absolute(path).string()) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '?' || c == '#' || c == '%' || byte < 0x20) {
      uri += '%';
      uri += kHex[byte >> 4];
      uri += kHex[byte & 0xF];
    } else {
      uri += c;
    }
  }
  uri += options.mode == OpenMode::kReadOnly ? "?mode=ro" : "?mode=rw";
  if (options.immutable) uri += "&immutable=1";
  return uri;
}

}  // namespace

bool SqliteError::is_corruption() const {
  const int primary = extended_code_ & 0xFF;
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB;
}

void Database::Closer::operator()(sqlite3* handle) const noexcept { sqlite3_close_v2(handle); }

Database::Database(const std::filesystem::path& path, const OpenOptions& options) : path_(path) {
  if (options.mode == OpenMode::kCreateNew) create_file(path);
  int flags = SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  flags |= options.mode == OpenMode::kReadOnly ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
  const std::string vfs = !options.vfs.empty()    ? options.vfs
                          : options.without_locks ? "unix-none"
                                                  : "";
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(uri_of(path, options).c_str(), &handle, flags,
                                   vfs.empty() ? nullptr : vfs.c_str());
  handle_.reset(handle);
  if (code != SQLITE_OK) {
    if (options.mode == OpenMode::kCreateNew) ::unlink(path.c_str());
    if (handle == nullptr) throw std::bad_alloc();
    fail_with(handle, path_, "opening");
  }
  // Files come from other machines and other programs: nothing in a schema may run code.
  // DEFENSIVE also forbids to go without a journal; what is disposable is of our own making.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, options.disposable ? 0 : 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  if (options.without_locks) {
    if (options.mode == OpenMode::kReadOnly) {
      sqlite3_db_config(handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    }
    execute("PRAGMA locking_mode=EXCLUSIVE");
  }
  if (options.disposable) execute("PRAGMA journal_mode=OFF;PRAGMA synchronous=OFF");
}

void Database::fail(std::string_view doing) const { fail_with(handle_.get(), path_, doing); }

void Database::execute(const std::string& sql) {
  if (sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    fail("\"" + sql.substr(0, 60) + "\"");
  }
}

std::int64_t Database::query_integer(const std::string& sql) {
  Statement statement = prepare(sql);
  if (!statement.step()) {
    throw SqliteError(describe(path_, "\"" + sql + "\"", "no row", SQLITE_DONE, 0), SQLITE_DONE, 0);
  }
  return statement.integer(0);
}

Statement Database::prepare(std::string_view sql) { return {handle_.get(), path_, sql}; }

bool Database::has_table(std::string_view name) {
  Statement statement =
      prepare("SELECT count(*) FROM sqlite_schema WHERE type='table' AND name=?1");
  statement.bind(0, name);
  return statement.step() && statement.integer(0) != 0;
}

std::int64_t Database::last_insert_rowid() const {
  return sqlite3_last_insert_rowid(handle_.get());
}

int Database::changes() const { return sqlite3_changes(handle_.get()); }

void Database::close() {
  if (handle_ == nullptr) return;
  if (sqlite3_close(handle_.get()) != SQLITE_OK) fail("closing");
  (void)handle_.release();
}

void Statement::Finalizer::operator()(sqlite3_stmt* handle) const noexcept {
  sqlite3_finalize(handle);
}

Statement::Statement(sqlite3* database, const std::filesystem::path& path, std::string_view sql)
    : path_(&path) {
  sqlite3_stmt* handle = nullptr;
  const int code = sqlite3_prepare_v3(database, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &handle, nullptr);
  handle_.reset(handle);
  if (code != SQLITE_OK) fail_with(database, path, "\"" + std::string(sql.substr(0, 60)) + "\"");
}

void Statement::fail(std::string_view doing) const {
  fail_with(sqlite3_db_handle(handle_.get()), *path_, doing);
}

Statement& Statement::bind(int parameter, std::int64_t value) {
  if (sqlite3_bind_int64(handle_.get(), parameter + 1, value) != SQLITE_OK) fail("binding");
  return *this;
}

Statement& Statement::bind(int parameter, double value) {
  if (sqlite3_bind_double(handle_.get(), parameter + 1, value) != SQLITE_OK) fail("binding");
  return *this;
}

Statement& Statement::bind(int parameter, std::string_view text) {
  // A null pointer would bind NULL in place of an empty text.
  const char* data = text.data() == nullptr ? "" : text.data();
  if (sqlite3_bind_text64(handle_.get(), parameter + 1, data, text.size(), SQLITE_STATIC,
                          SQLITE_UTF8) != SQLITE_OK) {
    fail("binding");
  }
  return *this;
}

Statement& Statement::bind_blob(int parameter, std::span<const std::byte> bytes) {
  const void* data = bytes.data() == nullptr ? "" : static_cast<const void*>(bytes.data());
  if (sqlite3_bind_blob64(handle_.get(), parameter + 1, data, bytes.size(), SQLITE_STATIC) !=
      SQLITE_OK) {
    fail("binding");
  }
  return *this;
}

Statement& Statement::bind_null(int parameter) {
  if (sqlite3_bind_null(handle_.get(), parameter + 1) != SQLITE_OK) fail("binding");
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  fail("\"" + std::string(sqlite3_sql(handle_.get())).substr(0, 60) + "\"");
}

void Statement::run() {
  try {
    while (step()) {
    }
  } catch (...) {
    reset();  // or no later bind() would be taken
    throw;
  }
  reset();
}

void Statement::reset() noexcept { sqlite3_reset(handle_.get()); }

bool Statement::is_null(int column) const {
  return sqlite3_column_type(handle_.get(), column) == SQLITE_NULL;
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(handle_.get(), column);
}

std::int32_t Statement::integer32(int column) const {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(integer(column), std::numeric_limits<std::int32_t>::min(),
                               std::numeric_limits<std::int32_t>::max()));
}

double Statement::real(int column) const { return sqlite3_column_double(handle_.get(), column); }

std::string_view Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  if (data == nullptr) return {};
  return {data, static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

std::span<const std::byte> Statement::blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(handle_.get(), column));
  if (data == nullptr) return {};
  return {data, static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

int Statement::column_count() const { return sqlite3_column_count(handle_.get()); }

std::string Statement::column_name(int column) const {
  const char* name = sqlite3_column_name(handle_.get(), column);
  return name == nullptr ? std::string() : std::string(name);
}

Transaction::Transaction(Database& database) : database_(&database) {
  database_->execute("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (database_ == nullptr || !database_->is_open()) return;
  // SQLite may have rolled back by itself (disk full); ROLLBACK then fails, and there is nothing
  // more to undo.
  if (sqlite3_get_autocommit(database_->handle()) == 0) {
    sqlite3_exec(database_->handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

void Transaction::commit() {
  database_->execute("COMMIT");
  database_ = nullptr;
}

StorageFile::StorageFile(std::filesystem::path path, const std::string& vfs)
    : path_(std::move(path)) {
  sqlite3_vfs* const storage = sqlite3_vfs_find(vfs.empty() ? "unix-none" : vfs.c_str());
  if (storage == nullptr) check(SQLITE_CANTOPEN, "finding the VFS " + vfs);
  sqlite_name_ = sqlite3_create_filename(path_.c_str(), "", "", 0, nullptr);
  if (sqlite_name_ == nullptr) throw std::bad_alloc();
  storage_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(storage->szOsFile));
  file_ = reinterpret_cast<sqlite3_file*>(storage_.get());
  const int code = storage->xOpen(storage, sqlite_name_, file_,
                                  SQLITE_OPEN_READWRITE | SQLITE_OPEN_MAIN_DB, nullptr);
  if (code == SQLITE_OK) return;
  if (file_->pMethods != nullptr) file_->pMethods->xClose(file_);
  sqlite3_free_filename(sqlite_name_);
  check(code, "opening");
}

StorageFile::~StorageFile() {
  file_->pMethods->xClose(file_);
  sqlite3_free_filename(sqlite_name_);
}

void StorageFile::check(int code, std::string_view doing) const {
  if (code == SQLITE_OK) return;
  const int system_errno = errno;
  throw SqliteError(describe(path_, doing, sqlite3_errstr(code), code, system_errno), code,
                    system_errno);
}

void StorageFile::read(std::span<std::byte> bytes, std::uint64_t offset) {
  check(file_->pMethods->xRead(file_, bytes.data(), static_cast<int>(bytes.size()),
                               static_cast<sqlite3_int64>(offset)),
        "reading");
}

void StorageFile::write(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMostAtOnce));
    check(file_->pMethods->xWrite(file_, part.data(), static_cast<int>(part.size()),
                                  static_cast<sqlite3_int64>(offset)),
          "writing");
    bytes = bytes.subspan(part.size());
    offset += part.size();
  }
}

}  // namespace trendprobe
