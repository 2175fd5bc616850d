// Random texts, by a service and in this process at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "sortition/client.h"

namespace sortition {

// Writes some texts side by side, which are a function of `seed`: random options, rows, masks, scores and drafts. Calls
// `differs` for each answer of the client that is not that of a sequence in this process. A refusal has to be the same,
// too. Returns the number of rows. An error if the client has none.
absl::StatusOr<uint64_t> CompareTexts(uint64_t seed, client::Client* client,
                                      const std::function<void(const std::string& difference)>& differs);

}  // namespace sortition
