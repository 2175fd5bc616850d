// Splits results into messages of a size that every client accepts: gRPC clients take 4 MiB by default.
#pragma once

#include <cstdint>
#include <vector>

#include "service/limits.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns true if the rows fit one message: it has one row, or at most kMaxAnswerBytes.
bool IsOneMessage(const v1::StepResults& results);

// Returns the rows in the same order, in messages of one row or of at most kMaxAnswerBytes.
std::vector<v1::StepResults> SplitResults(v1::StepResults results);

// Returns the number of rows whose results end in this message.
uint32_t AnsweredRows(const v1::StepResults& results);

// Returns the number of tokens drawn or accepted in the results that end in this message.
uint32_t TokensDrawn(const v1::StepResults& results);

// Returns the phase of the last token of a result that ends in this message; 0 outside of phases, or without a token.
uint32_t LastPhase(const v1::RowResult& row);

// True if another part of the row's result follows.
bool Continues(const v1::RowResult& row);

}  // namespace sortition::service
