#include "writer/tile_builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "writer/block_encoding.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

void add(TileBuilder& builder, std::uint32_t plane, std::uint32_t column, double value) {
  builder.add({&plane, 1}, column, &value);
}

class MapStore : public TileStore {
 public:
  void put(std::int64_t tile_id, std::span<const std::byte> data) override {
    tiles[tile_id].assign(data.begin(), data.end());
  }
  std::vector<std::byte> get(std::int64_t tile_id) override { return tiles.at(tile_id); }

  std::map<std::int64_t, std::vector<std::byte>> tiles;
};

// A reader that knows docs/format.md and nothing of TileBuilder.
double read_value(const MapStore& store, const TileShape& shape, std::size_t targets,
                  std::size_t ranks, std::size_t steps, std::int64_t plane, std::size_t column,
                  std::size_t rank, std::size_t step) {
  const std::size_t rank_blocks = (ranks + shape.ranks - 1) / shape.ranks;
  const std::size_t step_blocks = (steps + shape.steps - 1) / shape.steps;
  const std::size_t tb = column / shape.targets;
  const std::size_t rb = rank / shape.ranks;
  const std::size_t sb = step / shape.steps;
  const auto found = store.tiles.find(
      (plane << 40) + static_cast<std::int64_t>((tb * rank_blocks + rb) * step_blocks + sb));
  if (found == store.tiles.end()) return kMissing;
  const std::size_t nt = std::min<std::size_t>(shape.targets, targets - tb * shape.targets);
  const std::size_t nr = std::min<std::size_t>(shape.ranks, ranks - rb * shape.ranks);
  const std::size_t ns = std::min<std::size_t>(shape.steps, steps - sb * shape.steps);
  std::vector<double> values;
  EXPECT_TRUE(decode_values(found->second, nt * nr * ns, values)) << found->second.size();
  return values.at((step % shape.steps * nr + rank % shape.ranks) * nt + column % shape.targets);
}

void expect_same(double actual, double expected) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(actual), std::bit_cast<std::uint64_t>(expected));
}

// Fills planes whose metrics gain targets from rank to rank, and compares every cell.
void fill_and_compare(const TileShape& shape, std::size_t ranks, std::size_t steps,
                      std::size_t targets, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const std::uint32_t planes = 2;
  std::vector<double> truth((planes + 1) * targets * ranks * steps, kMissing);
  const auto cell = [&](std::size_t plane, std::size_t column, std::size_t rank,
                        std::size_t step) -> double& {
    return truth[((plane * targets + column) * ranks + rank) * steps + step];
  };
  MapStore store;
  TileBuilder builder(shape, ranks, steps, store);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t known = std::max<std::size_t>(1, targets * (rank + 1) / ranks);
    for (std::size_t step = 0; step < steps; ++step) {
      if (uniform(random) < 0.1) continue;
      builder.begin(rank, step);
      for (std::uint32_t plane = 1; plane <= planes; ++plane) {
        for (std::uint32_t column = 0; column < known; ++column) {
          const double dice = uniform(random);
          double value = static_cast<float>(uniform(random) * 100);
          if (dice < 0.3) value = kMissing;
          if (dice > 0.97) value = std::numeric_limits<double>::quiet_NaN();
          if (dice > 0.98) value = std::numeric_limits<double>::infinity();
          if (dice > 0.99) value = -std::numeric_limits<double>::infinity();
          if (plane == 2 && dice > 0.45 && dice < 0.46) value = 1e39;
          add(builder, plane, column, value);
          cell(plane, column, rank, step) = value;
        }
      }
    }
  }
  const std::vector<std::uint32_t> plane_targets(planes + 1, static_cast<std::uint32_t>(targets));
  builder.finish(plane_targets);
  EXPECT_EQ(builder.memory(), 0U);
  for (std::uint32_t plane = 1; plane <= planes; ++plane) {
    for (std::size_t column = 0; column < targets; ++column) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t step = 0; step < steps; ++step) {
          expect_same(read_value(store, shape, targets, ranks, steps, plane, column, rank, step),
                      cell(plane, column, rank, step));
        }
      }
    }
  }
}

TEST(TileBuilder, EveryCellIsWhereTheFormatSaysItIs) {
  fill_and_compare({}, 1, 1, 1, 1);
  fill_and_compare({}, 2, 4, 3, 2);
  fill_and_compare({}, 16, 32, 64, 3);
  fill_and_compare({}, 17, 33, 65, 4);
  fill_and_compare({64, 1, 8}, 3, 20, 130, 5);
  fill_and_compare({4, 2, 2}, 7, 9, 23, 6);
  fill_and_compare({8, 8, 1}, 9, 5, 17, 7);
}

TEST(TileBuilder, TheExampleOfTheDocument) {
  MapStore store;
  TileBuilder builder({64, 16, 32}, 2, 4, store);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t step = 0; step < 4; ++step) {
      builder.begin(rank, step);
      for (std::uint32_t column = 0; column < 3; ++column) {
        add(builder, 5, column, static_cast<double>(100 * rank + 10 * step + column));
      }
    }
  }
  builder.finish(std::vector<std::uint32_t>(6, 3));
  ASSERT_EQ(store.tiles.size(), 1U);
  EXPECT_EQ(store.tiles.begin()->first, std::int64_t{5} << 40);
  std::vector<double> values;
  ASSERT_TRUE(decode_values(store.tiles.begin()->second, 24, values));
  EXPECT_EQ(values[16], 121.0);
}

TEST(TileBuilder, ATileOfMissingValuesIsLeftOut) {
  MapStore store;
  TileBuilder builder({4, 1, 2}, 1, 4, store);
  builder.begin(0, 0);
  add(builder, 1, 0, kMissing);
  builder.begin(0, 2);
  add(builder, 1, 9, 1.0);
  builder.finish(std::vector<std::uint32_t>(2, 10));
  EXPECT_EQ(store.tiles.size(), 1U);
}

TEST(TileBuilder, HoldsNoMoreThanItsShapeWasChosenFor) {
  constexpr std::size_t kRanks = 40;
  constexpr std::size_t kSteps = 64;
  constexpr std::uint32_t kTargets = 256;
  constexpr std::uint64_t kMemory = std::uint64_t{1} << 20;
  const TileShape shape = choose_tile_shape(kRanks, kSteps, kTargets * sizeof(float), kMemory);
  EXPECT_EQ(shape, (TileShape{64, 16, 32}));
  const TileShape small = choose_tile_shape(kRanks, kSteps, kTargets * sizeof(float), kMemory / 4);
  EXPECT_EQ(small, (TileShape{64, 4, 32}));
  MapStore store;
  TileBuilder builder(small, kRanks, kSteps, store);
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t step = 0; step < kSteps; ++step) {
      builder.begin(rank, step);
      for (std::uint32_t column = 0; column < kTargets; ++column) add(builder, 1, column, 1.0);
      most = std::max(most, builder.memory());
    }
  }
  EXPECT_LE(most, kMemory / 4);
}

TEST(ChooseTileShape, FitsTheMemory) {
  EXPECT_EQ(choose_tile_shape(1, 1, 4, 1), (TileShape{64, 1, 1}));
  EXPECT_EQ(choose_tile_shape(1, 100, 1000, 1 << 20), (TileShape{64, 1, 32}));
  EXPECT_EQ(choose_tile_shape(2, 100, 1000, 1 << 20), (TileShape{64, 2, 32}));
  EXPECT_EQ(choose_tile_shape(1000, 100, 1000, 1 << 20), (TileShape{64, 8, 32}));
  EXPECT_EQ(choose_tile_shape(1000, 100000, 1000, 1 << 20), (TileShape{64, 1, 32}));
  EXPECT_EQ(choose_tile_shape(1000, 100000, 100000, 1 << 20), (TileShape{64, 1, 8}));
  EXPECT_EQ(choose_tile_shape(0, 0, 0, 0), (TileShape{64, 1, 1}));
}

}  // namespace
}  // namespace trendprobe
