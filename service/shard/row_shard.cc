// Gathering of answers by their message.
#include "service/shard/row_shard.h"

#include <algorithm>

#include "service/result/encode.h"

namespace sortition::service {

void ShardAnswers::Add(const RowShard& shard, v1::RowResult result) {
  const auto is_its = [&](const auto& entry) { return entry.first == shard.message; };
  auto it = std::ranges::find_if(messages_, is_its);
  if (it == messages_.end()) it = messages_.emplace(messages_.end(), shard.message, v1::StepResults());
  result.set_row(shard.row);
  *it->second.add_rows() = std::move(result);
}

void ShardAnswers::Refuse(const RowShard& shard, const Refusal& refusal) {
  v1::RowResult result;
  result.set_step_id(shard.asked().step_id());
  EncodeError(refusal, result.mutable_error());
  Add(shard, std::move(result));
}

void ShardAnswers::Send() {
  for (auto& [message, results] : std::exchange(messages_, {})) message->Answer(std::move(results));
}

}  // namespace sortition::service
