// Validation of messages that need nothing but themselves: of a stream's hello, and of answers that ranks bring.
#pragma once

#include <optional>

#include "service/limits.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Thread-safe, as all of these.
std::optional<Refusal> CheckHello(const v1::Hello& hello);

// Refuses what is not the whole answer of the step that it names, or has more than kAnswerBytes.
std::optional<Refusal> CheckBringAnswer(const v1::BringAnswer& bring);

// Refuses a mask that is not one row of a vocabulary in range.
std::optional<Refusal> CheckUploadMask(const v1::UploadMask& upload, const Limits& limits);

}  // namespace sortition::service
