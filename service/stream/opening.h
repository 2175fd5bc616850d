// Policy and receipts of a sequence that opens on a stream, or that a row of a unary call is alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "service/engine.h"
#include "service/policy/policy.h"
#include "service/receipt/receipt_book.h"
#include "service/refusal.h"
#include "service/wire/open_request.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// All of these are thread-safe. `engine` is not owned.

// Returns the tenant's policy that is in force now; null if there is none.
std::shared_ptr<const TenantPolicy> FindPolicy(const Engine& engine, const std::string& tenant);

// Applies a policy (ApplyPolicy). If there is a policy, `*effect` gets its changes.
std::optional<Refusal> TakePolicy(Engine* engine, const TenantPolicy* policy, absl::string_view path,
                                  v1::SamplingParameters* parameters, std::string* watermark_key_id,
                                  std::optional<v1::PolicyEffect>* effect);

// Refuses a sequence that the policy marks and whose options leave nothing to mark (WhyNoMark). `parameters` are those
// of the request, at `path`.
std::optional<Refusal> CheckMark(Engine* engine, const v1::SamplingParameters& parameters, absl::string_view path,
                                 const OpenRequest& request);

// Completes a request for receipts, which the client, the policy or the server's settings ask for: it has a salt then.
std::optional<Refusal> PrepareReceipts(Engine* engine, absl::string_view path, OpenRequest* request);

// Begins the receipts of a request that has a salt for them. `parameters` are those of the request, with what the
// policy has changed. Takes price::kReceiptByte for each of their bytes.
std::shared_ptr<ReceiptChain> BeginReceipts(Engine* engine, const v1::SamplingParameters& parameters,
                                            const OpenRequest& request);

}  // namespace sortition::service
