#include "writer/btree_builder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "writer/big_endian.h"

namespace trendprobe {
namespace {

constexpr std::byte kLeafPage{0x0A};
constexpr std::byte kInnerPage{0x02};
constexpr std::size_t kPointerSize = 2;
constexpr std::size_t kPageNumberSize = 4;

// SQLite's limits for an index B-tree: what of a record stays on its page at most, and at least.
constexpr std::size_t most_on_page(std::size_t page_size) {
  return (page_size - 12) * 64 / 255 - 23;
}
constexpr std::size_t least_on_page(std::size_t page_size) {
  return (page_size - 12) * 32 / 255 - 23;
}

// SQLite's variable-length integer, of a number below 2^28.
void append_varint(std::size_t value, std::vector<std::byte>& to) {
  std::array<std::byte, 4> digits{};
  std::size_t count = 0;
  do {
    digits[count++] = static_cast<std::byte>(value & 0x7F);
    value >>= 7;
  } while (value != 0);
  while (count-- > 0) to.push_back(count == 0 ? digits[0] : digits[count] | std::byte{0x80});
}

}  // namespace

BTreeBuilder::BTreeBuilder(std::size_t page_size)
    : page_size_(page_size), most_on_page_(most_on_page(page_size)), levels_(1) {
  start_page(0);
}

void BTreeBuilder::start_page(std::size_t level) {
  Level& state = levels_[level];
  state.page.assign(page_size_, std::byte{0});
  state.content_begin = page_size_;
  state.cells = 0;
}

void BTreeBuilder::add(std::span<const std::byte> record, PageAppender& pages) {
  add_cell(0, 0, cell_of(record, pages), pages);
}

void BTreeBuilder::add_cell(std::size_t level, std::uint32_t left_child,
                            std::span<const std::byte> cell, PageAppender& pages) {
  if (level == levels_.size()) {
    levels_.emplace_back();
    start_page(level);
  }
  Level& state = levels_[level];
  if (!state.held_back.empty()) {
    const std::uint32_t page = pages.append(complete_page(level, state.held_back_child));
    add_cell(level + 1, page, state.held_back, pages);
    state.held_back.clear();
    start_page(level);
  }
  const std::size_t used =
      header_size(level) + state.cells * kPointerSize + page_size_ - state.content_begin;
  if (used + kPointerSize + child_size(level) + cell.size() <= page_size_) {
    place(level, left_child, cell);
  } else {
    state.held_back.assign(cell.begin(), cell.end());
    state.held_back_child = left_child;
  }
}

void BTreeBuilder::place(std::size_t level, std::uint32_t left_child,
                         std::span<const std::byte> cell) {
  Level& state = levels_[level];
  state.content_begin -= child_size(level) + cell.size();
  std::byte* const to = state.page.data() + state.content_begin;
  if (!is_leaf(level)) store_big_endian(to, left_child);
  std::memcpy(to + child_size(level), cell.data(), cell.size());
  store_big_endian(state.page.data() + header_size(level) + state.cells * kPointerSize,
                   static_cast<std::uint16_t>(state.content_begin));
  ++state.cells;
}

std::span<const std::byte> BTreeBuilder::complete_page(std::size_t level,
                                                       std::uint32_t right_child) {
  Level& state = levels_[level];
  std::byte* const header = state.page.data();
  header[0] = is_leaf(level) ? kLeafPage : kInnerPage;
  store_big_endian(header + 3, state.cells);
  // 65536 is written as 0.
  store_big_endian(header + 5, static_cast<std::uint16_t>(state.content_begin));
  if (!is_leaf(level)) store_big_endian(header + 8, right_child);
  return state.page;
}

void BTreeBuilder::finish(std::uint32_t root, PageAppender& pages) {
  std::uint32_t last_child = 0;
  for (std::size_t level = 0;; ++level) {
    Level& state = levels_[level];
    if (!state.held_back.empty()) {
      // The last row on the page goes between it and the page of the row that was held back.
      const std::size_t last_pointer = header_size(level) + (state.cells - 1U) * kPointerSize;
      const std::size_t begin = state.content_begin;
      const std::size_t end =
          state.cells == 1
              ? page_size_
              : load_big_endian<std::uint16_t>(state.page.data() + last_pointer - kPointerSize);
      const std::vector<std::byte> last(
          state.page.begin() + static_cast<std::ptrdiff_t>(begin + child_size(level)),
          state.page.begin() + static_cast<std::ptrdiff_t>(end));
      const std::uint32_t child =
          is_leaf(level) ? 0 : load_big_endian<std::uint32_t>(state.page.data() + begin);
      std::fill_n(state.page.begin() + static_cast<std::ptrdiff_t>(begin), end - begin,
                  std::byte{0});
      std::fill_n(state.page.begin() + static_cast<std::ptrdiff_t>(last_pointer), kPointerSize,
                  std::byte{0});
      state.content_begin = end;
      --state.cells;
      const std::uint32_t page = pages.append(complete_page(level, child));
      add_cell(level + 1, page, last, pages);
      start_page(level);
      place(level, state.held_back_child, state.held_back);
    }
    if (level + 1 == levels_.size()) {
      pages.replace(root, complete_page(level, last_child));
      return;
    }
    last_child = pages.append(complete_page(level, last_child));
  }
}

std::span<const std::byte> BTreeBuilder::cell_of(std::span<const std::byte> record,
                                                 PageAppender& pages) {
  cell_.clear();
  append_varint(record.size(), cell_);
  if (record.size() <= most_on_page_) {
    cell_.insert(cell_.end(), record.begin(), record.end());
    return cell_;
  }
  const std::size_t chunk = page_size_ - kPageNumberSize;
  const std::size_t least = least_on_page(page_size_);
  std::size_t on_page = least + (record.size() - least) % chunk;
  if (on_page > most_on_page_) on_page = least;
  cell_.insert(cell_.end(), record.begin(), record.begin() + static_cast<std::ptrdiff_t>(on_page));
  // From the last page to the first, since each names the next.
  std::uint32_t next = 0;
  for (std::size_t i = (record.size() - on_page + chunk - 1) / chunk; i-- > 0;) {
    const std::span<const std::byte> part =
        record.subspan(on_page + i * chunk, std::min(chunk, record.size() - on_page - i * chunk));
    overflow_.assign(page_size_, std::byte{0});
    store_big_endian(overflow_.data(), next);
    std::copy(part.begin(), part.end(), overflow_.begin() + kPageNumberSize);
    next = pages.append(overflow_);
  }
  cell_.resize(cell_.size() + kPageNumberSize);
  store_big_endian(cell_.data() + cell_.size() - kPageNumberSize, next);
  return cell_;
}

}  // namespace trendprobe
