#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "writer/format_error.h"
#include "writer/shard_reader.h"
#include "writer/shard_writer.h"
#include "writer/value_encoding.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<Metric> kMetrics = {
    {RecordKind::kDump, "forward", {"norm", "max", "min", "mean"}},
    {RecordKind::kMonitor, "actv", {"norm", "nans"}}};

class ShardTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "shard-test-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(directory_); }

  // One block of `count` targets whose values follow from the step.
  RecordBlock block_of(std::int64_t step, std::uint32_t metric, int count) {
    RecordBlock block{step, 0, metric, {}, {}};
    for (int i = 0; i < count; ++i) {
      block.targets.push_back(targets_.intern("layer." + std::to_string(i) + ".output.0", 0, 0));
      for (std::size_t s = 0; s < kMetrics[metric].statistics.size(); ++s) {
        block.values.push_back(static_cast<double>(step) * 1000 + i + static_cast<double>(s) / 4);
      }
    }
    return block;
  }

  static ShardCommit commit_of(RecordKind kind, std::int64_t step,
                               std::span<const RecordBlock> blocks) {
    ShardCommit commit;
    commit.kind = kind;
    commit.training_step = step;
    commit.blocks = blocks;
    commit.metrics = kMetrics;
    return commit;
  }

  fs::path directory_;
  TargetTable targets_;
  int next_part_ = 0;
  ShardIdentity identity_{"node 7/a", 4711, 1'700'000'000'123'000'000, 0};
};

void expect_same(const RecordBlock& a, const RecordBlock& b) {
  EXPECT_EQ(a.training_step, b.training_step);
  EXPECT_EQ(a.micro_step, b.micro_step);
  EXPECT_EQ(a.metric, b.metric);
  EXPECT_EQ(a.targets, b.targets);
  ASSERT_EQ(a.values.size(), b.values.size());
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.values[i]), std::bit_cast<std::uint64_t>(b.values[i]));
  }
}

TEST_F(ShardTest, KeepsEveryValueAndStateOfAValue) {
  ShardWriter writer(directory_ / "deep" / "er", identity_, {}, targets_);
  EXPECT_EQ(writer.path().filename(), "node_7_a-4711-1700000000123-0.shard");
  writer.set_info("rank", std::int64_t{3});
  RecordBlock block = block_of(5, 0, 3);
  block.micro_step = 1;
  block.values[0] = kMissing;
  block.values[1] = std::nan("77");
  block.values[2] = kInfinity;
  block.values[3] = -kInfinity;
  const RecordBlock wide{5, 0, 1, {targets_.intern("w", 2, 1)}, {1e300, 16777217.0}};
  writer.commit(commit_of(RecordKind::kDump, 5, std::vector{block}));
  writer.commit(commit_of(RecordKind::kMonitor, 5, std::vector{wide}));
  const fs::path path = writer.path();
  writer.close();
  EXPECT_FALSE(fs::exists(path.string() + "-wal"));

  ShardReader reader(path);
  EXPECT_EQ(reader.info().host, "node 7/a");
  EXPECT_EQ(reader.info().pid, 4711);
  EXPECT_EQ(reader.info().rank, 3);
  EXPECT_TRUE(reader.info().closed);
  ASSERT_EQ(reader.steps().size(), 2U);
  EXPECT_EQ(reader.steps()[0].records, 3U);
  EXPECT_EQ(reader.metrics(), kMetrics);
  EXPECT_EQ(reader.targets()[3], (Target{"w", 2, 1}));
  block.values[1] = std::numeric_limits<double>::quiet_NaN();  // the payload of a NaN is not kept
  expect_same(reader.read(reader.steps()[0]).at(0), block);
  expect_same(reader.read(reader.steps()[1]).at(0), wide);
}

TEST_F(ShardTest, StoresNamesAndTargetListsOnce) {
  ShardWriter writer(directory_, identity_, {}, targets_);
  for (int step = 0; step < 50; ++step) {
    writer.commit(commit_of(RecordKind::kDump, step, std::vector{block_of(step, 0, 40)}));
  }
  const fs::path path = writer.path();
  writer.close();
  Database database(path, {});
  EXPECT_EQ(database.query_integer("SELECT count(*) FROM targets"), 40);
  EXPECT_EQ(database.query_integer("SELECT count(*) FROM target_lists"), 1);
  EXPECT_EQ(database.query_integer("SELECT count(*) FROM blocks"), 50);
  EXPECT_EQ(database.query_integer("SELECT max(length(data)) FROM blocks"), 40 * 4 * 4);
}

TEST_F(ShardTest, IsReadableWithoutLocksWhileItIsWritten) {
  ShardWriter writer(directory_, identity_, {}, targets_);
  for (int step = 0; step < 30; ++step) {
    const RecordBlock block = block_of(step, 0, 100);
    writer.commit(commit_of(RecordKind::kDump, step, std::vector{block}));
    ShardReader reader(writer.path());
    ASSERT_EQ(reader.steps().size(), static_cast<std::size_t>(step) + 1);
    expect_same(reader.read(reader.steps().back()).at(0), block);
    EXPECT_FALSE(reader.info().closed);
  }
  // The readers neither moved the log into the file nor removed it.
  EXPECT_TRUE(fs::exists(writer.path().string() + "-wal"));
  EXPECT_FALSE(fs::exists(writer.path().string() + "-shm"));
  const fs::path path = writer.path();
  writer.close();
  EXPECT_EQ(ShardReader(path).steps().size(), 30U);
}

TEST_F(ShardTest, ReaderOpenedBeforeTheWriterClosesStillReadsItsCommits) {
  ShardWriter writer(directory_, identity_, {}, targets_);
  const RecordBlock first = block_of(0, 0, 500);
  writer.commit(commit_of(RecordKind::kDump, 0, std::vector{first}));
  ShardReader reader(writer.path());
  for (int step = 1; step < 20; ++step) {
    writer.commit(commit_of(RecordKind::kDump, step, std::vector{block_of(step, 0, 700)}));
  }
  writer.close();
  ASSERT_EQ(reader.steps().size(), 1U);
  expect_same(reader.read(reader.steps()[0]).at(0), first);
}

TEST_F(ShardTest, KillAtAnyMomentKeepsEveryReportedCommit) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const fs::path directory = directory_ / std::to_string(round);
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      TargetTable targets;
      ShardWriter writer(directory, identity_, {}, targets);
      for (std::int64_t step = 0;; ++step) {
        RecordBlock block{step, 0, 0, {}, {}};
        for (int i = 0; i < 300; ++i) {
          block.targets.push_back(targets.intern("t" + std::to_string(i % (1 + step)), 0, i));
          block.values.insert(block.values.end(), 4, static_cast<double>(step));
        }
        writer.commit(commit_of(RecordKind::kDump, step, std::span(&block, 1)));
        if (::write(pipe_ends[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
      }
    }
    ::close(pipe_ends[1]);
    std::int64_t reported = -1;
    const int stop_after = static_cast<int>(random() % 40);
    for (int i = 0; i <= stop_after; ++i) {
      ASSERT_EQ(::read(pipe_ends[0], &reported, sizeof(reported)),
                static_cast<ssize_t>(sizeof(reported)));
    }
    ::usleep(random() % 3000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    std::int64_t more = 0;
    while (::read(pipe_ends[0], &more, sizeof(more)) == static_cast<ssize_t>(sizeof(more))) {
      reported = more;
    }
    ::close(pipe_ends[0]);

    ShardReader reader(directory / ShardWriter::file_name(identity_));
    ASSERT_GE(static_cast<std::int64_t>(reader.steps().size()), reported + 1);
    for (const ShardStep& step : reader.steps()) {
      const auto blocks = reader.read(step);
      ASSERT_EQ(blocks.at(0).values.size(), 1200U);
      EXPECT_EQ(blocks[0].values[17], static_cast<double>(step.training_step));
    }
  }
}

TEST_F(ShardTest, FailedCommitLeavesTheShardAsItWasAndTheNextOneSucceeds) {
  ShardWriter writer(directory_, identity_, {}, targets_);
  writer.commit(commit_of(RecordKind::kDump, 0, std::vector{block_of(0, 0, 10)}));
  // A file-size limit stands in for a full disk.
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction old {};
  ::sigaction(SIGXFSZ, &ignore, &old);
  struct rlimit small = before;
  small.rlim_cur = writer.size_bytes() + 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(writer.commit(commit_of(RecordKind::kDump, 1, std::vector{block_of(1, 0, 20'000)})),
               SqliteError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::sigaction(SIGXFSZ, &old, nullptr);
  const RecordBlock after = block_of(2, 0, 20'000);
  writer.commit(commit_of(RecordKind::kDump, 2, std::vector{after}));
  const fs::path path = writer.path();
  writer.close();
  ShardReader reader(path);
  ASSERT_EQ(reader.steps().size(), 2U);
  EXPECT_EQ(reader.steps()[1].training_step, 2);
  expect_same(reader.read(reader.steps()[1]).at(0), after);
}

TEST_F(ShardTest, FilesAndDirectoriesAreNotForEverybody) {
  const mode_t old = ::umask(0);
  ShardWriter writer(directory_ / "a" / "b", identity_, {}, targets_);
  writer.commit(commit_of(RecordKind::kDump, 0, std::vector{block_of(0, 0, 1)}));
  ::umask(old);
  const auto mode = [](const fs::path& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_mode & 0777U;
  };
  EXPECT_EQ(mode(directory_ / "a"), 0750U);
  EXPECT_EQ(mode(directory_ / "a" / "b"), 0750U);
  EXPECT_EQ(mode(writer.path()), 0640U);
  EXPECT_EQ(mode(writer.path().string() + "-wal"), 0640U);
}

TEST_F(ShardTest, NeverWritesThroughAPlantedLinkOrIntoAnExistingFile) {
  const fs::path victim = directory_ / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, directory_ / ShardWriter::file_name(identity_));
  EXPECT_THROW(ShardWriter(directory_, identity_, {}, targets_), SqliteError);
  EXPECT_EQ(fs::file_size(victim), 8U);
}

TEST_F(ShardTest, RefusesWhatIsNoShardByName) {
  const fs::path empty = directory_ / "empty.shard";
  std::ofstream(empty).flush();
  EXPECT_THROW(ShardReader{empty}, FormatError);
  const fs::path text = directory_ / "text.shard";
  std::ofstream(text) << std::string(5000, 'x');
  EXPECT_THROW(ShardReader{text}, SqliteError);
  EXPECT_THROW(ShardReader{directory_ / "none.shard"}, SqliteError);

  ShardWriter writer(directory_, identity_, {}, targets_);
  const fs::path path = writer.path();
  writer.close();
  Database(path, {.mode = OpenMode::kReadWrite}).execute("PRAGMA user_version=99");
  try {
    ShardReader reader(path);
    FAIL() << "a newer version was read";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("version 99"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
  }
}

TEST_F(ShardTest, RefusesContentsThatBreakTheFormat) {
  const auto broken = [this](const std::string& sql) {
    ShardIdentity identity = identity_;
    identity.part = next_part_++;
    ShardWriter writer(directory_, identity, {}, targets_);
    writer.commit(commit_of(RecordKind::kDump, 0, std::vector{block_of(0, 0, 3)}));
    const fs::path path = writer.path();
    writer.close();
    Database(path, {.mode = OpenMode::kReadWrite}).execute(sql);
    EXPECT_THROW(
        {
          ShardReader reader(path);
          reader.read(reader.steps().at(0));
        },
        FormatError)
        << sql;
  };
  broken("UPDATE blocks SET data=x'00'");
  broken("UPDATE blocks SET metric_id=77");
  broken("UPDATE blocks SET list_id=77");
  broken("UPDATE target_lists SET target_ids=x'FFFFFFFF'");
  broken("UPDATE target_lists SET target_ids=x'0000'");
  broken("DELETE FROM targets WHERE target_id=0");
  broken("DELETE FROM blocks");
  broken("UPDATE metrics SET kind='other'");
}

}  // namespace
}  // namespace trendprobe
