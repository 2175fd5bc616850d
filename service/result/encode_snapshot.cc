// Snapshot to message.
#include "service/result/encode_snapshot.h"

#include "sortition/v1/sequence_snapshot.pb.h"

namespace sortition::service {

std::string EncodeSnapshot(const SequenceSnapshot& snapshot) {
  v1::SequenceSnapshot message;
  message.set_format(kSnapshotFormat);
  message.set_prompt_length(snapshot.prompt_length);
  message.set_history_hash(snapshot.history_hash);
  message.set_kept_from(snapshot.kept_from);
  message.set_chain_before(snapshot.hash_before);
  message.mutable_kept()->Add(snapshot.kept.begin(), snapshot.kept.end());
  message.mutable_tokens()->Add(snapshot.tokens.begin(), snapshot.tokens.end());
  message.mutable_in_history()->Add(snapshot.in_history.begin(), snapshot.in_history.end());
  message.mutable_in_output()->Add(snapshot.in_output.begin(), snapshot.in_output.end());
  return message.SerializeAsString();
}

}  // namespace sortition::service
