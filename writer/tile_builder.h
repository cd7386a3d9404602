// Packs values that arrive rank by rank and, within a rank, step by step into the tiles of
// docs/format.md, "Tiles".
//
// Holds the tiles that may still grow: those of the current block of ranks, or, once its last rank
// is reached, of the step blocks not yet passed. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trendprobe {

/// Size of a full tile along each axis.
struct TileShape {
  std::uint32_t targets = 64;
  std::uint32_t ranks = 16;
  std::uint32_t steps = 32;

  bool operator==(const TileShape&) const = default;
};

/// The largest shape, at most 64 × 16 × 32, with which a TileBuilder keeps within `memory` bytes
/// where one rank has about `bytes_per_step` bytes of float32 values a step.
TileShape choose_tile_shape(std::size_t ranks, std::size_t steps, std::uint64_t bytes_per_step,
                            std::uint64_t memory);

/// Where tiles are put. A tile may be read back and put again (its metric got more targets since).
class TileStore {
 public:
  TileStore() = default;
  TileStore(const TileStore&) = delete;
  TileStore& operator=(const TileStore&) = delete;
  virtual ~TileStore() = default;

  virtual void put(std::int64_t tile_id, std::span<const std::byte> data) = 0;
  virtual std::vector<std::byte> get(std::int64_t tile_id) = 0;
};

class TileBuilder {
 public:
  /// `store` is borrowed and must outlive the builder. Errors of the store propagate from every
  /// method.
  TileBuilder(const TileShape& shape, std::size_t ranks, std::size_t steps, TileStore& store);

  /// Moves to a (rank index, step index). REQUIRES: after all earlier ones, in this order.
  void begin(std::size_t rank, std::size_t step);
  /// Adds one value a plane at the current position. A missing value leaves no trace.
  void add(std::span<const std::uint32_t> planes, std::uint32_t column, const double* values);
  /// Writes what is left. `plane_targets[plane]` is how many targets the plane's metric has.
  void finish(std::span<const std::uint32_t> plane_targets);

  const TileShape& shape() const { return shape_; }
  /// Bytes of values held now.
  std::size_t memory() const { return memory_; }

 private:
  /// Values at full width (shape_.targets), as float32 until one needs float64.
  struct Tile {
    std::vector<float> narrow;
    std::vector<double> wide;
  };
  struct Partial {
    std::uint32_t plane;
    std::uint32_t target_block;
    std::int64_t tile_id;
    std::uint32_t width;
  };

  /// The tile that a plane used last.
  struct Recent {
    std::size_t target_block = 0;
    Tile* tile = nullptr;
  };

  /// [plane][target block] of one step block.
  using StepBlock = std::vector<std::vector<std::unique_ptr<Tile>>>;

  std::uint32_t ranks_in_block(std::size_t rank_block) const;
  std::uint32_t steps_in_block(std::size_t step_block) const;
  void flush(std::size_t step_block);
  void flush_all();
  void write(Tile& tile, std::uint32_t plane, std::uint32_t target_block, std::size_t step_block);
  Tile& tile_of(std::uint32_t plane, std::size_t target_block);
  Tile& find_tile(std::uint32_t plane, std::size_t target_block);
  void widen(Tile& tile);

  TileShape shape_;
  std::size_t ranks_;
  std::size_t steps_;
  std::size_t rank_blocks_;
  std::size_t step_blocks_;
  TileStore& store_;

  std::vector<StepBlock> open_;  // by step block, of the current rank block
  std::size_t rank_block_ = 0;
  std::size_t step_block_ = 0;
  std::size_t first_open_ = 0;              // step blocks below are written
  std::size_t row_ = 0;                     // (step within block) * nr + rank within block
  std::vector<std::uint32_t> plane_width_;  // columns seen so far, by plane
  std::vector<Recent> recent_;              // by plane, of the current step block
  std::vector<Partial> partial_;            // written while narrower than shape_.targets
  std::vector<std::byte> encoded_;
  std::size_t memory_ = 0;
};

/// `plane_id * 2^40 + (target block * rank_blocks + rank block) * step_blocks + step block`.
std::int64_t tile_id(std::uint32_t plane, std::size_t target_block, std::size_t rank_block,
                     std::size_t step_block, std::size_t rank_blocks, std::size_t step_blocks);

}  // namespace trendprobe
