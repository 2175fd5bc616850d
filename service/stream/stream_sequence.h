// A sequence as one stream knows it.
#pragma once

#include <memory>

#include "service/sequence/sequence.h"
#include "service/sequence/sequence_spec.h"
#include "service/sequence/sequence_table.h"

namespace sortition::service {

struct StreamSequence {
  std::shared_ptr<const SequenceSpec> spec;
  SequenceOwner owner;
  // Set if the sequence keeps state.
  std::shared_ptr<const SequenceKey> key;
  std::shared_ptr<Sequence> state;
};

}  // namespace sortition::service
