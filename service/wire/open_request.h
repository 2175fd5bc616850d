// Validates and compiles OpenSequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "service/entropy.h"
#include "service/limits.h"
#include "service/receipt/record.h"
#include "service/refusal.h"
#include "service/sequence/sequence.h"
#include "service/text/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

struct TenantPolicy;

// A piece of a history that comes in one or several messages.
struct HistoryPiece {
  std::vector<uint32_t> tokens;  // this piece's
  uint32_t prompt_length = 0;    // prompt tokens of the whole history
  uint32_t offset = 0;           // index of the piece's first token in the whole history
  bool continues = false;        // more pieces follow
  uint32_t known_length = 0;     // length of the whole history; 0 until the last piece
};

struct OpenRequest {
  std::string request_id;
  uint64_t epoch = 0;
  std::string model;                         // may be empty
  std::shared_ptr<const SequenceSpec> spec;  // with a fresh seed if the message gave none
  std::optional<HistoryPiece> history;
  // Set if the sequence has receipts: their salt, fresh if the message gave none.
  std::optional<ReceiptSalt> receipt_salt;
  bool asks_receipts = false;
  // Set by the stream, for a tenant with a policy: the policy, and its effect.
  std::shared_ptr<const TenantPolicy> rules = nullptr;
  std::optional<v1::PolicyEffect> policy = {};
};

// Returns a random salt.
ReceiptSalt DrawSalt(Entropy* entropy);

// Checks the numbers of a spec that do not come from parameters: the law's version, the vocabulary and the choice
// index. `whole` and `own` stand before the fields that have them: the choice index is a row's own in a call of Sample.
// Both end with a dot, or are empty. Thread-safe.
std::optional<Refusal> CheckNumbers(const SequenceSpec& spec, const Limits& limits, const std::string& whole,
                                    const std::string& own);

// An open in plain values, without parameters and history. Refers to the caller's strings.
struct OpenAsk {
  absl::string_view request_id;
  absl::string_view model;  // may be empty
  uint32_t law_version = 0;
  uint32_t vocabulary = 0;
  std::optional<uint32_t> live_vocabulary;  // absent: all are live
  uint32_t choice_index = 0;
};

// Makes the spec of a sequence, without its seed. Refuses by field path below `path`. Thread-safe.
std::variant<std::shared_ptr<SequenceSpec>, Refusal> CompileSpec(const OpenAsk& ask,
                                                                 const v1::SamplingParameters& parameters,
                                                                 const Limits& limits, absl::string_view path);

// A history, or a piece of one, in plain values. Refers to the caller's tokens.
struct HistoryAsk {
  std::span<const uint32_t> tokens;
  uint32_t offset = 0;  // index of the first token in the whole history
  uint32_t prompt_length = 0;
  bool is_whole = true;
};

// Checks a history that comes under `spec`. Thread-safe.
std::optional<Refusal> CheckHistory(const HistoryAsk& ask, const SequenceSpec& spec, const Limits& limits,
                                    const std::string& path);

// Validates an open. Draws a missing seed from `entropy`. Refuses by field path below `path`, e.g. "open" or
// "fork.child". `message` has no unknown fields (strictness.h), and a policy has been applied to it (policy.h).
// Thread-safe.
std::variant<OpenRequest, Refusal> ParseOpen(const v1::OpenSequence& message, const Limits& limits,
                                             absl::string_view path, Entropy* entropy);

}  // namespace sortition::service
