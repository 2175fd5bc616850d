// The parts of the self-test that prove to others what this machine answers (docs/proof.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sortition {

// Runs what the flags --prove, --compare and --against ask for. Returns the exit status; nothing if they ask for
// nothing. `files`: arguments that are no flags.
std::optional<int> RunArchives(const std::vector<std::string>& files);

}  // namespace sortition
