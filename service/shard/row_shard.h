// Messages that bring vocabulary shards of rows, as the table knows them where shards meet. Each row of a message is
// answered once: when its other shards have come, or when it is known that they will not come.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "service/refusal.h"
#include "service/shard/kept_answers.h"
#include "service/wire/step_answers.h"
#include "service/wire/step_request.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// A message whose tensor is a shard. Thread-safe. Implemented by the stream.
class ShardMessage {
 public:
  virtual ~ShardMessage() = default;

  virtual const v1::Step& step() const = 0;
  virtual const StepShape& shape() const = 0;  // with a shard
  virtual uint64_t stream() const = 0;         // the stream's id, unique in the process

  // Answers rows, numbered as in this message, that will not run. Shard 0 also releases its rows' sequences.
  virtual void Answer(StepAnswers answers) = 0;
  // Gives up a row without an answer, since the stream has ended.
  virtual void Drop(uint32_t row) = 0;
  // Counts the memory of an answer that the message will get, until the last of its answers has left.
  virtual void Charge(uint64_t answer_bytes) = 0;

  const ShardShape& shard() const { return *shape().shard; }
  const v1::StepRow& row(uint32_t index) const { return step().rows(static_cast<int>(index)); }
  // Returns the row of the message's tensor that is the first one of row `index`.
  uint64_t FirstTensorRow(uint32_t index) const {
    return row(index).has_tensor_row() ? row(index).tensor_row() : shape().first_rows[index];
  }
};

// The shard of one row that a message brings, with what a comparison with others looks at.
struct RowShard {
  RowShard(std::shared_ptr<ShardMessage> of, uint32_t row_index);

  std::shared_ptr<ShardMessage> message;
  uint32_t row;  // of the message
  uint32_t index;
  uint32_t first_token, end_token;
  // The set of optional fields that are there, a bit each. Shards of a row with the same set, none of which contradicts
  // another, agree in all fields that are compared.
  uint32_t fields;
  uint64_t ask;     // HashAsk
  uint64_t sparse;  // a hash of the drafts' sparse probabilities

  const v1::StepRow& asked() const { return message->row(row); }
  bool is_first() const { return index == 0; }
};

// An answer that exists, for a shard that waits for it.
struct OwedAnswer {
  OwedAnswer(RowShard to, SharedAnswer held) : shard(std::move(to)), answer(std::move(held)) {
    shard.message->Charge(answer->bytes);
  }

  RowShard shard;
  SharedAnswer answer;
};

// Gathers answers, so that each message gets its rows' answers together. Not thread-safe.
class ShardAnswers {
 public:
  // Adds a copy of the answer, numbered for its shard. Sends all that is gathered once it is long.
  void Add(const OwedAnswer& owed);
  void Refuse(const RowShard& shard, const Refusal& refusal);
  void Send();

 private:
  StepAnswers& Of(const RowShard& shard);

  std::vector<std::pair<std::shared_ptr<ShardMessage>, StepAnswers>> messages_;
  absl::flat_hash_map<const ShardMessage*, size_t> places_;  // in messages_
  uint64_t bytes_ = 0;                                       // of owed answers
};

}  // namespace sortition::service
