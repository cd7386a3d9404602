#include "writer/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

TEST(ValueEncoding, MissingSurvivesNarrowingAndIsNoOtherNaN) {
  const float narrow = to_float32(kMissing);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(narrow), kMissingFloat32Bits);
  EXPECT_TRUE(is_missing(from_float32(narrow)));
  // The hardware's own conversion keeps it too.
  EXPECT_TRUE(is_missing(static_cast<double>(static_cast<float>(kMissing))));
  EXPECT_FALSE(is_missing(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(is_missing(canonical(std::nan("123"))));
  EXPECT_TRUE(is_missing(canonical(kMissing)));
}

TEST(ValueEncoding, Float32HoldsWhatItCanHold) {
  EXPECT_TRUE(fits_float32(0.1));
  EXPECT_TRUE(fits_float32(0.0));
  EXPECT_TRUE(fits_float32(-std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(fits_float32(kMissing));
  EXPECT_TRUE(fits_float32(16777216.0));
  EXPECT_TRUE(fits_float32(static_cast<double>(std::numeric_limits<float>::denorm_min())));
  EXPECT_TRUE(fits_float32(static_cast<double>(std::numeric_limits<float>::max())));
  EXPECT_FALSE(fits_float32(1e39));
  EXPECT_FALSE(fits_float32(1e-40));
  EXPECT_FALSE(fits_float32(16777217.0));
}

TEST(TargetTable, GivesOneIndexToEachDistinctTarget) {
  TargetTable table;
  EXPECT_EQ(table.intern("a", 0, 0), 0U);
  EXPECT_EQ(table.intern("b", 0, 0), 1U);
  EXPECT_EQ(table.intern("a", 1, 0), 2U);
  EXPECT_EQ(table.intern("a", 0, 1), 3U);
  EXPECT_EQ(table.intern("a", 0, 0), 0U);
  EXPECT_EQ(table.size(), 4U);
  EXPECT_EQ(table[2], (Target{"a", 1, 0}));
  const TargetTable moved = std::move(table);
  EXPECT_EQ(moved[3], (Target{"a", 0, 1}));
}

}  // namespace
}  // namespace trendprobe
