// The operator's policies (proto/sortition/v1/policies.proto): reading of the file, and the effect of a policy on an
// open.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/followed_files.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "sortition/v1/policies.pb.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// A key of a required watermark.
struct MarkKey {
  std::string id;
  uint64_t key = 0;  // a secret
  uint32_t context_width = 0;
  bool operator==(const MarkKey&) const = default;
};

// The rules for one tenant's sequences. Immutable once read.
struct TenantPolicy {
  v1::Policy message;
  std::vector<MarkKey> keys;  // new sequences' key first; empty = no watermark is required
};

// The content of a file of policies. Immutable once read.
struct PolicyList {
  std::map<std::string, std::shared_ptr<const TenantPolicy>, std::less<>> policies;  // by tenant

  // Returns the tenant's policy, or the policy of "*". Null if there is none.
  std::shared_ptr<const TenantPolicy> Of(absl::string_view tenant) const;
};

// Reads the lines ID KEY [CONTEXT_WIDTH] of a file of keys. The error names the line and the mistake, and repeats none
// of its text.
absl::StatusOr<std::vector<MarkKey>> ParseMarkKeys(absl::string_view text);

// Reads policies in JSON, and the files of keys that they name, by `read`. The error names the tenant, the field and
// the mistake: an unknown field, two policies of one tenant, a default beyond its own limit, a watermark without keys.
// `writes_receipts`: the server writes receipts to files. Thread-safe.
absl::StatusOr<PolicyList> ParsePolicies(absl::string_view text, const Limits& limits, bool writes_receipts,
                                         const FileReader& read);

// Refuses a step's priority above the policy's. Null is no policy. Thread-safe.
std::optional<Refusal> CheckPriority(const TenantPolicy* policy, int32_t priority);

// Changes the parameters of what opens, at `path`, and the id of its watermark's key, as the policy says, and notes the
// changes in `*effect`. Null is no policy and changes nothing. A refusal names the field and the policy's limit.
// Thread-safe.
std::optional<Refusal> ApplyPolicy(const TenantPolicy* policy, absl::string_view path,
                                   v1::SamplingParameters* parameters, std::string* watermark_key_id,
                                   v1::PolicyEffect* effect);

}  // namespace sortition::service
