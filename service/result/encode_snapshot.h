// A sequence's state as the bytes that another server reads.
#pragma once

#include <string>

#include "service/sequence/sequence_snapshot.h"

namespace sortition::service {

// A serialised sortition.v1.SequenceSnapshot; never empty. Thread-safe.
std::string EncodeSnapshot(const SequenceSnapshot& snapshot);

}  // namespace sortition::service
