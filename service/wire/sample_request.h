// Validates a call of Sample, with the functions of streams where its fields are theirs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "kernels/row.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/row_plan.h"
#include "service/text/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// All of these are thread-safe. Refusals name fields of a SampleRequest.

// Returns the path of row `index`.
std::string SampleRowField(int index);
// Returns the path of the field that is `step_field` in a stream's step with the same rows.
std::string ToSampleField(absl::string_view step_field);

// Returns the message of a call. Refuses bytes that are none, fields that are set twice, and more than kMaxFieldBytes
// beside the logits, kMaxMessageParts parts (wire_scan.h) or max_step_positions rows, before it parses them.
std::variant<std::shared_ptr<const v1::SampleRequest>, Refusal> DecodeSample(absl::string_view bytes,
                                                                             const Limits& limits = Limits());
// Returns the refusal of a call whose bytes are no message.
Refusal NoSampleRequest();

// Checks the parts that concern the whole call, except the logits.
std::optional<Refusal> CheckSample(const v1::SampleRequest& request, const Limits& limits);

// Refuses a row that has something unknown, or an option that needs a state.
std::optional<Refusal> CheckSampleRow(const v1::SampleRow& row, int index);

// Returns the name of the first option that looks at the history or keeps a state from token to token, as a field of
// SamplingParameters; empty if there is none.
absl::string_view FindStatefulOption(const v1::SamplingParameters& parameters);

// Compiles row `index`, whose `parameters` a policy may have changed. Draws a missing seed from `entropy`.
std::variant<std::shared_ptr<const SequenceSpec>, Refusal> CompileSampleRow(const v1::SampleRequest& request, int index,
                                                                            const v1::SamplingParameters& parameters,
                                                                            const Limits& limits, Entropy* entropy);

// Returns the logits' type, after checking that their bytes fit the rows.
std::variant<kernels::DType, Refusal> CheckSampleLogits(const v1::SampleRequest& request);

// Returns the plan of a draw.
std::variant<RowPlan, Refusal> PlanSampleRow(const v1::SampleRow& row, int index, const Limits& limits);

}  // namespace sortition::service
