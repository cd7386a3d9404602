// Builds the B-tree of one WITHOUT ROWID table from its rows in the order of their key: every page
// is written once, full, and at the end of the file. Several times as fast as SQLite's own INSERT,
// which looks up the place of each row.
//
// Rules: https://www.sqlite.org/fileformat2.html, 1.6 (such a table is an index B-tree, whose inner
// pages hold rows, too). Holds one page a level. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "writer/page_appender.h"

namespace trendprobe {

class BTreeBuilder {
 public:
  explicit BTreeBuilder(std::size_t page_size);

  /// Adds one row, in SQLite's record format, key columns first. REQUIRES: its key is greater than
  /// that of the row before. Errors of `pages` propagate, after which the builder is of no more
  /// use.
  void add(std::span<const std::byte> record, PageAppender& pages);
  /// Writes what is left, the root into the page `root`, which is that of the empty table. Call
  /// once, as the last call.
  void finish(std::uint32_t root, PageAppender& pages);

 private:
  /// The page of a level that is being filled, its cells from the end of the page downwards.
  struct Level {
    std::vector<std::byte> page;
    std::size_t content_begin = 0;
    std::uint16_t cells = 0;
    // The first cell that had no room. Whether it becomes the row between two pages or the first of
    // the next page shows when another cell comes, or none: no page may be empty.
    std::vector<std::byte> held_back;
    std::uint32_t held_back_child = 0;
  };

  bool is_leaf(std::size_t level) const { return level == 0; }
  std::size_t header_size(std::size_t level) const { return is_leaf(level) ? 8 : 12; }
  std::size_t child_size(std::size_t level) const { return is_leaf(level) ? 0 : 4; }
  void start_page(std::size_t level);
  /// A row with the page of the rows before it, which leaves have not.
  void add_cell(std::size_t level, std::uint32_t left_child, std::span<const std::byte> cell,
                PageAppender& pages);
  void place(std::size_t level, std::uint32_t left_child, std::span<const std::byte> cell);
  /// The page as it goes to the file; `right_child` is the page of the rows behind its last.
  std::span<const std::byte> complete_page(std::size_t level, std::uint32_t right_child);
  /// The cell of a record, all of it that is on the page itself.
  std::span<const std::byte> cell_of(std::span<const std::byte> record, PageAppender& pages);

  std::size_t page_size_;
  std::size_t most_on_page_;  // bytes of a record
  std::deque<Level> levels_;  // from the leaves up
  std::vector<std::byte> cell_;
  std::vector<std::byte> overflow_;
};

}  // namespace trendprobe
