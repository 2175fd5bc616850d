// A unary Sample call as messages of a stream: the same checks, limits and code serve both.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// The messages that serve a call, without the logits, which are the step's only payload.
struct SampleMessages {
  v1::StreamRequest hello;
  std::vector<v1::StreamRequest> opens;         // one for each row; its request_id is the row's index
  std::vector<std::optional<Refusal>> refused;  // rows that are refused at once; the step is sent without them
  v1::StreamRequest step;
};

// Translates a call whose deadline is `timeout` from now; InfiniteDuration: it has none. A refusal concerns the whole
// call. Thread-safe.
std::variant<SampleMessages, Refusal> TranslateSample(const v1::SampleRequest& request, absl::Duration timeout);

// Returns the name of the first option that looks at the history or keeps a state from token to token, as a field of
// SamplingParameters; empty if there is none. Thread-safe.
absl::string_view FindStatefulOption(const v1::SamplingParameters& parameters);

// Returns the path in a SampleRequest of the field that a stream calls `field` in the open or the step row of row
// `row`.
std::string SampleField(absl::string_view field, int row);

}  // namespace sortition::service
