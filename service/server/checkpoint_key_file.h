// The key of sampler checkpoints, from its file.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "service/sequence/checkpoint.h"

namespace sortition::server {

// Nothing if `path` is empty. INVALID_ARGUMENT naming --checkpoint_key if the file cannot be read or is too short.
absl::StatusOr<std::optional<service::CheckpointKey>> ReadCheckpointKey(const std::string& path);

}  // namespace sortition::server
