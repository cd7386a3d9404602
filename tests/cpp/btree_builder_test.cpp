#include "writer/btree_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cpp/failing_vfs.h"
#include "tests/cpp/temporary_directory.h"
#include "tests/cpp/trend_database.h"
#include "writer/big_endian.h"
#include "writer/row_record.h"
#include "writer/trend_schema.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Row {
  RowKey key;
  std::vector<double> values;
};

std::vector<std::string> statistics(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("s" + std::to_string(i));
  return names;
}

void create(const fs::path& path, std::size_t page_size, std::size_t statistic_count) {
  Database database(path,
                    {.mode = OpenMode::kCreateNew, .without_locks = true, .disposable = true});
  database.execute("PRAGMA page_size=" + std::to_string(page_size));
  database.execute("CREATE TABLE monitoring_targets(target_id INTEGER PRIMARY KEY)");
  database.execute("CREATE TABLE monitoring_metrics(metric_id INTEGER PRIMARY KEY)");
  database.execute(trend_sql::create_trend_data(statistics(statistic_count)));
  database.close();
}

void build(const fs::path& path, std::size_t page_size, const std::vector<Row>& rows) {
  const std::int64_t root = Database(path, {.mode = OpenMode::kReadOnly})
                                .query_integer(std::string(trend_sql::kTrendDataRoot));
  PageAppender pages(path, "");
  ASSERT_EQ(pages.page_size(), page_size);
  BTreeBuilder builder(page_size);
  std::vector<std::byte> record;
  for (const Row& row : rows) {
    encode_row(row.key, row.values, record);
    builder.add(record, pages);
  }
  builder.finish(static_cast<std::uint32_t>(root), pages);
  pages.finish();
}

// The same rows, by SQLite.
void insert(const fs::path& path, const std::vector<Row>& rows) {
  if (rows.empty()) return;
  Database database(path,
                    {.mode = OpenMode::kReadWrite, .without_locks = true, .disposable = true});
  const std::size_t columns = 4 + rows.front().values.size();
  std::string sql = "INSERT INTO trend_data VALUES(?";
  for (std::size_t i = 1; i < columns; ++i) sql += ",?";
  Transaction transaction(database);
  Statement statement = database.prepare(sql + ")");
  for (const Row& row : rows) {
    statement.bind(0, row.key.rank).bind(1, row.key.step);
    statement.bind(2, row.key.target_id).bind(3, row.key.metric_id);
    for (std::size_t i = 0; i < row.values.size(); ++i) {
      const int parameter = static_cast<int>(i) + 4;
      const double value = row.values[i];
      if (std::isnan(value)) {
        statement.bind_null(parameter);
      } else if (std::isinf(value)) {
        statement.bind(parameter, std::copysign(kRowLimit + 1, value));
      } else {
        statement.bind(parameter, std::min(std::max(value, -kRowLimit), kRowLimit));
      }
    }
    statement.run();
  }
  transaction.commit();
}

double some_value(std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kSpecial[] = {kMissing,  std::numeric_limits<double>::quiet_NaN(),
                                        kInfinity, -kInfinity,
                                        0.0,       -0.0,
                                        1.0,       -1.0,
                                        127,       128,
                                        -128,      -129,
                                        32767,     32768,
                                        -32769,    8388607,
                                        8388608,   -8388609,
                                        1e9,       -1e9,
                                        1e9 + 0.5, 1e300,
                                        5e-324,    0.1};
  const std::uint64_t choice = random() % 50;
  if (choice < std::size(kSpecial)) return kSpecial[choice];
  return std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())),
                    static_cast<int>(random() % 80) - 80);
}

std::vector<Row> some_rows(std::size_t count, std::size_t statistic_count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<Row> rows;
  RowKey key{.rank = static_cast<std::int64_t>(random() % 3), .target_id = 1, .metric_id = 1};
  for (std::size_t i = 0; i < count; ++i) {
    switch (random() % 8) {
      case 0:
        key.rank += 1 + static_cast<std::int64_t>(random() % 200);
        key.step = key.target_id = key.metric_id = 1;
        break;
      case 1:
        key.step += 1 + static_cast<std::int64_t>(random() >> (random() % 40 + 24));
        key.target_id = key.metric_id = 1;
        break;
      case 2:
        ++key.metric_id;
        break;
      default:
        key.target_id += 1 + static_cast<std::int64_t>(random() % 3000);
    }
    Row& row = rows.emplace_back(Row{key, {}});
    for (std::size_t k = 0; k < statistic_count; ++k) row.values.push_back(some_value(random));
  }
  return rows;
}

class BTreeBuilderTest : public testing::Test {
 protected:
  void expect_what_sqlite_writes(std::size_t page_size, std::size_t statistic_count,
                                 const std::vector<Row>& rows) {
    SCOPED_TRACE(testing::Message() << page_size << " bytes a page, " << statistic_count
                                    << " statistics, " << rows.size() << " rows");
    const TemporaryDirectory directory;
    const fs::path ours = directory / "ours";
    const fs::path theirs = directory / "theirs";
    create(ours, page_size, statistic_count);
    create(theirs, page_size, statistic_count);
    build(ours, page_size, rows);
    insert(theirs, rows);
    // A page more where the last row of all begins one, on each of four levels at most.
    EXPECT_LE(fs::file_size(ours), fs::file_size(theirs) + 4 * page_size);
    Database database(ours, {.mode = OpenMode::kReadWrite, .disposable = true});
    EXPECT_THAT(TrendDatabase(ours).rows("PRAGMA integrity_check"), ElementsAre("ok"));
    // In the order of the primary key, which is that of the pages.
    const std::string query = "SELECT *, typeof(s0) FROM trend_data";
    EXPECT_TRUE(TrendDatabase(ours).rows(query) == TrendDatabase(theirs).rows(query));
    // Each row is found by its key, and the table still takes rows.
    std::mt19937_64 random(1);
    Statement find = database.prepare(
        "SELECT count(*) FROM trend_data WHERE (rank, step, target_id, metric_id) = (?,?,?,?)");
    for (std::size_t i = 0; !rows.empty() && i < 20; ++i) {
      const RowKey& key = rows[random() % rows.size()].key;
      find.bind(0, key.rank).bind(1, key.step).bind(2, key.target_id).bind(3, key.metric_id);
      ASSERT_TRUE(find.step());
      EXPECT_EQ(find.integer(0), 1);
      find.reset();
    }
    database.execute("DELETE FROM trend_data WHERE target_id % 2 = 0");
    database.execute(
        "INSERT INTO trend_data(rank, step, target_id, metric_id) VALUES(-1, -1, -1, -1)");
    EXPECT_THAT(TrendDatabase(ours).rows("PRAGMA integrity_check"), ElementsAre("ok"));
  }
};

TEST_F(BTreeBuilderTest, AnyNumberOfRowsIsWhatSqliteWrites) {
  // Small pages: a few hundred rows are three levels, some thousands four.
  for (std::size_t count = 0; count < 60; ++count) {
    expect_what_sqlite_writes(512, 4, some_rows(count, 4, static_cast<unsigned>(count)));
  }
  for (const std::size_t count : {100U, 333U, 1000U, 5000U, 20000U}) {
    expect_what_sqlite_writes(512, 4, some_rows(count, 4, static_cast<unsigned>(count)));
  }
  expect_what_sqlite_writes(16384, 4, some_rows(100000, 4, 1));
  expect_what_sqlite_writes(65536, 4, some_rows(100000, 4, 2));
}

TEST_F(BTreeBuilderTest, APageLessOrMoreIsWhereItShouldBe) {
  // Around the row that begins the second page, and the second level's second.
  const std::vector<Row> rows = some_rows(300, 4, 9);
  for (std::size_t count = 1; count <= rows.size(); ++count) {
    expect_what_sqlite_writes(512, 4, {rows.begin(), rows.begin() + static_cast<long>(count)});
  }
}

TEST_F(BTreeBuilderTest, RowsThatAPageCannotHoldOverflow) {
  for (const std::size_t statistic_count : {10U, 13U, 30U, 60U, 130U, 1500U}) {
    expect_what_sqlite_writes(512, statistic_count, some_rows(60, statistic_count, 3));
  }
  expect_what_sqlite_writes(16384, 1900, some_rows(40, 1900, 4));
}

TEST_F(BTreeBuilderTest, ThePageOfSqlitesLocksIsLeftOut) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "database";
  create(path, 65536, 1);
  constexpr std::uint32_t kLockPage = (1U << 30) / 65536 + 1;
  {
    StorageFile file(path, "");
    std::array<std::byte, 4> count{};
    store_big_endian(count.data(), kLockPage - 2);
    file.write(count, 28);
  }
  PageAppender pages(path, "");
  const std::vector<std::byte> page(65536, std::byte{7});
  EXPECT_EQ(pages.append(page), kLockPage - 1);
  EXPECT_EQ(pages.append(page), kLockPage + 1);
  EXPECT_EQ(pages.append(page), kLockPage + 2);
  pages.finish();
  EXPECT_EQ(TrendDatabase(path).sql().query_integer("PRAGMA page_count"), kLockPage + 2);
  StorageFile file(path, "");
  std::array<std::byte, 1> byte{};
  file.read(byte, (1U << 30) - 1);
  EXPECT_EQ(byte[0], std::byte{7});
  file.read(byte, 1U << 30);
  EXPECT_EQ(byte[0], std::byte{0});
}

TEST_F(BTreeBuilderTest, AFullDiskIsNamed) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "database";
  create(path, 512, 1);
  FailingVfs vfs("btree-builder-test");
  PageAppender pages(path, "btree-builder-test");
  vfs.write_result = SQLITE_FULL;
  try {
    for (int i = 0; i < 10000; ++i) pages.append(std::vector<std::byte>(512));
    FAIL();
  } catch (const SqliteError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    EXPECT_THAT(error.what(), HasSubstr("full"));
  }
  vfs.write_result = SQLITE_OK;
  vfs.open_result = SQLITE_CANTOPEN;
  EXPECT_THROW(PageAppender(path, "btree-builder-test"), SqliteError);
  EXPECT_THROW(PageAppender(path, "no such vfs"), SqliteError);
  EXPECT_THROW(PageAppender(directory / "missing", ""), SqliteError);
}

}  // namespace
}  // namespace trendprobe
