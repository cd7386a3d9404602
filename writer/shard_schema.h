// The shard format's constants and SQL: docs/format.md, "Shard".
#pragma once

#include <cstdint>

namespace trendprobe {

inline constexpr std::int64_t kShardApplicationId = 0x54505348;  // "TPSH"
inline constexpr std::int64_t kShardFormatVersion = 1;
inline constexpr const char* kShardExtension = ".shard";

inline constexpr const char* kShardSchema = R"sql(
CREATE TABLE shard_info(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE metrics(metric_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL,
                     statistics TEXT NOT NULL, UNIQUE(kind, name, statistics));
CREATE TABLE targets(target_id INTEGER PRIMARY KEY, name TEXT NOT NULL, vpp_stage INTEGER NOT NULL,
                     call INTEGER NOT NULL);
CREATE TABLE target_lists(list_id INTEGER PRIMARY KEY, target_ids BLOB NOT NULL);
CREATE TABLE blocks(block_id INTEGER PRIMARY KEY, step INTEGER NOT NULL, micro_step INTEGER NOT NULL,
                    metric_id INTEGER NOT NULL, list_id INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE steps(commit_id INTEGER PRIMARY KEY, kind TEXT NOT NULL, step INTEGER NOT NULL,
                   micro_steps INTEGER NOT NULL, records INTEGER NOT NULL, dropped INTEGER NOT NULL,
                   state TEXT NOT NULL, committed_ns INTEGER NOT NULL, first_block INTEGER NOT NULL,
                   block_count INTEGER NOT NULL);
)sql";

}  // namespace trendprobe
