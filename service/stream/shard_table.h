// Steps whose rows come in slices of the vocabulary, each over a stream of its own, until all slices are there.
//
// An assembly is named by (namespace, worker session, batch id). Its slices come in any order. The step is the one that
// slice 0 brings: its stream has opened the sequences, and its masks and limits hold. The others bring logits, and name
// the same rows. Every slice's stream gets the answers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/refusal.h"
#include "service/request/step_request.h"
#include "service/stream/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

class StepInFlight;

// A stream that has sent a slice. Thread-safe; outlives its slices.
class ShardOwner {
 public:
  virtual ~ShardOwner() = default;
  // Answers of the whole step, for a stream that sent a slice other than 0. `bytes` of its message; `last` as for
  // StepAnswers.
  virtual void AnswerShard(v1::StepResults results, uint64_t bytes, bool last) = 0;
  // The step will not be computed.
  virtual void RefuseShard(uint64_t batch_id, const Refusal& refusal, uint32_t rows, uint64_t bytes) = 0;
};

struct StepShard {
  StepShape shape;  // has a shard
  std::shared_ptr<const Frame> frame;
  std::shared_ptr<ShardOwner> owner;
  std::shared_ptr<StepInFlight> step;  // of slice 0 only: its rows, without logits

  uint32_t first_token() const { return shape.shard->first_token; }
  uint64_t batch_id() const { return frame->message.step().batch_id(); }
  uint32_t rows() const { return static_cast<uint32_t>(frame->message.step().rows_size()); }
};

// Thread-safe. As many slices as their streams' windows allow.
class ShardTable {
 public:
  using Key = std::tuple<std::string, std::string, uint64_t>;  // namespace, worker session, batch id

  // Nothing while slices are missing; all of them, by their first token, once they are there. A slice that does not fit
  // those that came before it is refused and changes nothing. `deadline`: of the assembly, if this is its first slice.
  using Added = std::variant<std::monostate, std::vector<StepShard>, Refusal>;
  Added Add(const Key& key, StepShard shard, absl::Time deadline);

  // Refuses, with DEADLINE_PASSED naming the slices that are missing, what has waited until its deadline.
  void Expire(absl::Time now);

  // The stream has ended: its slices are dropped, and whoever waits for them waits on.
  void Withdraw(const ShardOwner* owner);

  size_t waiting() const;

 private:
  struct Assembly {
    absl::Time deadline;
    std::vector<StepShard> shards;  // by first token; not empty
  };

  mutable absl::Mutex mutex_;
  std::map<Key, Assembly> assemblies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service
