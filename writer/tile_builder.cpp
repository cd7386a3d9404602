#include "writer/tile_builder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Copies rows of `from` values, at `stride`, into rows of `width` values, padded with `missing`.
template <typename Value>
void copy_rows(const Value* from, std::size_t rows, std::size_t from_width, std::size_t to_width,
               Value missing, Value* to) {
  const std::size_t common = std::min(from_width, to_width);
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(to, from, common * sizeof(Value));
    std::fill(to + common, to + to_width, missing);
    from += from_width;
    to += to_width;
  }
}

}  // namespace

std::int64_t tile_id(std::uint32_t plane, std::size_t target_block, std::size_t rank_block,
                     std::size_t step_block, std::size_t rank_blocks, std::size_t step_blocks) {
  return (std::int64_t{plane} << 40) +
         static_cast<std::int64_t>((target_block * rank_blocks + rank_block) * step_blocks +
                                   step_block);
}

TileShape choose_tile_shape(std::size_t ranks, std::size_t steps, std::uint64_t bytes_per_step,
                            std::uint64_t memory) {
  TileShape shape;
  const std::uint64_t bytes = std::max<std::uint64_t>(1, bytes_per_step);
  // Several ranks in a tile mean that all steps of all but the last are held; one rank alone means
  // that only the steps of one tile are.
  const std::uint64_t rank_bytes = bytes * std::max<std::size_t>(1, steps);
  while (shape.ranks > 1 && (shape.ranks / 2 >= ranks || shape.ranks * rank_bytes > memory)) {
    shape.ranks /= 2;
  }
  while (shape.ranks == 1 && shape.steps > 1 && shape.steps * bytes > memory) shape.steps /= 2;
  return shape;
}

TileBuilder::TileBuilder(const TileShape& shape, std::size_t ranks, std::size_t steps,
                         TileStore& store)
    : shape_(shape),
      ranks_(ranks),
      steps_(steps),
      rank_blocks_(ceil_div(ranks, shape.ranks)),
      step_blocks_(ceil_div(steps, shape.steps)),
      store_(store),
      open_(step_blocks_) {}

std::uint32_t TileBuilder::ranks_in_block(std::size_t rank_block) const {
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(shape_.ranks, ranks_ - rank_block * shape_.ranks));
}

std::uint32_t TileBuilder::steps_in_block(std::size_t step_block) const {
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(shape_.steps, steps_ - step_block * shape_.steps));
}

void TileBuilder::begin(std::size_t rank, std::size_t step) {
  const std::size_t rank_block = rank / shape_.ranks;
  if (rank_block != rank_block_) {
    flush_all();
    rank_block_ = rank_block;
  }
  if (step / shape_.steps != step_block_) recent_.clear();
  step_block_ = step / shape_.steps;
  const std::uint32_t nr = ranks_in_block(rank_block);
  const std::size_t rank_in_block = rank % shape_.ranks;
  if (rank_in_block + 1 == nr) {
    for (; first_open_ < step_block_; ++first_open_) flush(first_open_);
  }
  row_ = step % shape_.steps * nr + rank_in_block;
}

inline TileBuilder::Tile& TileBuilder::tile_of(std::uint32_t plane, std::size_t target_block) {
  if (plane < recent_.size()) {
    const Recent& recent = recent_[plane];
    if (recent.tile != nullptr && recent.target_block == target_block) return *recent.tile;
  }
  return find_tile(plane, target_block);
}

void TileBuilder::add(std::span<const std::uint32_t> planes, std::uint32_t column,
                      const double* values) {
  const std::size_t target_block = column / shape_.targets;
  const std::size_t index = row_ * shape_.targets + column % shape_.targets;
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const double value = values[i];
    if (is_missing(value)) continue;
    const std::uint32_t plane = planes[i];
    Tile& tile = tile_of(plane, target_block);
    plane_width_[plane] = std::max(plane_width_[plane], column + 1);
    const auto narrow = static_cast<float>(value);
    if (tile.wide.empty()) {
      // Nearly every value is a float32 exactly.
      if (static_cast<double>(narrow) == value) {
        tile.narrow[index] = narrow;
        continue;
      }
      if (fits_float32(value)) {
        tile.narrow[index] = to_float32(canonical(value));
        continue;
      }
      widen(tile);
    }
    tile.wide[index] = canonical(value);
  }
}

TileBuilder::Tile& TileBuilder::find_tile(std::uint32_t plane, std::size_t target_block) {
  StepBlock& block = open_[step_block_];
  if (plane >= plane_width_.size()) plane_width_.resize(plane + 1, 0);
  if (plane >= recent_.size()) recent_.resize(plane + 1);
  if (plane >= block.size()) block.resize(plane + 1);
  std::vector<std::unique_ptr<Tile>>& tiles = block[plane];
  if (target_block >= tiles.size()) tiles.resize(target_block + 1);
  std::unique_ptr<Tile>& tile = tiles[target_block];
  if (tile == nullptr) {
    tile = std::make_unique<Tile>();
    tile->narrow.assign(
        std::size_t{shape_.targets} * ranks_in_block(rank_block_) * steps_in_block(step_block_),
        to_float32(kMissing));
    memory_ += tile->narrow.size() * sizeof(float);
  }
  recent_[plane] = {target_block, tile.get()};
  return *tile;
}

void TileBuilder::widen(Tile& tile) {
  tile.wide.resize(tile.narrow.size());
  std::transform(tile.narrow.begin(), tile.narrow.end(), tile.wide.begin(), from_float32);
  memory_ += tile.wide.size() * sizeof(double) - tile.narrow.size() * sizeof(float);
  tile.narrow = {};
}

void TileBuilder::flush(std::size_t step_block) {
  StepBlock block = std::exchange(open_[step_block], {});
  recent_.clear();
  for (std::uint32_t plane = 0; plane < block.size(); ++plane) {
    for (std::uint32_t target_block = 0; target_block < block[plane].size(); ++target_block) {
      std::unique_ptr<Tile> tile = std::move(block[plane][target_block]);
      if (tile != nullptr) write(*tile, plane, target_block, step_block);
    }
  }
}

void TileBuilder::flush_all() {
  for (; first_open_ < step_blocks_; ++first_open_) flush(first_open_);
  first_open_ = 0;
}

void TileBuilder::write(Tile& tile, std::uint32_t plane, std::uint32_t target_block,
                        std::size_t step_block) {
  const std::size_t rows = std::size_t{ranks_in_block(rank_block_)} * steps_in_block(step_block);
  const std::uint32_t width =
      std::min(shape_.targets, plane_width_[plane] - target_block * shape_.targets);
  const std::int64_t id =
      tile_id(plane, target_block, rank_block_, step_block, rank_blocks_, step_blocks_);
  if (tile.wide.empty()) {
    encoded_.resize(rows * width * sizeof(float));
    copy_rows(tile.narrow.data(), rows, shape_.targets, width, to_float32(kMissing),
              reinterpret_cast<float*>(encoded_.data()));
    memory_ -= tile.narrow.size() * sizeof(float);
  } else {
    encoded_.resize(rows * width * sizeof(double));
    copy_rows(tile.wide.data(), rows, shape_.targets, width, kMissing,
              reinterpret_cast<double*>(encoded_.data()));
    memory_ -= tile.wide.size() * sizeof(double);
  }
  store_.put(id, encoded_);
  if (width < shape_.targets) partial_.push_back({plane, target_block, id, width});
}

void TileBuilder::finish(std::span<const std::uint32_t> plane_targets) {
  flush_all();
  for (const Partial& partial : partial_) {
    const std::uint32_t width = std::min(
        shape_.targets, plane_targets[partial.plane] - partial.target_block * shape_.targets);
    if (width == partial.width) continue;
    const std::vector<std::byte> old = store_.get(partial.tile_id);
    // Which blocks it lies in decides how many rows it has, and so which width its values have.
    const std::int64_t position = partial.tile_id & ((std::int64_t{1} << 40) - 1);
    const std::size_t step_block = static_cast<std::size_t>(position) % step_blocks_;
    const std::size_t rank_block = static_cast<std::size_t>(position) / step_blocks_ % rank_blocks_;
    const std::size_t rows = std::size_t{ranks_in_block(rank_block)} * steps_in_block(step_block);
    if (old.size() == rows * partial.width * sizeof(float)) {
      encoded_.resize(rows * width * sizeof(float));
      copy_rows(reinterpret_cast<const float*>(old.data()), rows, partial.width, width,
                to_float32(kMissing), reinterpret_cast<float*>(encoded_.data()));
    } else {
      encoded_.resize(rows * width * sizeof(double));
      copy_rows(reinterpret_cast<const double*>(old.data()), rows, partial.width, width, kMissing,
                reinterpret_cast<double*>(encoded_.data()));
    }
    store_.put(partial.tile_id, encoded_);
  }
  partial_ = {};
}

}  // namespace trendprobe
