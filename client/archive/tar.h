// Archives as bytes: a gzip of a POSIX tar (ustar) of regular files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace sortition::archive {

// Names, of at most 100 bytes, and contents, in the archive's order.
using TarFiles = std::vector<std::pair<std::string, std::string>>;

// Returns the archive. Its bytes depend on the files, and on the release of zlib.
std::string PackFiles(const TarFiles& files);

// Returns the files of an archive. The error begins with "cut", "damaged" or "too large" (docs/proof.md). Holds at most
// `most_bytes` of unpacked bytes.
absl::StatusOr<TarFiles> UnpackFiles(std::string_view archive, uint64_t most_bytes);

}  // namespace sortition::archive
