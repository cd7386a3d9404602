// Appends pages to a SQLite database file while no connection has it open.
//
// Rules of the file: https://www.sqlite.org/fileformat2.html, 1.2 to 1.4. The database must be in
// rollback journal mode, without auto-vacuum (whose pointer map would have to name every page), and
// have no bytes reserved at the end of a page. Belongs to one thread. Every method throws
// SqliteError when the storage fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "writer/sqlite_handle.h"

namespace trendprobe {

class PageAppender {
 public:
  /// Opens a database. `vfs` as in StorageFile.
  PageAppender(const std::filesystem::path& database, const std::string& vfs);

  std::size_t page_size() const { return page_size_; }
  /// Adds a page at the end; its number.
  std::uint32_t append(std::span<const std::byte> page);
  /// Writes a page that is there already.
  void replace(std::uint32_t number, std::span<const std::byte> page);
  /// Makes what was appended part of the database, for the next connection to find. Call once, as
  /// the last call: without it the database is as it was, with unused bytes at its end.
  void finish();

 private:
  void flush();
  std::uint64_t offset_of(std::uint32_t number) const {
    return (std::uint64_t{number} - 1) * page_size_;
  }

  StorageFile file_;
  std::size_t page_size_ = 0;
  std::uint32_t page_count_ = 0;  // of the file once the buffer is written
  std::vector<std::byte> buffer_;
  std::uint32_t first_buffered_ = 0;
};

}  // namespace trendprobe
