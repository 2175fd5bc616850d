// A sequence as one stream knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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

  // As the stream has it under `request_id`; beside its state, but with the options, which the stream keeps when the
  // state is forgotten.
  uint64_t bytes(const std::string& request_id) const {
    uint64_t bytes = kEntryBytes + request_id.size() + spec->bytes();
    if (key) bytes += sizeof(*key) + key->tenant.size() + key->worker_session.size() + request_id.size();
    return bytes;
  }
  // Of the map that it is in, twice, since that grows by doubling.
  static constexpr uint64_t kEntryBytes = 256;
};

}  // namespace sortition::service
