#include "writer/page_appender.h"

#include <array>

#include "writer/big_endian.h"

namespace trendprobe {
namespace {

constexpr std::size_t kHeaderSize = 100;
constexpr std::size_t kPageSizeOffset = 16;
constexpr std::size_t kPageCountOffset = 28;
// The page with this byte holds SQLite's locks and never data.
constexpr std::uint64_t kLockByte = std::uint64_t{1} << 30;
constexpr std::size_t kBufferSize = std::size_t{1} << 18;

}  // namespace

PageAppender::PageAppender(const std::filesystem::path& database, const std::string& vfs)
    : file_(database, vfs) {
  std::array<std::byte, kHeaderSize> header{};
  file_.read(header, 0);
  page_size_ = load_big_endian<std::uint16_t>(header.data() + kPageSizeOffset);
  if (page_size_ == 1) page_size_ = 65536;
  page_count_ = load_big_endian<std::uint32_t>(header.data() + kPageCountOffset);
}

std::uint32_t PageAppender::append(std::span<const std::byte> page) {
  if (page_count_ == kLockByte / page_size_) {
    flush();
    ++page_count_;
  }
  ++page_count_;
  if (buffer_.empty()) first_buffered_ = page_count_;
  buffer_.insert(buffer_.end(), page.begin(), page.end());
  if (buffer_.size() >= kBufferSize) flush();
  return page_count_;
}

void PageAppender::replace(std::uint32_t number, std::span<const std::byte> page) {
  flush();
  file_.write(page, offset_of(number));
}

void PageAppender::flush() {
  if (buffer_.empty()) return;
  file_.write(buffer_, offset_of(first_buffered_));
  buffer_.clear();
}

void PageAppender::finish() {
  flush();
  // The count holds while the file's change counter, which stays, equals the one beside the count.
  std::array<std::byte, sizeof(std::uint32_t)> count{};
  store_big_endian(count.data(), page_count_);
  file_.write(count, kPageCountOffset);
}

}  // namespace trendprobe
