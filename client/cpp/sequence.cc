// Reads and rewrites a sequence's record on behalf of its handle.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/client_core.h"
#include "kernels/law/version.h"
#include "service/text/history/history_hash.h"
#include "service/wire/compile_history_options.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/phase_options.h"
#include "sortition/client.h"

namespace sortition::client {

Sequence::Sequence(std::shared_ptr<ClientCore> core, std::shared_ptr<SequenceRecord> record)
    : core_(std::move(core)), record_(std::move(record)) {}

Sequence::~Sequence() { core_->Close(record_); }

const std::string& Sequence::request_id() const { return record_->options.request_id; }

uint32_t Sequence::vocabulary_size() const { return record_->options.vocabulary_size; }

uint64_t Sequence::seed() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->seed;
}

v1::PolicyEffect Sequence::policy() const { return record_->policy; }

bool Sequence::stateful() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->stateful;
}

uint32_t Sequence::position() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.position();
}

std::vector<uint32_t> Sequence::tokens() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.tokens();
}

uint32_t Sequence::turns() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.turns();
}

Rewound Sequence::rewound() const {
  absl::MutexLock lock(&record_->mutex);
  return record_->history.rewinds().all();
}

void SequenceRecord::SetRowParameters(const SequenceOptions& from) {
  static const service::Limits limits;
  service::SequenceSpec spec;
  spec.live_vocabulary = from.live_vocabulary_size.value_or(from.vocabulary_size);
  row_parameters.reset();
  takes_first = false;
  if (service::CompileParameters(from.parameters, limits, "", &spec)) return;
  states_own_sum = service::StatesOneSum(spec);
  takes_first = spec.parameters.greedy && !spec.stateful() && spec.listed_edits.empty() && !spec.has_allowed_tokens &&
                !spec.has_logprobs();
  row_parameters = std::move(spec.parameters);
}

bool SequenceRecord::RowHabit::Refuse(bool lacks_sums) {
  // After n refusals in a row the next 2^n - 1 rows travel whole at once; n is at most this.
  constexpr uint32_t kMostRefusals = 6;
  if (lacks_sums && !std::exchange(states_sums, true)) return true;
  refusals = std::min(refusals + 1, kMostRefusals);
  whole_rows = (1u << refusals) - 1;
  return false;
}

void SequenceRecord::TakePolicy(const v1::PolicyEffect& effect) {
  policy = effect;
  if (!effect.has_applied() && effect.removed().empty()) return;
  SequenceOptions changed = options;
  for (const std::string& name : effect.removed()) {
    google::protobuf::Message* within = &changed.parameters;
    const std::vector<std::string> path = absl::StrSplit(name, '.');
    for (size_t i = 0; i < path.size(); ++i) {
      const auto* field = within->GetDescriptor()->FindFieldByName(path[i]);
      if (field == nullptr) break;  // a later server's
      if (i + 1 == path.size()) {
        within->GetReflection()->ClearField(within, field);
      } else if (!field->is_repeated() && field->message_type() != nullptr) {
        within = within->GetReflection()->MutableMessage(within, field);
      } else {
        break;
      }
    }
  }
  changed.parameters.MergeFrom(effect.applied());
  SetRowParameters(changed);
  changed_options_ = std::make_unique<const SequenceOptions>(std::move(changed));
}

absl::Status SequenceRecord::CheckToken(uint32_t token) const {
  const uint32_t live = live_vocabulary();
  if (token < live) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("token ", token, " is outside the live vocabulary (< ", live, ")"));
}

absl::Status SequenceRecord::CheckNoStep() const {
  if (!in_flight) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a step of ", options.request_id, " is in flight"));
}

absl::StatusOr<History> SequenceRecord::ForkHistory(std::optional<uint32_t> position) {
  absl::MutexLock lock(&mutex);
  if (absl::Status status = CheckNoStep(); !status.ok()) return status;
  const uint32_t end = history.position();
  const uint32_t at = position.value_or(end);
  if (at > end) {
    return absl::OutOfRangeError(absl::StrCat("Fork: position ", at, " is beyond the end (<= ", end, ")"));
  }
  return History::MakeFork(history, at);
}

absl::Status Sequence::ReplaceLast(uint32_t token) {
  if (absl::Status status = record_->CheckToken(token); !status.ok()) return status;
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = record_->CheckNoStep(); !status.ok()) return status;
  return record_->history.ReplaceLast(token);
}

absl::Status Sequence::Append(std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) {
    if (absl::Status status = record_->CheckToken(token); !status.ok()) return status;
  }
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = record_->CheckNoStep(); !status.ok()) return status;
  record_->history.Append(tokens);
  return absl::OkStatus();
}

absl::Status Sequence::Truncate(uint32_t position) {
  absl::MutexLock lock(&record_->mutex);
  if (absl::Status status = record_->CheckNoStep(); !status.ok()) return status;
  return record_->history.Truncate(position);
}

uint64_t SequenceRecord::Digest(uint64_t seed_in_force) const {
  const v1::SamplingParameters& parameters = in_force().parameters;
  service::HistoryIdentity identity;
  identity.law_version = law::kLawVersion;
  identity.seed = seed_in_force;
  identity.choice_index = options.choice_index;
  identity.vocabulary = options.vocabulary_size;
  identity.live_vocabulary = options.live_vocabulary_size.value_or(options.vocabulary_size);
  if (parameters.has_repetition_penalty()) identity.repetition_penalty = parameters.repetition_penalty();
  // Adding 0 turns -0 into 0, which means the same.
  identity.frequency_penalty = parameters.frequency_penalty() + 0.0f;
  identity.presence_penalty = parameters.presence_penalty() + 0.0f;
  identity.options = service::CompileHistoryOptions(parameters).Words();
  return service::HistoryDigest(identity);
}

}  // namespace sortition::client
