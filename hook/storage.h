// What can be known of the storage that shards are written to, before the first of them is made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trendprobe {

struct StorageFacts {
  /// Name of the network file system, such as "NFS"; empty for any other.
  std::string network_file_system;
  /// Bytes that this user may still write; the largest number where it is not known.
  std::uint64_t free_bytes = UINT64_MAX;
};

/// Of the directory or, where that is still to be made, of the nearest one above it. Throws
/// std::bad_alloc.
StorageFacts storage_of(const std::filesystem::path& directory);

/// The name by which a user knows a network file system, from statfs()'s f_type; empty for any
/// other. Magic numbers: linux/magic.h, and of those outside the kernel the file systems' sources.
std::string network_file_system(std::uint64_t type);

}  // namespace trendprobe
