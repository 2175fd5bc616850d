// Sequences: their options, forks and rewrites.
#include <algorithm>
#include <span>
#include <vector>

#include "client/c/objects.h"

namespace sortition::c {

absl::StatusOr<client::SequenceOptions> ReadSequenceOptions(const sortition_sequence_options* given) {
  constexpr size_t kLeast = SORTITION_C_SIZE_TO(sortition_sequence_options, vocabulary_size);
  const auto read = Read(given, kLeast, "options");
  if (!read.ok()) return read.status();
  client::SequenceOptions options;
  auto request_id = Text(read->request_id, "options.request_id");
  if (!request_id.ok()) return request_id.status();
  options.request_id = *std::move(request_id);
  auto model = Text(read->model, "options.model");
  if (!model.ok()) return model.status();
  options.model = *std::move(model);
  const auto prompt = Span(read->prompt, read->prompt_count, "options.prompt");
  if (!prompt.ok()) return prompt.status();
  options.prompt.assign(prompt->begin(), prompt->end());
  if (read->parameters != nullptr) {
    const auto parameters = AllParameters::All().Find(read->parameters, "options.parameters");
    if (!parameters.ok()) return parameters.status();
    options.parameters = **parameters;
  }
  options.vocabulary_size = read->vocabulary_size;
  if (read->live_vocabulary_size != 0) options.live_vocabulary_size = read->live_vocabulary_size;
  if (read->has_seed != 0) options.seed = read->seed;
  options.choice_index = read->choice_index;
  if (read->has_start_position != 0) options.start_position = read->start_position;
  options.turns = read->turns;
  auto receipts = ReadReceipts(read->receipts);
  if (!receipts.ok()) return receipts.status();
  options.receipts = *std::move(receipts);
  return options;
}

namespace {

absl::StatusOr<sortition_sequence*> Wrap(absl::StatusOr<std::unique_ptr<client::LocalSequence>> opened) {
  if (!opened.ok()) return opened.status();
  return AllSequences::All().Add(std::make_shared<Sequence>(*std::move(opened)));
}

absl::StatusOr<sortition_sequence*> Fork(const sortition_sequence* parent, const sortition_sequence_options* given,
                                         const uint32_t* position) {
  const auto found = AllSequences::All().Find(parent, "parent");
  if (!found.ok()) return found.status();
  auto options = ReadSequenceOptions(given);
  if (!options.ok()) return options.status();
  const std::optional<uint32_t> at = position != nullptr ? std::optional(*position) : std::nullopt;
  const Sequence& from = **found;
  if (from.remote() == nullptr) {
    return Wrap(from.WithLocal([&](client::LocalSequence& self) { return self.Fork(*std::move(options), at); }));
  }
  const std::shared_ptr<client::Client> owner = from.owner();
  if (owner == nullptr) return absl::FailedPreconditionError("parent: its client is closed");
  auto child = owner->Fork(*from.remote(), *std::move(options), at);
  if (!child.ok()) return child.status();
  return AllSequences::All().Add(std::make_shared<Sequence>(*std::move(child), owner));
}

// Runs `use` on the sequence that the handle stands for.
template <typename Use>
sortition_code OnSequence(const sortition_sequence* sequence, sortition_error** error, const Use& use) noexcept {
  return Call(error, [&]() -> absl::Status {
    const auto found = AllSequences::All().Find(sequence, "sequence");
    if (!found.ok()) return found.status();
    return (*found)->With(use);
  });
}

uint32_t TurnsOf(const client::Sequence& sequence) { return sequence.turns(); }
uint32_t TurnsOf(const client::LocalSequence&) { return 0; }

}  // namespace
}  // namespace sortition::c

extern "C" {

using sortition::c::AllSequences;
using sortition::c::Call;
using sortition::c::OnSequence;

sortition_code sortition_local_open(const sortition_sequence_options* options, sortition_sequence** sequence,
                                    sortition_error** error) {
  return sortition::c::Make(sequence, "sequence", error, [&]() -> absl::StatusOr<sortition_sequence*> {
    const auto read = sortition::c::ReadSequenceOptions(options);
    if (!read.ok()) return read.status();
    return sortition::c::Wrap(sortition::client::LocalSequence::Open(*read));
  });
}

sortition_code sortition_sequence_fork(const sortition_sequence* parent, const sortition_sequence_options* options,
                                       const uint32_t* position, sortition_sequence** child, sortition_error** error) {
  return sortition::c::Make(child, "child", error, [&] { return sortition::c::Fork(parent, options, position); });
}

sortition_code sortition_sequence_clone(const sortition_sequence* sequence, sortition_sequence** clone,
                                        sortition_error** error) {
  return sortition::c::Make(clone, "clone", error, [&]() -> absl::StatusOr<sortition_sequence*> {
    const auto found = AllSequences::All().Find(sequence, "sequence");
    if (!found.ok()) return found.status();
    if ((*found)->remote() != nullptr) {
      return absl::FailedPreconditionError("sequence: a client's sequence has no copy; sortition_sequence_fork");
    }
    return sortition::c::Wrap((*found)->WithLocal([](sortition::client::LocalSequence& self) { return self.Clone(); }));
  });
}

sortition_code sortition_sequence_append(sortition_sequence* sequence, const uint32_t* tokens, size_t count,
                                         sortition_error** error) {
  return OnSequence(sequence, error, [&](auto& self) -> absl::Status {
    const auto list = sortition::c::Span(tokens, count, "tokens");
    return list.ok() ? self.Append(*list) : list.status();
  });
}

sortition_code sortition_sequence_truncate(sortition_sequence* sequence, uint32_t position, sortition_error** error) {
  return OnSequence(sequence, error, [&](auto& self) { return self.Truncate(position); });
}

sortition_code sortition_sequence_replace_last(sortition_sequence* sequence, uint32_t token, sortition_error** error) {
  return OnSequence(sequence, error, [&](auto& self) { return self.ReplaceLast(token); });
}

sortition_code sortition_sequence_get_info(const sortition_sequence* sequence, sortition_sequence_info* info,
                                           sortition_error** error) {
  return OnSequence(sequence, error, [&](auto& self) -> absl::Status {
    auto filled = sortition::c::Read(info, SORTITION_C_SIZE_TO(sortition_sequence_info, seed), "info");
    if (!filled.ok()) return filled.status();
    filled->seed = self.seed();
    filled->vocabulary_size = self.vocabulary_size();
    filled->position = self.position();
    filled->stateful = self.stateful() ? 1 : 0;
    filled->turns = sortition::c::TurnsOf(self);
    sortition::c::Fill(*filled, info);
    return absl::OkStatus();
  });
}

sortition_code sortition_sequence_get_tokens(const sortition_sequence* sequence, uint32_t* tokens, size_t capacity,
                                             size_t* count, sortition_error** error) {
  return OnSequence(sequence, error, [&](auto& self) -> absl::Status {
    if (count == nullptr) return sortition::c::Missing("count");
    if (const auto room = sortition::c::Span(tokens, capacity, "tokens"); !room.ok()) return room.status();
    const std::vector<uint32_t>& all = self.tokens();
    std::copy_n(all.begin(), std::min(capacity, all.size()), tokens);
    *count = all.size();
    return absl::OkStatus();
  });
}

sortition_code sortition_sequence_close(sortition_sequence* sequence, sortition_error** error) {
  return Call(error, [&] { return AllSequences::All().Remove(sequence, "sequence").status(); });
}

}  // extern "C"
