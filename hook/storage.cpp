#include "hook/storage.h"

#include <sys/vfs.h>

#include <array>
#include <string_view>
#include <system_error>

namespace trendprobe {

std::string network_file_system(std::uint64_t type) {
  struct Kind {
    std::uint32_t type;
    std::string_view name;
  };
  static constexpr std::array<Kind, 14> kKinds = {{
      {0x6969, "NFS"},
      {0x0BD00BD0, "Lustre"},
      {0x47504653, "GPFS"},
      {0x19830326, "BeeGFS"},
      {0x00C36400, "CephFS"},
      {0x517B, "SMB"},
      {0xFF534D42, "CIFS"},
      {0xFE534D42, "SMB"},
      {0x01021997, "9P"},
      {0x5346414F, "AFS"},
      {0x73757245, "Coda"},
      {0x7461636F, "OCFS2"},
      {0x01161970, "GFS2"},
      {0xAAD7AAEA, "PanFS"},
  }};
  for (const Kind& kind : kKinds) {
    if (kind.type == (type & 0xFFFFFFFFU)) return std::string(kind.name);
  }
  return {};
}

StorageFacts storage_of(const std::filesystem::path& directory) {
  StorageFacts facts;
  std::error_code ignored;
  std::filesystem::path place = std::filesystem::absolute(directory, ignored);
  struct statfs found = {};
  while (::statfs(place.c_str(), &found) != 0) {
    if (!place.has_parent_path() || place == place.parent_path()) return facts;
    place = place.parent_path();
  }
  facts.network_file_system = network_file_system(static_cast<std::uint64_t>(found.f_type));
  // Some network and pseudo file systems don't say how large they are.
  if (found.f_blocks > 0) {
    facts.free_bytes =
        static_cast<std::uint64_t>(found.f_bavail) * static_cast<std::uint64_t>(found.f_bsize);
  }
  return facts;
}

}  // namespace trendprobe
