// Parsing and checks of policies, and their effect on opens.
#include "service/policy/policy.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"
#include "kernels/law/watermark.h"
#include "service/checks.h"
#include "service/policy/parameter_limit.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/phase_options.h"

namespace sortition::service {
namespace {

constexpr int kMostPolicies = 10'000;
constexpr size_t kMostKeys = 1000;

absl::Status Wrong(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::Status CheckDefaults(const v1::SamplingParameters& defaults, const Limits& limits) {
  if (defaults.has_watermark()) return Wrong("defaults.watermark", "keys stand in the file that `watermark` names");
  if (defaults.phases_size() > 0) return Wrong("defaults.phases", "tags are the client's; they have no default");
  SequenceSpec spec;
  spec.live_vocabulary = limits.max_vocabulary;
  if (const auto refusal = CompileParameters(defaults, limits, "defaults", &spec)) {
    return Wrong(refusal->field, refusal->limit.empty() ? refusal->message
                                                        : absl::StrCat(refusal->message, "; must be ", refusal->limit));
  }
  return absl::OkStatus();
}

// Returns an error if the law has no such value of a limited field: with VIOLATION_APPLY no open would succeed.
absl::Status CheckBounds(const v1::ParameterLimit& limit, const Limits& limits) {
  for (const auto& [has, bound] : {std::pair(limit.has_min(), limit.min()), std::pair(limit.has_max(), limit.max())}) {
    if (!has) continue;
    v1::SamplingParameters parameters;
    SetField(limit.field(), bound, &parameters);
    SequenceSpec spec;
    spec.live_vocabulary = limits.max_vocabulary;
    const auto refusal = CompileParameters(parameters, limits, "", &spec);
    if (!refusal || refusal->reason != Reason::kOutOfRange || refusal->field != "." + limit.field()) continue;
    return Wrong(absl::StrCat("limits: ", limit.field()),
                 absl::StrCat(bound, " is no value of the field, which is ", refusal->limit));
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const v1::Policy& policy, const Limits& limits) {
  std::set<std::string> fields;
  for (const v1::ParameterLimit& limit : policy.limits()) {
    if (absl::Status status = CheckLimit(limit); !status.ok()) return status;
    if (absl::Status status = CheckBounds(limit, limits); !status.ok()) return status;
    const std::string where = absl::StrCat("limits: ", limit.field());
    if (!fields.insert(limit.field()).second) return Wrong(where, "is limited twice");
    const bool is_watermark = limit.field() == "watermark" || absl::StartsWith(limit.field(), "watermark.");
    if (is_watermark && policy.has_watermark()) return Wrong(where, "the policy itself sets the watermark");
    if (SetsBeyond(limit, policy.defaults())) return Wrong(where, "the policy's own default is beyond the limit");
  }
  v1::SamplingParameters defaults = policy.defaults();
  for (const v1::ParameterLimit& limit : policy.limits()) {
    // A least min_keep may pass the limit of another filter.
    if (limit.field() == "min_keep" && limit.has_min()) SetField(limit.field(), limit.min(), &defaults);
  }
  v1::PolicyEffect moved;
  const auto passes = ApplyImplied(policy.limits(), "defaults", &defaults, &moved);
  if (passes) return Wrong(passes->field, passes->message);
  if (moved.has_applied()) return Wrong("defaults", "one, or the least min_keep, passes a limit of another field");
  return absl::OkStatus();
}

// Returns an error if the policy marks texts, and its own values leave nothing to mark where a client sets none.
absl::Status CheckMark(const v1::Policy& policy, const Limits& limits) {
  if (!policy.has_watermark()) return absl::OkStatus();
  v1::SamplingParameters parameters = policy.defaults();
  v1::PolicyEffect moved;
  for (v1::ParameterLimit limit : policy.limits()) {
    limit.set_violation(v1::ParameterLimit::VIOLATION_APPLY);
    SORTITION_CHECK(!ApplyLimit(limit, "", &parameters, &moved));  // there are no phases
  }
  SequenceSpec spec;
  spec.live_vocabulary = limits.max_vocabulary;
  if (CompileParameters(parameters, limits, "", &spec)) return absl::OkStatus();
  const auto refusal = WhyNoMark(parameters, spec, "");
  if (!refusal) return absl::OkStatus();
  return Wrong("watermark", absl::StrCat(refusal->field.substr(1), " must be ", refusal->limit,
                                         ": the policy's own value leaves one token, which carries no mark"));
}

absl::Status CheckPolicy(const v1::Policy& policy, const Limits& limits, bool writes_receipts) {
  if (policy.receipts() && !writes_receipts) {
    return Wrong("receipts", "the server writes none: set --receipt_key and --receipt_folder");
  }
  if (policy.max_priority() < 0 || policy.max_priority() > kMaxPriority) {
    return Wrong("max_priority", absl::StrCat("must be 0..", kMaxPriority));
  }
  if (policy.has_watermark() && policy.watermark().keys().empty()) {
    return Wrong("watermark.keys", "a required watermark needs the path of its keys");
  }
  if (absl::Status status = CheckDefaults(policy.defaults(), limits); !status.ok()) return status;
  absl::Status status = CheckLimits(policy, limits);
  return status.ok() ? CheckMark(policy, limits) : status;
}

absl::StatusOr<std::vector<MarkKey>> ReadKeys(const std::string& path, const FileReader& read) {
  const absl::StatusOr<std::string> text = read(path);
  absl::StatusOr<std::vector<MarkKey>> keys = text.ok() ? ParseMarkKeys(*text) : text.status();
  if (!keys.ok()) return Wrong("watermark.keys", absl::StrCat(path, ": ", keys.status().message()));
  return keys;
}

// Fills in the parameters that are not set, and notes this in `*effect`.
void TakeDefaults(const v1::SamplingParameters& defaults, v1::SamplingParameters* parameters,
                  v1::PolicyEffect* effect) {
  std::vector<const google::protobuf::FieldDescriptor*> set, own;
  defaults.GetReflection()->ListFields(defaults, &set);
  parameters->GetReflection()->ListFields(*parameters, &own);
  v1::SamplingParameters missing = defaults;
  for (const auto* field : set) {
    if (std::ranges::find(own, field) != own.end()) missing.GetReflection()->ClearField(&missing, field);
  }
  if (missing.ByteSizeLong() == 0) return;
  parameters->MergeFrom(missing);
  effect->mutable_applied()->MergeFrom(missing);
}

std::optional<Refusal> TakeKey(const TenantPolicy* policy, absl::string_view path, v1::SamplingParameters* parameters,
                               std::string* watermark_key_id, v1::PolicyEffect* effect) {
  const std::string field = absl::StrCat(path, ".watermark_key_id");
  const std::string& named = *watermark_key_id;
  if (auto refusal = CheckByteCount(named.size(), kMaxNameBytes, field)) return refusal;
  if (policy == nullptr || policy->keys.empty()) {
    if (named.empty()) return std::nullopt;
    return Refusal{Reason::kContradiction, field, "", "the operator's policy requires no watermark"};
  }
  if (parameters->has_watermark()) {
    return Refusal{Reason::kContradiction, absl::StrCat(path, ".parameters.watermark"), "absent",
                   "the operator's policy marks the text with a key of its own"};
  }
  const auto key = named.empty() ? policy->keys.begin() : std::ranges::find(policy->keys, named, &MarkKey::id);
  if (key == policy->keys.end()) {
    return Refusal{Reason::kContradiction, field,
                   absl::StrJoin(policy->keys, ", ", [](std::string* out, const auto& one) { out->append(one.id); }),
                   "the operator's policy has no such key any more, so the text cannot go on with its mark"};
  }
  v1::Watermark& watermark = *parameters->mutable_watermark();
  watermark.set_key(key->key);
  watermark.set_context_width(key->context_width);
  if (policy->message.watermark().skip_repeated_contexts()) watermark.set_skip_repeated_contexts(true);
  *watermark_key_id = key->id;
  effect->set_watermark_key_id(key->id);
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const TenantPolicy> PolicyList::Of(absl::string_view tenant) const {
  for (const std::string_view name : {std::string_view(tenant.data(), tenant.size()), std::string_view("*")}) {
    if (const auto it = policies.find(name); it != policies.end()) return it->second;
  }
  return nullptr;
}

absl::StatusOr<std::vector<MarkKey>> ParseMarkKeys(absl::string_view text) {
  std::vector<MarkKey> keys;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string where = absl::StrCat("line ", ++number);
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    MarkKey key{words[0], 0, law::kDefaultWatermarkWidth};
    if (words.size() < 2 || words.size() > 3) return Wrong(where, "expected ID KEY [CONTEXT_WIDTH]");
    if (key.id.size() > kMaxNameBytes) return Wrong(where, absl::StrCat("an id has at most ", kMaxNameBytes, " bytes"));
    if (!absl::SimpleAtoi(words[1], &key.key)) return Wrong(where, "a key is a decimal number below 2^64");
    if (words.size() == 3 && (!absl::SimpleAtoi(words[2], &key.context_width) || key.context_width < 1 ||
                              key.context_width > law::kMaxWatermarkWidth)) {
      return Wrong(where, absl::StrCat("a context width is 1..", law::kMaxWatermarkWidth));
    }
    if (std::ranges::find(keys, key.id, &MarkKey::id) != keys.end()) return Wrong(where, "an earlier line has this id");
    if (keys.size() == kMostKeys) return Wrong(where, absl::StrCat("has more than ", kMostKeys, " keys"));
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return absl::InvalidArgumentError("has no key");
  return keys;
}

absl::StatusOr<PolicyList> ParsePolicies(absl::string_view text, const Limits& limits, bool writes_receipts,
                                         const FileReader& read) {
  v1::Policies message;
  const auto parsed = google::protobuf::util::JsonStringToMessage(std::string(text), &message);
  if (!parsed.ok()) return absl::InvalidArgumentError(std::string(parsed.message()));
  if (message.policies_size() > kMostPolicies) {
    return absl::InvalidArgumentError(absl::StrCat("policies: at most ", kMostPolicies));
  }
  PolicyList list;
  for (v1::Policy& policy : *message.mutable_policies()) {
    if (const auto refusal = CheckName(policy.tenant(), "policies[].tenant")) {
      return Wrong(refusal->field, refusal->message);
    }
    auto read_policy = std::make_shared<TenantPolicy>();
    absl::Status status = CheckPolicy(policy, limits, writes_receipts);
    if (status.ok() && policy.has_watermark()) {
      auto keys = ReadKeys(policy.watermark().keys(), read);
      status = keys.status();
      if (keys.ok()) read_policy->keys = *std::move(keys);
    }
    const std::string where = absl::StrCat("tenant ", policy.tenant());
    if (!status.ok()) return Wrong(where, status.message());
    read_policy->message = std::move(policy);
    const std::string tenant = read_policy->message.tenant();
    if (!list.policies.emplace(tenant, std::move(read_policy)).second) return Wrong(where, "has two policies");
  }
  return list;
}

std::optional<Refusal> CheckPriority(const TenantPolicy* policy, int32_t priority) {
  if (policy == nullptr || !policy->message.has_max_priority()) return std::nullopt;
  const int32_t most = policy->message.max_priority();
  if (priority <= most) return std::nullopt;
  return Refusal{Reason::kOutOfRange, "step.priority", absl::StrCat("<= ", most),
                 absl::StrCat(priority, " is above the limit of the operator's policy")};
}

std::optional<Refusal> ApplyPolicy(const TenantPolicy* policy, absl::string_view path,
                                   v1::SamplingParameters* parameters, std::string* watermark_key_id,
                                   v1::PolicyEffect* effect) {
  if (policy != nullptr) {
    TakeDefaults(policy->message.defaults(), parameters, effect);
    const std::string field = absl::StrCat(path, ".parameters");
    for (const v1::ParameterLimit& limit : policy->message.limits()) {
      if (auto refusal = ApplyLimit(limit, field, parameters, effect)) return refusal;
    }
    const auto& limits = policy->message.limits();
    if (auto refusal = ApplyImplied(limits, field, parameters, effect)) return refusal;
    effect->set_receipts(policy->message.receipts());
  }
  return TakeKey(policy, path, parameters, watermark_key_id, effect);
}

}  // namespace sortition::service
