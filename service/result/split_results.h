// Answers in messages that every client takes.
#pragma once

#include <cstdint>
#include <vector>

#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// gRPC's clients take messages of 4 MiB unless told otherwise.
inline constexpr uint64_t kAnswerBytes = 1u << 20;

// The same rows in their order, in messages of at most kAnswerBytes, or of one row. Costs nothing where they fit one.
std::vector<v1::StepResults> SplitResults(v1::StepResults results);

// Returns the number of rows whose results end in this message.
uint32_t AnsweredRows(const v1::StepResults& results);

// Returns the number of tokens drawn or accepted in the results that end in this message.
uint32_t TokensDrawn(const v1::StepResults& results);

// True if another part of the row's result follows.
bool Continues(const v1::RowResult& row);

}  // namespace sortition::service
