// Looks up policies, and settles receipts before a sequence exists.
#include "service/stream/opening.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"
#include "service/policy/policy_book.h"
#include "service/text/make_receipts.h"
#include "service/wire/phase_options.h"
#include "service/wire/receipt_words.h"

namespace sortition::service {

std::shared_ptr<const TenantPolicy> FindPolicy(const Engine& engine, const std::string& tenant) {
  return engine.policies() == nullptr ? nullptr : engine.policies()->Of(tenant);
}

std::optional<Refusal> TakePolicy(Engine* engine, const TenantPolicy* policy, absl::string_view path,
                                  v1::SamplingParameters* parameters, std::string* watermark_key_id,
                                  std::optional<v1::PolicyEffect>* effect) {
  v1::PolicyEffect done;
  auto refusal = ApplyPolicy(policy, path, parameters, watermark_key_id, &done);
  if (policy == nullptr) return refusal;
  if (refusal) {
    engine->observer().Count(Counter::kPolicyRefused, 1);
    return refusal;
  }
  if (done.has_applied() || done.removed_size() > 0) engine->observer().Count(Counter::kPolicyApplied, 1);
  *effect = std::move(done);
  return std::nullopt;
}

std::optional<Refusal> CheckMark(Engine* engine, const v1::SamplingParameters& parameters, absl::string_view path,
                                 const OpenRequest& request) {
  if (!request.policy || request.policy->watermark_key_id().empty()) return std::nullopt;
  auto refusal = WhyNoMark(parameters, *request.spec, absl::StrCat(path, ".parameters"));
  engine->observer().Count(refusal ? Counter::kPolicyRefused : Counter::kPolicyMarked, 1);
  return refusal;
}

std::optional<Refusal> PrepareReceipts(Engine* engine, absl::string_view path, OpenRequest* request) {
  ReceiptBook* const book = engine->receipts();
  if (request->receipt_salt && book == nullptr) {
    return Refusal{Reason::kNotImplemented, absl::StrCat(path, ".receipts"), "", "this server has no key for receipts"};
  }
  const bool is_required = request->policy && request->policy->receipts();
  if (book == nullptr || (!request->receipt_salt && !book->records_all() && !is_required)) return std::nullopt;
  if (!request->receipt_salt) {
    request->receipt_salt = DrawSalt(&engine->entropy());
    auto spec = std::make_shared<SequenceSpec>(*request->spec);
    spec->receipts = true;
    request->spec = std::move(spec);
  }
  return std::nullopt;
}

// A byte of a message becomes a word at most. Besides these words an opening has names and numbers, and few of the
// words are those of numbers that take more.
static_assert(kMaxFieldBytes * sizeof(uint32_t) + kMostIntegerBytes + (64 << 10) <= kMaxRecordBytes);

std::shared_ptr<ReceiptChain> BeginReceipts(Engine* engine, const v1::SamplingParameters& parameters,
                                            const OpenRequest& request) {
  const SequenceSpec& spec = *request.spec;
  ReceiptOpening opening;
  opening.law_version = spec.law_version;
  opening.vocabulary = spec.vocabulary;
  opening.live_vocabulary = spec.live_vocabulary;
  opening.choice_index = spec.choice_index;
  opening.has_watermark = spec.history.watermark_width != 0;
  opening.nonce = DrawSalt(&engine->entropy());
  opening.commitment = CommitmentOf(spec.seed, *request.receipt_salt);
  opening.request_id = request.request_id;
  opening.parameters = ReceiptWords(parameters);
  opening.integers = MakeIntegers(spec);
  return std::make_shared<ReceiptChain>(engine->receipts(), opening, request.asks_receipts);
}

}  // namespace sortition::service
