// What a sequence's history hash starts from.
#include "client/cpp/sequence_record.h"

#include "kernels/law/version.h"
#include "service/request/history_options.h"
#include "service/sequence/history_hash.h"

namespace sortition::client {

uint64_t SequenceRecord::Digest(uint64_t seed_in_force) const {
  const v1::SamplingParameters& parameters = options.parameters;
  service::HistoryIdentity identity;
  identity.law_version = law::kLawVersion;
  identity.seed = seed_in_force;
  identity.choice_index = options.choice_index;
  identity.vocabulary = options.vocabulary_size;
  identity.live_vocabulary = options.live_vocabulary_size.value_or(options.vocabulary_size);
  if (parameters.has_repetition_penalty()) identity.repetition_penalty = parameters.repetition_penalty();
  // Adding 0 makes -0 the 0 that it means.
  identity.frequency_penalty = parameters.frequency_penalty() + 0.0f;
  identity.presence_penalty = parameters.presence_penalty() + 0.0f;
  identity.options = service::CompileHistoryOptions(parameters).Words();
  return service::HistoryDigest(identity);
}

}  // namespace sortition::client
