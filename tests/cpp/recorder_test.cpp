#include "hook/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/cpp/failing_vfs.h"
#include "tests/cpp/temporary_directory.h"
#include "writer/shard_reader.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// kind, training step, micro-step, metric, target → values
using Key = std::tuple<RecordKind, std::int64_t, std::int32_t, std::string, std::string>;
using Records = std::map<Key, std::vector<double>>;

std::vector<fs::path> shards_of(const fs::path& directory) {
  std::vector<fs::path> shards;
  if (!fs::exists(directory)) return shards;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".shard") shards.push_back(entry.path());
  }
  return shards;
}

Records records_of(const fs::path& shard) {
  ShardReader reader(shard);
  Records records;
  for (const ShardStep& step : reader.steps()) {
    for (const RecordBlock& block : reader.read(step)) {
      const Metric& metric = reader.metrics()[block.metric];
      const std::size_t width = metric.statistics.size();
      for (std::size_t i = 0; i < block.targets.size(); ++i) {
        const auto first = block.values.begin() + static_cast<std::ptrdiff_t>(i * width);
        records[{step.kind, block.training_step, block.micro_step, metric.name,
                 reader.targets()[block.targets[i]].name}] =
            std::vector(first, first + static_cast<std::ptrdiff_t>(width));
      }
    }
  }
  return records;
}

// The steps of a shard that say that something is missing, with how many records.
std::map<std::int64_t, std::uint64_t> incomplete_steps(const fs::path& shard) {
  const ShardReader reader(shard);
  std::map<std::int64_t, std::uint64_t> incomplete;
  for (const ShardStep& step : reader.steps()) {
    if (!step.complete) incomplete[step.training_step] += step.dropped;
  }
  return incomplete;
}

class RecorderTest : public testing::Test {
 protected:
  RecorderOptions options() const {
    RecorderOptions options;
    options.directory = directory_.path() / "trend";
    return options;
  }

  // One forward call each of `modules` modules; values follow from step and module.
  static DumpStep dump_step(Recorder& recorder, std::int64_t training_step, int modules,
                            const std::string& prefix = "Module.layer.") {
    DumpStep step;
    for (int i = 0; i < modules; ++i) {
      step.entries.push_back({recorder.intern(prefix + std::to_string(i) + ".Linear.forward.0"),
                              false, static_cast<std::uint32_t>(step.tensors.size()), 1});
      const double value = static_cast<double>(training_step) * 1000 + i;
      step.tensors.push_back({recorder.intern(".output.0"), true});
      step.values.insert(step.values.end(), {value, value + 1, -value, 0.5});
    }
    return step;
  }

  static MonitorBlock monitor_block(Recorder& recorder, std::int64_t training_step,
                                    const std::string& metric, int rows, int first = 0) {
    MonitorBlock block;
    block.training_step = training_step;
    block.metric = {RecordKind::kMonitor, metric, {"norm", "nans"}};
    for (int i = first; i < first + rows; ++i) {
      block.rows.push_back({recorder.intern("layer." + std::to_string(i) + ".weight"), 0, 0});
      block.values.push_back(static_cast<double>(training_step) * 1000 + i);
      block.values.push_back(0);
    }
    return block;
  }

  fs::path only_shard() const {
    const std::vector<fs::path> shards = shards_of(directory_.path() / "trend");
    EXPECT_EQ(shards.size(), 1U);
    return shards.empty() ? fs::path() : shards.front();
  }

  TemporaryDirectory directory_;
};

TEST_F(RecorderTest, StreamsDumpAndMonitorRecords) {
  Recorder recorder(options());
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_TRUE(recorder.submit(dump_step(recorder, step, 20), step, true));
    EXPECT_TRUE(recorder.submit(monitor_block(recorder, step, "grad_reduced", 10)));
    EXPECT_TRUE(recorder.submit(monitor_block(recorder, step, "exp_avg", 10)));
  }
  recorder.set_rank(3);
  recorder.set_info("framework", "pytorch");
  recorder.close();
  const Records records = records_of(only_shard());
  EXPECT_EQ(records.size(), 5U * 40);
  for (std::int64_t step = 0; step < 5; ++step) {
    for (int i = 0; i < 20; ++i) {
      const double value = static_cast<double>(step) * 1000 + i;
      EXPECT_EQ(records.at({RecordKind::kDump, step, 0, "forward",
                            "Module.layer." + std::to_string(i) + ".Linear.output.0"}),
                (std::vector{value, value + 1, -value, 0.5}));
    }
  }
  const ShardReader reader(only_shard());
  EXPECT_EQ(reader.info().rank, 3);
  EXPECT_EQ(reader.info().framework, "pytorch");
  EXPECT_EQ(reader.info().pid, ::getpid());
  EXPECT_TRUE(reader.info().closed);
  EXPECT_EQ(recorder.counts().committed_records, 200U);
  EXPECT_EQ(recorder.counts().lost_records, 0U);
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
}

TEST_F(RecorderTest, MakesNoFileBeforeThereIsData) {
  Recorder recorder(options());
  recorder.set_rank(1);
  recorder.flush();
  EXPECT_TRUE(recorder.shard().empty());
  recorder.close();
  EXPECT_FALSE(fs::exists(directory_.path() / "trend"));
}

TEST_F(RecorderTest, FlushReturnsOnceAllIsCommitted) {
  Recorder recorder(options());
  for (std::int64_t step = 0; step < 20; ++step) {
    recorder.submit(dump_step(recorder, step, 50), step, true);
    recorder.submit(monitor_block(recorder, step, "actv", 5));
  }
  recorder.flush();
  EXPECT_EQ(records_of(recorder.shard()).size(), 20U * 55);  // read while it is open
  recorder.flush();
}

// As autograd's threads and several forward passes in flight do.
TEST_F(RecorderTest, TakesRecordsFromManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kSteps = 50;
  {
    RecorderOptions small = options();
    small.queue_bytes = 64 << 10;  // so that they wait for room, too
    Recorder recorder(small);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&recorder, t] {
        for (std::int64_t step = 0; step < kSteps; ++step) {
          EXPECT_TRUE(recorder.submit(
              dump_step(recorder, step, 20, "Module." + std::to_string(t) + "."), step, true));
          EXPECT_TRUE(recorder.submit(monitor_block(recorder, step, "actv", 3, t * 100)));
          if (step % 10 == t) recorder.flush();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }  // the destructor closes
  EXPECT_EQ(records_of(only_shard()).size(), std::size_t{kThreads} * kSteps * 23);
  EXPECT_THAT(incomplete_steps(only_shard()), IsEmpty());
}

TEST_F(RecorderTest, AFullQueueMakesTheProducerWaitAndLosesNothing) {
  FailingVfs vfs("stuck-wait");
  RecorderOptions small = options();
  small.vfs = "stuck-wait";
  small.queue_bytes = 20'000;
  Recorder recorder(small);
  recorder.submit(dump_step(recorder, 0, 50), 0, true);
  recorder.flush();
  vfs.is_stuck = true;
  std::atomic<int> submitted = 0;
  std::thread producer([&] {
    for (std::int64_t step = 1; step < 30; ++step) {
      EXPECT_TRUE(recorder.submit(dump_step(recorder, step, 50), step, true));
      ++submitted;
    }
  });
  int seen = -1;  // it comes to a stop
  while (seen != submitted || seen == 0) {
    seen = submitted;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LT(seen, 29);
  vfs.is_stuck = false;
  vfs.is_stuck.notify_all();
  producer.join();
  recorder.close();
  EXPECT_EQ(records_of(only_shard()).size(), 30U * 50);
  EXPECT_THAT(incomplete_steps(only_shard()), IsEmpty());
}

TEST_F(RecorderTest, OnFullDropCountsAndNotesWhatItDrops) {
  FailingVfs vfs("stuck-drop");
  RecorderOptions small = options();
  small.vfs = "stuck-drop";
  small.queue_bytes = 20'000;
  small.when_full = WhenFull::kDrop;
  Recorder recorder(small);
  recorder.submit(dump_step(recorder, 0, 50), 0, true);
  recorder.flush();
  vfs.is_stuck = true;
  std::map<std::int64_t, std::uint64_t> dropped;
  for (std::int64_t step = 1; step < 30; ++step) {
    if (!recorder.submit(dump_step(recorder, step, 50), step, true)) dropped[step] = 50;
  }
  EXPECT_GT(dropped.size(), 5U);
  EXPECT_LT(dropped.size(), 29U);
  vfs.is_stuck = false;
  vfs.is_stuck.notify_all();
  recorder.close();
  EXPECT_EQ(incomplete_steps(only_shard()), dropped);
  EXPECT_EQ(records_of(only_shard()).size(), (30 - dropped.size()) * 50);
  EXPECT_EQ(recorder.counts().lost_records, dropped.size() * 50);
}

TEST_F(RecorderTest, AStepLargerThanTheQueuePasses) {
  RecorderOptions small = options();
  small.queue_bytes = 1;
  Recorder recorder(small);
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_TRUE(recorder.submit(dump_step(recorder, step, 100), step, true));
  }
  recorder.close();
  EXPECT_EQ(records_of(only_shard()).size(), 500U);
}

class BrokenStorage : public RecorderTest, public testing::WithParamInterface<int> {};

TEST_P(BrokenStorage, CostsTheStepsMeanwhileAndOneWarning) {
  FailingVfs vfs("broken");
  RecorderOptions broken = options();
  broken.vfs = "broken";
  Recorder recorder(broken);
  const auto record = [&](std::int64_t step) {
    EXPECT_TRUE(recorder.submit(dump_step(recorder, step, 10), step, true));
    recorder.submit(monitor_block(recorder, step, "actv", 5));
    recorder.flush();
  };
  record(0);
  vfs.write_result = GetParam();
  record(1);
  record(2);
  const std::string warning = recorder.take_warning();
  EXPECT_THAT(warning, HasSubstr(recorder.shard().string()));
  EXPECT_THAT(warning, HasSubstr("training goes on"));
  vfs.write_result = SQLITE_OK;
  record(3);
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
  recorder.close();
  std::set<std::int64_t> steps;
  std::uint64_t committed = 0;
  std::uint64_t lost = 0;
  for (const fs::path& shard : shards_of(broken.directory)) {
    for (const auto& [key, values] : records_of(shard)) steps.insert(std::get<1>(key));
    committed += records_of(shard).size();
    for (const auto& [step, records] : incomplete_steps(shard)) {
      EXPECT_TRUE(step == 1 || step == 2) << step;
      lost += records;
    }
  }
  EXPECT_EQ(steps, (std::set<std::int64_t>{0, 3}));
  EXPECT_EQ(committed, 30U);
  EXPECT_EQ(lost, 30U);
  EXPECT_EQ(recorder.counts().lost_records, 30U);
  EXPECT_THAT(ShardReader(only_shard()).info().last_error, HasSubstr(".shard"));
}

INSTANTIATE_TEST_SUITE_P(Failures, BrokenStorage,
                         testing::Values(SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR));

TEST_F(RecorderTest, AFileThatCantBeMadeIsTriedAgain) {
  FailingVfs vfs("no-open");
  vfs.open_result = SQLITE_CANTOPEN;
  RecorderOptions broken = options();
  broken.vfs = "no-open";
  Recorder recorder(broken);
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.flush();
  EXPECT_THAT(recorder.take_warning(), HasSubstr("training goes on"));
  vfs.open_result = SQLITE_OK;
  recorder.submit(dump_step(recorder, 1, 10), 1, true);
  recorder.close();
  EXPECT_EQ(records_of(only_shard()).size(), 10U);
  EXPECT_EQ(incomplete_steps(only_shard()), (std::map<std::int64_t, std::uint64_t>{{0, 10}}));
}

TEST_F(RecorderTest, ADurableStepIsSyncedAndAFailedSyncIsALostStep) {
  FailingVfs vfs("no-sync");
  RecorderOptions durable = options();
  durable.vfs = "no-sync";
  durable.durability = Durability::kStep;
  Recorder recorder(durable);
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.flush();
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
  vfs.sync_result = SQLITE_IOERR_FSYNC;
  recorder.submit(dump_step(recorder, 1, 10), 1, true);
  recorder.flush();
  EXPECT_THAT(recorder.take_warning(), HasSubstr("10 records of training step 1 are lost"));
}

// Every byte of every file that was written for a step has been synced once it is committed.
TEST_F(RecorderTest, DurabilityStepSyncsEveryCommitAndProcessNone) {
  for (const Durability durability : {Durability::kStep, Durability::kProcess}) {
    FailingVfs vfs("counting");
    RecorderOptions counted = options();
    counted.vfs = "counting";
    counted.durability = durability;
    Recorder recorder(counted);
    recorder.submit(dump_step(recorder, 0, 10), 0, true);
    recorder.flush();
    for (std::int64_t step = 1; step < 10; ++step) {
      const int before = vfs.syncs;
      recorder.submit(dump_step(recorder, step, 10), step, true);
      recorder.submit(monitor_block(recorder, step, "actv", 5));
      recorder.flush();
      if (durability == Durability::kStep) {
        EXPECT_GE(vfs.syncs, before + 2);  // one a commit
        EXPECT_EQ(vfs.unsynced_files, 0);
      } else {
        EXPECT_EQ(vfs.syncs, before);
        EXPECT_GT(vfs.unsynced_files, 0);
      }
    }
    recorder.close();
    EXPECT_EQ(vfs.unsynced_files, 0);
    EXPECT_THAT(recorder.take_warning(), IsEmpty());
  }
}

TEST_F(RecorderTest, AShardRollsOverToFurtherParts) {
  RecorderOptions small = options();
  small.rotate_bytes = 100'000;
  Recorder recorder(small);
  recorder.set_info("framework", "pytorch");
  for (std::int64_t step = 0; step < 60; ++step) {
    recorder.submit(dump_step(recorder, step, 100), step, true);
    recorder.submit(monitor_block(recorder, step, "actv", 50));
    recorder.flush();
    if (step == 30) recorder.set_rank(5);
  }
  recorder.close();
  const std::vector<fs::path> shards = shards_of(small.directory);
  EXPECT_GT(shards.size(), 3U);
  std::set<std::int32_t> parts;
  std::set<std::int64_t> starts;
  std::size_t records = 0;
  for (const fs::path& shard : shards) {
    // A commit more than the limit at most, and room for the tables.
    EXPECT_LT(fs::file_size(shard), 150'000U);
    EXPECT_FALSE(fs::exists(shard.string() + "-wal"));
    const ShardReader reader(shard);
    EXPECT_TRUE(reader.info().closed);
    EXPECT_EQ(reader.info().framework, "pytorch");
    starts.insert(reader.info().started_ns);
    parts.insert(reader.info().part);
    EXPECT_THAT(shard.string(),
                testing::EndsWith("-" + std::to_string(reader.info().part) + ".shard"));
    records += records_of(shard).size();
  }
  EXPECT_EQ(records, 60U * 150);
  EXPECT_EQ(starts.size(), 1U);
  EXPECT_EQ(*parts.begin(), 0);
  EXPECT_EQ(*parts.rbegin() + 1, static_cast<std::int32_t>(parts.size()));
  EXPECT_EQ(recorder.counts().lost_records, 0U);
}

// Its process has the same host name and number, in another container, and the same start.
TEST_F(RecorderTest, NeverWritesToAFileThatIsThere) {
  // Each recorder of a process starts a millisecond after the one before at least: so far ahead of
  // the clock, the next one's start is known.
  for (int i = 0; i < 30'000; ++i) const Recorder ahead(options());
  Recorder before(options());
  before.submit(dump_step(before, 0, 10), 0, true);
  before.close();
  const ShardInfo info = ShardReader(before.shard()).info();
  std::set<fs::path> taken;
  for (std::int32_t part = 0; part < 2; ++part) {
    const fs::path path =
        options().directory /
        ShardWriter::file_name({info.host, info.pid, info.started_ns + 1'000'000, part});
    std::ofstream(path) << "another's";
    taken.insert(path);
  }
  Recorder recorder(options());
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.close();
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
  EXPECT_EQ(recorder.counts().committed_records, 10U);
  EXPECT_THAT(recorder.shard().string(), testing::EndsWith("-2.shard"));
  EXPECT_EQ(records_of(recorder.shard()).size(), 10U);
  for (const fs::path& path : taken) EXPECT_EQ(fs::file_size(path), 9U);
}

TEST_F(RecorderTest, WarnsOnceOfLittleSpaceAndOfANetworkFileSystemBeforeItWrites) {
  RecorderOptions watched = options();
  watched.rotate_bytes = 1;  // a part a commit: it is said once all the same
  watched.look_at_storage = [](const fs::path&) -> StorageFacts {
    return {"Lustre", std::uint64_t{300} << 20};
  };
  Recorder recorder(watched);
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
  for (std::int64_t step = 0; step < 3; ++step) {
    recorder.submit(dump_step(recorder, step, 10), step, true);
  }
  recorder.flush();
  const std::string network = recorder.take_warning();
  EXPECT_THAT(network, HasSubstr(watched.directory.string()));
  EXPECT_THAT(network, HasSubstr("network file system (Lustre)"));
  const std::string space = recorder.take_warning();
  EXPECT_THAT(space, HasSubstr(watched.directory.string()));
  EXPECT_THAT(space, HasSubstr("300 MiB"));
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
  EXPECT_EQ(recorder.counts().lost_records, 0U);
}

TEST(StorageTest, IsLookedAtBeforeTheDirectoryIsMade) {
  const TemporaryDirectory directory;
  const StorageFacts here = storage_of(directory.path());
  const StorageFacts below = storage_of(directory.path() / "not" / "yet" / "made");
  EXPECT_EQ(here.network_file_system, below.network_file_system);
  const fs::space_info space = fs::space(directory.path());
  EXPECT_NEAR(static_cast<double>(here.free_bytes), static_cast<double>(space.available), 1e9);
  EXPECT_EQ(storage_of("/proc").free_bytes, UINT64_MAX);  // has no size
}

TEST(StorageTest, KnowsNetworkFileSystemsByName) {
  EXPECT_EQ(network_file_system(0x6969), "NFS");
  EXPECT_EQ(network_file_system(0x0BD00BD0), "Lustre");
  EXPECT_EQ(network_file_system(0x47504653), "GPFS");
  // As it comes from a signed 32-bit f_type.
  EXPECT_EQ(network_file_system(0xFFFFFFFFFF534D42), "CIFS");
  EXPECT_EQ(network_file_system(0xEF53), "");      // ext4
  EXPECT_EQ(network_file_system(0x01021994), "");  // tmpfs
  EXPECT_EQ(network_file_system(0x794C7630), "");  // overlay, as in a container
}

TEST_F(RecorderTest, TheFirstErrorIsKeptInTheShardOnceItCanBe) {
  FailingVfs vfs("twice");
  RecorderOptions broken = options();
  broken.vfs = "twice";
  Recorder recorder(broken);
  std::int64_t step = 0;
  const auto record = [&] {
    recorder.submit(dump_step(recorder, step, 10), step, true);
    ++step;
    recorder.flush();
  };
  record();
  EXPECT_THAT(ShardReader(recorder.shard()).info().last_error, IsEmpty());
  vfs.write_result = SQLITE_FULL;
  record();
  vfs.write_result = SQLITE_IOERR_WRITE;
  record();
  vfs.write_result = SQLITE_OK;
  record();
  const std::string kept = ShardReader(recorder.shard()).info().last_error;
  EXPECT_THAT(kept, HasSubstr(recorder.shard().string()));
  EXPECT_THAT(kept, HasSubstr("disk is full"));
  vfs.write_result = SQLITE_IOERR_WRITE;
  record();
  vfs.write_result = SQLITE_OK;
  record();
  recorder.close();
  EXPECT_EQ(ShardReader(recorder.shard()).info().last_error, kept);
}

TEST_F(RecorderTest, ADirectoryThatCantBeUsedCostsOneWarning) {
  std::ofstream(directory_ / "file") << "x";
  RecorderOptions wrong;
  wrong.directory = directory_.path() / "file" / "trend";
  Recorder recorder(wrong);
  for (std::int64_t step = 0; step < 3; ++step) {
    EXPECT_TRUE(recorder.submit(dump_step(recorder, step, 10), step, true));
  }
  recorder.flush();
  EXPECT_THAT(recorder.take_warning(), HasSubstr(wrong.directory.string()));
  EXPECT_THAT(recorder.take_warning(), IsEmpty());
  recorder.close();
  EXPECT_EQ(recorder.counts().lost_records, 30U);
}

TEST_F(RecorderTest, AStepThatEndedEarlyIsIncompleteWithoutLoss) {
  Recorder recorder(options());
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.submit(dump_step(recorder, 1, 4), 1, false);
  recorder.close();
  EXPECT_EQ(incomplete_steps(only_shard()), (std::map<std::int64_t, std::uint64_t>{{1, 0}}));
  EXPECT_EQ(records_of(only_shard()).size(), 14U);
}

TEST_F(RecorderTest, AfterCloseNothingHappens) {
  Recorder recorder(options());
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.close();
  recorder.close();
  EXPECT_FALSE(recorder.submit(dump_step(recorder, 1, 10), 1, true));
  EXPECT_FALSE(recorder.submit(monitor_block(recorder, 1, "actv", 5)));
  recorder.flush();
  recorder.set_rank(4);
  EXPECT_EQ(records_of(only_shard()).size(), 10U);
}

TEST_F(RecorderTest, ManyThreadsMayCloseWhileOthersSubmit) {
  for (int round = 0; round < 20; ++round) {
    Recorder recorder(options());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&recorder, t] {
        for (std::int64_t step = 0; step < 20; ++step) {
          recorder.submit(dump_step(recorder, step, 5, "Module." + std::to_string(t) + "."), step,
                          true);
        }
      });
      threads.emplace_back([&recorder] {
        recorder.flush();
        recorder.close();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(RecorderTest, SeveralRecordersOfOneProcessAndARestartHaveShardsOfTheirOwn) {
  for (int i = 0; i < 3; ++i) {
    Recorder first(options());
    Recorder second(options());
    first.submit(dump_step(first, 0, 10), 0, true);
    second.submit(dump_step(second, 1, 10), 1, true);
    first.flush();
    second.flush();
    EXPECT_NE(first.shard(), second.shard());
  }
  const std::vector<fs::path> shards = shards_of(options().directory);
  EXPECT_EQ(shards.size(), 6U);
  for (const fs::path& shard : shards) EXPECT_EQ(records_of(shard).size(), 10U);
}

TEST_F(RecorderTest, KeepsNamesOfAnyKind) {
  const std::vector<std::string> names = {std::string(4000, 'n'),
                                          "Übergabe.層.\U0001F600",
                                          "it's \"quoted\"; DROP TABLE targets",
                                          "with\nnewline\tand tab",
                                          " ",
                                          "percent%s"};
  Recorder recorder(options());
  MonitorBlock block;
  block.metric = {RecordKind::kMonitor, "actv", {"norm"}};
  for (const std::string& name : names) {
    block.rows.push_back({recorder.intern(name), 1, 2});
    block.values.push_back(7);
  }
  recorder.submit(std::move(block));
  recorder.close();
  const Records records = records_of(only_shard());
  for (const std::string& name : names) {
    EXPECT_TRUE(records.contains({RecordKind::kMonitor, 0, 2, "actv", name})) << name;
  }
}

TEST_F(RecorderTest, AForkedChildReturnsAtOnceAndWritesNothing) {
  Recorder recorder(options());
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.flush();
  std::atomic<bool> stop = false;
  std::thread busy([&] {  // holds the locks when the process is forked, now and then
    for (std::int64_t step = 1; !stop; ++step) {
      recorder.submit(dump_step(recorder, step % 50, 10), step % 50, true);
      recorder.intern(std::to_string(step));
    }
  });
  for (int i = 0; i < 50; ++i) {
    const ::pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);  // a deadlock kills the child
      bool written = !recorder.intern("Module.child.Linear.forward.0").empty();
      written = recorder.submit(dump_step(recorder, 77, 10, "Module.child."), 77, true) || written;
      written = recorder.submit(monitor_block(recorder, 77, "actv", 5)) || written;
      recorder.set_rank(9);
      recorder.set_info("level", "child");
      recorder.flush();
      recorder.close();
      written = !recorder.take_warning().empty() || recorder.counts().committed_steps != 0 ||
                !recorder.shard().empty() || written;
      ::_exit(written ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  busy.join();
  recorder.close();
  for (const auto& [key, values] : records_of(only_shard())) EXPECT_NE(std::get<1>(key), 77);
  EXPECT_EQ(ShardReader(only_shard()).info().rank, -1);
}

TEST_F(RecorderTest, ADestructorInAForkedChildReturns) {
  auto recorder = std::make_unique<Recorder>(options());
  recorder->submit(dump_step(*recorder, 0, 10), 0, true);
  recorder->flush();
  const ::pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    recorder.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  recorder->submit(dump_step(*recorder, 1, 10), 1, true);
  recorder->close();
  EXPECT_EQ(records_of(only_shard()).size(), 20U);
}

TEST_F(RecorderTest, WhatWasFlushedSurvivesAKill) {
  const ::pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Recorder recorder(options());
    for (std::int64_t step = 0; step < 10; ++step) {
      recorder.submit(dump_step(recorder, step, 30), step, true);
      recorder.submit(monitor_block(recorder, step, "actv", 5));
    }
    recorder.flush();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(records_of(only_shard()).size(), 350U);
  EXPECT_FALSE(ShardReader(only_shard()).info().closed);
}

TEST_F(RecorderTest, ASignalOfTheTrainingIsNotTakenByTheRecordersThread) {
  static std::atomic<std::thread::id> handled_by;
  Recorder recorder(options());
  recorder.submit(dump_step(recorder, 0, 10), 0, true);
  recorder.flush();
  const auto before = std::signal(SIGUSR1, [](int) { handled_by = std::this_thread::get_id(); });
  for (int i = 0; i < 100; ++i) {
    handled_by = std::thread::id();
    ::kill(::getpid(), SIGUSR1);
    EXPECT_EQ(handled_by.load(), std::this_thread::get_id());
  }
  std::signal(SIGUSR1, before);
}

}  // namespace
}  // namespace trendprobe
