#include "hook/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

namespace trendprobe {
namespace {

using std::chrono::milliseconds;

/// After this long without a submission, a training step's monitor records are taken as complete.
constexpr milliseconds kMonitorIdle{200};
/// Less room than this when the recording starts is worth a warning.
constexpr std::uint64_t kLittleSpace = std::uint64_t{1} << 30;
/// How many names of shards are tried before it is believed that none can be made.
constexpr std::int32_t kMostTakenNames = 1000;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

/// The time, ns since 1970; each call of this process gets a later millisecond, so that the shards
/// of its recorders have names of their own.
std::int64_t distinct_start_ns() {
  constexpr std::int64_t kMillisecond = 1'000'000;
  static std::atomic<std::int64_t> last{0};
  const std::int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  std::int64_t before = last;
  std::int64_t start = 0;
  do {
    start = std::max(now, before + kMillisecond);
  } while (!last.compare_exchange_weak(before, start));
  return start;
}

/// One training step of dump data.
struct DumpSubmission {
  DumpStep step;
  std::int64_t training_step = 0;
  bool complete = true;
  ResolveDumpStep resolve;
};

using Submission = std::variant<DumpSubmission, MonitorBlock>;

std::size_t bytes_of(const Submission& submission) {
  if (const auto* dump = std::get_if<DumpSubmission>(&submission)) {
    return sizeof(Submission) + dump->step.entries.capacity() * sizeof(DumpEntry) +
           dump->step.tensors.capacity() * sizeof(DumpTensor) +
           dump->step.values.capacity() * sizeof(double) +
           dump->step.construct.capacity() * sizeof(ConstructNode);
  }
  const auto& monitor = std::get<MonitorBlock>(submission);
  return sizeof(Submission) + monitor.rows.capacity() * sizeof(MonitorBlock::Row) +
         monitor.values.capacity() * sizeof(double);
}

std::size_t records_of(const Submission& submission) {
  if (const auto* dump = std::get_if<DumpSubmission>(&submission)) return dump->step.tensors.size();
  return std::get<MonitorBlock>(submission).rows.size();
}

std::pair<RecordKind, std::int64_t> step_of(const Submission& submission) {
  if (const auto* dump = std::get_if<DumpSubmission>(&submission)) {
    return {RecordKind::kDump, dump->training_step};
  }
  return {RecordKind::kMonitor, std::get<MonitorBlock>(submission).training_step};
}

}  // namespace

/// The queue, and the thread that empties it into the shard.
class Recorder::Worker {
 public:
  explicit Worker(RecorderOptions options) : options_(std::move(options)) {
    identity_ = {host_name(), ::getpid(), distinct_start_ns(), 0};
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() = default;

  std::string_view intern(std::string_view name) {
    const std::lock_guard lock(names_mutex_);
    return *names_.emplace(name).first;
  }

  bool submit(Submission submission) {
    std::unique_lock lock(mutex_);
    if (closed_) return false;
    if (!thread_.joinable()) start_thread();
    const std::size_t bytes = bytes_of(submission);
    // A step larger than the whole queue may pass when nothing else waits.
    const auto has_room = [&] {
      return queue_.empty() || queued_bytes_ + bytes <= options_.queue_bytes || closed_;
    };
    if (!has_room()) {
      if (options_.when_full == WhenFull::kDrop) {
        give_up(step_of(submission), records_of(submission));
        return false;
      }
      room_.wait(lock, has_room);
      if (closed_) return false;
    }
    queued_bytes_ += bytes;
    queue_.push_back(std::move(submission));
    work_.notify_one();
    return true;
  }

  void set_info(std::string_view key, std::variant<std::string, std::int64_t> value) {
    const std::lock_guard lock(mutex_);
    info_.insert_or_assign(std::string(key), std::move(value));
  }

  void flush() {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable() || closed_) return;
    flush_requested_ = true;
    work_.notify_one();
    idle_.wait(lock, [this] { return !flush_requested_; });
  }

  void close() {
    std::unique_lock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    work_.notify_one();
    room_.notify_all();
    if (!thread_.joinable()) return;
    std::thread thread = std::move(thread_);
    lock.unlock();
    thread.join();
  }

  std::string take_warning() {
    const std::lock_guard lock(mutex_);
    if (warnings_.empty()) return {};
    std::string first = std::move(warnings_.front());
    warnings_.pop_front();
    return first;
  }
  RecorderCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  std::filesystem::path shard() const {
    const std::lock_guard lock(mutex_);
    return shard_;
  }

 private:
  using Info = std::map<std::string, std::variant<std::string, std::int64_t>>;
  using Step = std::pair<RecordKind, std::int64_t>;

  /// Signals are the training's: the thread takes none.
  void start_thread() {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run() noexcept {
    while (true) {
      std::optional<Submission> submission;
      bool flush = false;
      bool stop = false;
      {
        std::unique_lock lock(mutex_);
        const auto has_work = [this] { return !queue_.empty() || flush_requested_ || closed_; };
        const bool woken = pending_.empty() ? (work_.wait(lock, has_work), true)
                                            : work_.wait_for(lock, kMonitorIdle, has_work);
        if (!queue_.empty()) {
          submission.emplace(std::move(queue_.front()));
          queue_.pop_front();
          queued_bytes_ -= std::min(queued_bytes_, bytes_of(*submission));
          room_.notify_all();
        } else {
          flush = flush_requested_ || !woken || closed_;
          stop = closed_;
        }
      }
      if (submission) write(*submission);
      if (flush) {
        commit_monitor();
        write_lost();
      }
      if (stop) {
        close_shard();
        break;
      }
      if (flush) {
        const std::lock_guard lock(mutex_);
        if (queue_.empty()) flush_requested_ = false;
        idle_.notify_all();
      }
    }
    const std::lock_guard lock(mutex_);
    flush_requested_ = false;
    idle_.notify_all();
  }

  void write(Submission& submission) noexcept {
    if (auto* monitor = std::get_if<MonitorBlock>(&submission)) {
      add_monitor(*monitor);
      return;
    }
    auto& dump = std::get<DumpSubmission>(submission);
    guarded({RecordKind::kDump, dump.training_step}, dump.step.tensors.size(), [&] {
      if (dump.resolve) std::exchange(dump.resolve, {})(dump.step);
      const NumberingOptions numbering;
      ShardCommit commit;
      commit.kind = RecordKind::kDump;
      commit.training_step = dump.training_step;
      const NumberedDumpStep numbered =
          number_dump_step(dump.step, dump.training_step, numbering, targets_);
      commit.micro_steps = numbered.micro_steps;
      commit.complete = dump.complete;
      commit.blocks = numbered.blocks;
      const std::vector<Metric> metrics = dump_metrics(dump.step.statistics);
      commit.metrics = metrics;
      this->commit(commit);
    });
  }

  void add_monitor(MonitorBlock& block) noexcept {
    if (!pending_.empty() && pending_.front().training_step != block.training_step) {
      commit_monitor();
    }
    guarded({RecordKind::kMonitor, block.training_step}, block.rows.size(), [&] {
      if (block.resolve) std::exchange(block.resolve, {})(block.values);
      const std::uint32_t index = intern_metric(monitor_metrics_, block.metric);
      const std::size_t width = block.metric.statistics.size();
      for (std::size_t i = 0; i < block.rows.size(); ++i) {
        const MonitorBlock::Row& row = block.rows[i];
        auto found = std::find_if(pending_.begin(), pending_.end(), [&](const RecordBlock& b) {
          return b.metric == index && b.micro_step == row.micro_step;
        });
        if (found == pending_.end()) {
          found = pending_.emplace(pending_.end());
          found->training_step = block.training_step;
          found->micro_step = row.micro_step;
          found->metric = index;
        }
        found->targets.push_back(targets_.intern(row.name, row.vpp_stage, row.call));
        const auto first = block.values.begin() + static_cast<std::ptrdiff_t>(i * width);
        found->values.insert(found->values.end(), first,
                             first + static_cast<std::ptrdiff_t>(width));
      }
    });
  }

  void commit_monitor() noexcept {
    if (pending_.empty()) return;
    std::size_t records = 0;
    for (const RecordBlock& block : pending_) records += block.targets.size();
    const std::int64_t step = pending_.front().training_step;
    guarded({RecordKind::kMonitor, step}, records, [&] {
      ShardCommit commit;
      commit.kind = RecordKind::kMonitor;
      commit.training_step = step;
      for (const RecordBlock& block : pending_) {
        commit.micro_steps = std::max(commit.micro_steps, block.micro_step + 1);
      }
      commit.blocks = pending_;
      commit.metrics = monitor_metrics_;
      this->commit(commit);
    });
    pending_.clear();
  }

  void commit(const ShardCommit& commit) {
    open_shard();
    write_info();
    writer_->commit(commit);
    std::uint64_t records = 0;
    for (const RecordBlock& block : commit.blocks) records += block.targets.size();
    {
      const std::lock_guard lock(mutex_);
      ++counts_.committed_steps;
      counts_.committed_records += records;
    }
    write_lost();
  }

  void open_shard() {
    if (writer_ && writer_->size_bytes() >= options_.rotate_bytes) close_shard();
    if (writer_) return;
    look_at_storage();
    ShardOptions options;
    options.durability = options_.durability;
    options.vfs = options_.vfs;
    while (!writer_) {
      // A file that could not be finished keeps its name; the next try makes another.
      identity_.part = next_part_++;
      try {
        writer_ = std::make_unique<ShardWriter>(options_.directory, identity_, options, targets_);
      } catch (const SqliteError& error) {
        // Another process of the same name and number, in a container of its own, started in the
        // same millisecond: the file is that one's.
        if (error.system_errno() != EEXIST || next_part_ >= kMostTakenNames) throw;
      }
    }
    info_written_.clear();
    shard_has_error_ = false;
    const std::lock_guard lock(mutex_);
    shard_ = writer_->path();
  }

  /// Warns of what may go wrong, once, before anything has.
  void look_at_storage() {
    if (std::exchange(has_looked_at_storage_, true)) return;
    const StorageFacts facts = options_.look_at_storage(options_.directory);
    const std::string directory = options_.directory.string();
    const std::lock_guard lock(mutex_);
    if (!facts.network_file_system.empty()) {
      warnings_.push_back(
          directory + " is on a network file system (" + facts.network_file_system +
          "): shards are written without locks, shared memory and memory mapping, so that it works "
          "there; another machine may see a step some seconds later, and a step is safe from a "
          "crash of this machine only with \"durability\": \"step\"");
    }
    if (facts.free_bytes < kLittleSpace) {
      warnings_.push_back(directory + " has only " + std::to_string(facts.free_bytes >> 20) +
                          " MiB of free space: on a full disk the training goes on, but records "
                          "are lost; make room, or set \"path\" to another disk");
    }
  }

  void write_info() {
    Info info;
    {
      const std::lock_guard lock(mutex_);
      info = info_;
    }
    if (!first_error_.empty() && !shard_has_error_) {
      writer_->set_info("last_error", first_error_);
      first_error_.clear();
      shard_has_error_ = true;
    }
    if (info == info_written_) return;
    for (const auto& [key, value] : info) {
      std::visit([&, &name = key](const auto& content) { writer_->set_info(name, content); },
                 value);
    }
    info_written_ = std::move(info);
  }

  /// Says in the shard which steps lack something; they are kept in mind until that succeeds.
  void write_lost() noexcept {
    std::map<Step, std::uint64_t> lost;
    {
      const std::lock_guard lock(mutex_);
      lost = lost_;
    }
    if (lost.empty() || !writer_) return;
    for (const auto& [step, records] : lost) {
      try {
        ShardCommit commit;
        commit.kind = step.first;
        commit.training_step = step.second;
        commit.dropped = records;
        commit.complete = false;
        writer_->commit(commit);
        const std::lock_guard lock(mutex_);
        lost_.erase(step);
      } catch (const std::exception&) {
        return;  // the storage is still broken
      }
    }
  }

  /// Runs what may fail; a failure costs the records of one step.
  template <typename Action>
  void guarded(const Step& step, std::size_t records, Action&& action) noexcept {
    try {
      action();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      give_up(step, records);
      try {
        const std::string text = error.what();
        // The first that went wrong is what is to be known; the rest often follows from it.
        if (first_error_.empty() && !shard_has_error_) first_error_ = text;
        if (!warned_) {
          warnings_.push_back(
              "recording failed: " + text +
              "; the training goes on, and recording is tried again at every step (" +
              std::to_string(records) + " records of training step " + std::to_string(step.second) +
              " are lost)");
          warned_ = true;
        }
      } catch (const std::exception&) {
        warned_ = true;  // not even memory for a message
      }
    }
  }

  /// Counts records as lost. The mutex is held.
  void give_up(const Step& step, std::size_t records) noexcept {
    counts_.lost_records += records;
    try {
      lost_[step] += records;
    } catch (const std::exception&) {
      // Counted, at least.
    }
  }

  void close_shard() noexcept {
    if (!writer_) return;
    try {
      write_info();
      writer_->close();
    } catch (const std::exception&) {
      // As after a crash: every committed step is in the file.
    }
    writer_.reset();
  }

  const RecorderOptions options_;
  ShardIdentity identity_;

  std::mutex names_mutex_;
  std::set<std::string, std::less<>> names_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable room_;
  std::condition_variable idle_;
  std::thread thread_;
  std::deque<Submission> queue_;
  std::size_t queued_bytes_ = 0;
  bool flush_requested_ = false;
  bool closed_ = false;
  bool warned_ = false;
  std::deque<std::string> warnings_;
  Info info_;
  std::map<Step, std::uint64_t> lost_;
  RecorderCounts counts_;
  std::filesystem::path shard_;

  // The thread's own.
  TargetTable targets_;
  std::unique_ptr<ShardWriter> writer_;
  std::int32_t next_part_ = 0;
  bool has_looked_at_storage_ = false;
  std::string first_error_;  // to be written to the shard once that is possible
  bool shard_has_error_ = false;
  Info info_written_;
  std::vector<Metric> monitor_metrics_;
  std::vector<RecordBlock> pending_;  // monitor records of one training step
};

Recorder::Recorder(RecorderOptions options)
    : worker_(std::make_unique<Worker>(std::move(options))), pid_(::getpid()) {}

Recorder::~Recorder() {
  if (is_ours()) {
    close();
  } else {
    // The thread is not in this process, and the file is its parent's: nothing may be touched.
    static_cast<void>(worker_.release());
  }
}

bool Recorder::is_ours() const noexcept { return ::getpid() == pid_; }

std::string_view Recorder::intern(std::string_view name) {
  // The lock may have been held when this process was forked: it would never be released here.
  return is_ours() ? worker_->intern(name) : std::string_view();
}

bool Recorder::submit(DumpStep step, std::int64_t training_step, bool complete,
                      ResolveDumpStep resolve) noexcept {
  if (!is_ours()) return false;
  try {
    return worker_->submit(
        DumpSubmission{std::move(step), training_step, complete, std::move(resolve)});
  } catch (const std::exception&) {
    return false;
  }
}

bool Recorder::submit(MonitorBlock block) noexcept {
  if (!is_ours()) return false;
  try {
    return worker_->submit(std::move(block));
  } catch (const std::exception&) {
    return false;
  }
}

void Recorder::set_rank(std::int32_t rank) noexcept {
  if (!is_ours()) return;
  try {
    worker_->set_info("rank", std::int64_t{rank});
  } catch (const std::exception&) {
    // The shard then has no rank; the merger finds one.
  }
}

void Recorder::set_info(std::string_view key, std::string_view value) noexcept {
  if (!is_ours()) return;
  try {
    worker_->set_info(key, std::string(value));
  } catch (const std::exception&) {
    // Only a remark.
  }
}

void Recorder::flush() noexcept {
  if (is_ours()) worker_->flush();
}

void Recorder::close() noexcept {
  if (is_ours()) worker_->close();
}

std::string Recorder::take_warning() noexcept {
  return is_ours() ? worker_->take_warning() : std::string();
}

RecorderCounts Recorder::counts() const noexcept {
  return is_ours() ? worker_->counts() : RecorderCounts{};
}

std::filesystem::path Recorder::shard() const noexcept {
  return is_ours() ? worker_->shard() : std::filesystem::path();
}

}  // namespace trendprobe
