// Messages that are valid but for a field.
#pragma once

#include "google/protobuf/message.h"
#include "tests/fuzz/fuzz_target.h"

namespace sortition::fuzz {

// Changes one field of the message, or of a message in it: sets it to any value, clears it, takes an element of it away
// or puts one in.
void Bend(Input* input, google::protobuf::Message* message);

}  // namespace sortition::fuzz
