// The interface between the client's protocol and sampling in this process: sequences and rows as plain values, without
// messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/cpp/sequence_record.h"
#include "client/cpp/transport/wire_errors.h"
#include "sortition/batch.h"

namespace sortition::client {

// A sequence as the sampler or server that has opened it describes it.
struct LocalOpened {
  uint64_t seed = 0;
  bool stateful = false;
  uint64_t history_hash = 0;     // 0 if it is not stateful
  uint64_t last_step_id = 0;     // 0: it has answered no step
  bool by_service = false;       // a server has opened it, not this process
  v1::PolicyEffect policy = {};  // the server's operator's; empty without one
};

// A sequence to be opened.
struct LocalOpen {
  std::shared_ptr<const SequenceRecord> record;  // names it, and has its options
  uint64_t epoch = 0;                            // names this open in its answer
  std::optional<uint64_t> seed;
  uint32_t position = 0;
  // The text up to `position`: its tokens, or a sequence that begins with them.
  std::vector<uint32_t> tokens;
  uint32_t prompt_length = 0;
  std::shared_ptr<const SequenceRecord> parent = nullptr;
  std::string checkpoint;  // the last result's; empty: the samplers begin with their first state
};

// A row to step, of an open sequence.
struct LocalRow {
  std::shared_ptr<const SequenceRecord> record;
  Row row;
  uint32_t position = 0;
  // The text of a stateful sequence: the first `shared` tokens that the sampler has, then these.
  uint32_t shared = 0;
  std::vector<uint32_t> appended;
  uint64_t history_hash = 0;
};

struct LocalStep {
  uint64_t batch_id = 0;
  v1::DType dtype = v1::DTYPE_F32;
  v1::DType draft_dtype = v1::DTYPE_F32;
  uint32_t vocabulary_size = 0;  // elements of a row
  int32_t priority = 0;
  std::string traceparent;
  std::vector<LocalRow> rows;
  std::shared_ptr<void> hold;  // kept while the rows' memory is read
};

struct LocalResult {
  uint32_t row = 0;  // index in the step
  RowResult result;
};

using LocalOpenResult = std::variant<LocalOpened, RowError>;

// Opens sequences and steps their rows. Answers are events of its transport (StreamEvents). Thread-safe. No method
// blocks, and none calls back: work starts with Transport::Flush or Poll.
class LocalSampler {
 public:
  virtual ~LocalSampler() = default;
  // Replaces the sequence of the same record, if there is one. OnLocalOpened follows.
  virtual void Open(LocalOpen open) = 0;
  // Each row is answered once, by OnLocalResults, unless the step is dropped first.
  virtual void Step(LocalStep step) = 0;
  // Forgets the rows of a step that have not begun.
  virtual void Drop(uint64_t batch_id) = 0;
  virtual void Close(const SequenceRecord* record) = 0;
};

}  // namespace sortition::client
