// Reading of the key file.
#include "service/server/checkpoint_key_file.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::server {

absl::StatusOr<std::optional<service::CheckpointKey>> ReadCheckpointKey(const std::string& path) {
  if (path.empty()) return std::optional<service::CheckpointKey>();
  std::ifstream file(path, std::ios::binary);
  std::stringstream secret;
  secret << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--checkpoint_key: cannot read ", path));
  auto key = service::CheckpointKey::Of(secret.str());
  if (!key.ok()) return absl::InvalidArgumentError(absl::StrCat("--checkpoint_key: ", key.status().message()));
  return std::optional(*std::move(key));
}

}  // namespace sortition::server
