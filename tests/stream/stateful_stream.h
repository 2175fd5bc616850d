// A sequence with state on a stream, and the steps that follow one another on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/session.h"

namespace sortition::service {

inline constexpr uint32_t kStatefulVocabulary = 64;

// A presence penalty that cannot change which token wins a peak, and a history of three tokens, two of them prompt.
inline v1::OpenSequence StatefulOpen(std::string_view request_id, uint64_t epoch) {
  v1::OpenSequence open = MakeOpen(request_id, epoch, kStatefulVocabulary);
  open.mutable_parameters()->set_presence_penalty(0.5f);
  for (const uint32_t token : {1u, 2u, 3u}) open.mutable_history()->add_tokens(token);
  open.mutable_history()->set_prompt_length(2);
  return open;
}

// The same, continued from the server's state.
inline v1::OpenSequence Reopened(v1::OpenSequence open, uint64_t epoch) {
  open.set_epoch(epoch);
  open.clear_history();
  return open;
}

// A row that draws `token`, at the end of the plain sequence's history.
inline v1::StepRow& AddPeak(StepBuilder* step, std::string_view request_id, uint64_t step_id,
                            const PlainSequence& plain, uint32_t token) {
  v1::StepRow& row = step->AddRow(request_id, step_id, plain.position(), F32Peak(kStatefulVocabulary, token));
  row.set_history_hash(plain.hash());
  return row;
}

inline v1::StreamRequest PeakStep(uint64_t batch_id, std::string_view request_id, uint64_t step_id,
                                  const PlainSequence& plain, uint32_t token) {
  StepBuilder step(batch_id, kStatefulVocabulary);
  AddPeak(&step, request_id, step_id, plain, token);
  return step.Build();
}

}  // namespace sortition::service
