// Validation of a stream's messages other than steps, by the message and the limits alone.
#pragma once

#include <optional>
#include <variant>

#include "service/entropy.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/wire/frame.h"
#include "service/wire/open_request.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// All of these are thread-safe.

// Checks a message of any kind: its size, unknown fields, fields that are set twice, and payloads that nothing refers
// to. What concerns one row of a step is left to that row.
std::optional<Refusal> CheckFrame(const Frame& frame, const Limits& limits);
std::optional<Refusal> CheckHello(const v1::Hello& hello);
std::optional<Refusal> CheckClose(const v1::CloseSequence& close);

// Returns the child's request, which has no history: that is the parent's.
std::variant<OpenRequest, Refusal> ParseFork(const v1::ForkSequence& fork, const Limits& limits, Entropy* entropy);

// Refuses a message that is not the whole answer of the step that it names, or has more than kMaxAnswerBytes.
std::optional<Refusal> CheckBringAnswer(const v1::BringAnswer& bring);

// Refuses a mask that is not one row of a vocabulary in range.
std::optional<Refusal> CheckUploadMask(const v1::UploadMask& upload, const Limits& limits);

}  // namespace sortition::service
