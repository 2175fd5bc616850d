// Descriptors and their inodes.
#include "service/server/connection_count.h"

#include <sys/stat.h>

#include <optional>

#include "kernels/check.h"

namespace sortition::server {
namespace {

std::optional<ino_t> InodeOf(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return std::nullopt;
  return status.st_ino;
}

}  // namespace

bool ConnectionCount::Admit(int socket) {
  if (most_ == 0) return true;
  open_.erase(socket);  // whoever had the number has closed it
  if (open_.size() >= most_) {
    absl::erase_if(open_, [](const auto& entry) { return InodeOf(entry.first) != entry.second; });
  }
  if (open_.size() >= most_) return false;
  const std::optional<ino_t> inode = InodeOf(socket);
  SORTITION_CHECK(inode.has_value());
  open_.emplace(socket, *inode);
  return true;
}

}  // namespace sortition::server
