// Finds the features that a row needs, and the field that requires them.
#include "service/stream/device_needs.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "kernels/features.h"
#include "service/wire/parameter_table.h"

namespace sortition::service {
namespace {

Refusal Lacked(std::string field, kernels::Features missing) {
  return {Reason::kNotImplemented, std::move(field), "", DevicesLack(missing)};
}

bool HasField(const google::protobuf::Message& message, std::string_view name) {
  const auto* const field = message.GetDescriptor()->FindFieldByName(std::string(name));
  if (field == nullptr) return false;
  return field->is_repeated() ? message.GetReflection()->FieldSize(message, field) > 0
                              : message.GetReflection()->HasField(message, field);
}

// Returns the path of an option of `phase`, 0 outside of phases, that needs one of these features.
std::string FieldNeeding(const v1::SamplingParameters& parameters, bool asks_receipts, absl::string_view path,
                         uint32_t phase, kernels::Features missing) {
  const std::string field = absl::StrCat(path, ".parameters");
  for (const std::string_view name : NamesOf(missing)) {
    if (phase != kNoPhase) {
      const auto index = static_cast<int>(phase) - 1;
      if (HasField(parameters.phases(index).parameters(), name)) {
        return absl::StrCat(field, ".phases[", index, "].parameters.", std::string(name));
      }
    }
    if (HasField(parameters, name)) return absl::StrCat(field, ".", std::string(name));
  }
  return asks_receipts ? absl::StrCat(path, ".receipts") : field;
}

// Returns the features that a draw needs of its device. A receipt lists the kept tokens.
kernels::Features FeaturesOfDraw(const SequenceSpec& spec, uint32_t phase, bool lists_kept) {
  kernels::RowParameters parameters = spec.Within(phase).parameters;
  parameters.kept_tokens |= lists_kept;
  kernels::RowRequest request;
  request.parameters = &parameters;
  request.requested = spec.logprob_token_ids;
  return kernels::FeaturesOf(request);
}

// Returns the features that a row's task needs besides a draw's.
kernels::Features FeaturesOfTask(const RowPlan& plan) {
  const kernels::RowParameters none;
  constexpr std::array<uint32_t, 1> kToken = {0};
  kernels::RowRequest request;
  request.parameters = &none;
  if (plan.kind == RowPlan::Kind::kScore) {
    request.task = kernels::RowTask::kScore;
    if (std::ranges::any_of(plan.requested, [](const auto& ids) { return !ids.empty(); })) request.requested = kToken;
  }
  if (plan.has_test()) request.task = kernels::RowTask::kVerify;
  if (plan.kind == RowPlan::Kind::kBlock) {
    request.survival = kernels::RowRequest::kCertainSurvival;
    request.requested = kToken;  // a position's draft
  }
  std::vector<int32_t> parents = plan.ahead.parents;
  std::ranges::sort(parents);
  const bool has_rivals = std::ranges::adjacent_find(parents) != parents.end();
  if (plan.kind == RowPlan::Kind::kReject && has_rivals) request.rivals = kToken;
  return kernels::FeaturesOf(request);
}

// Returns the field of a row that requires the first of these features.
std::string FieldNeeding(const RowPlan& plan, kernels::Features missing) {
  const std::string row = absl::StrCat("step.rows[", plan.row, "]");
  if (plan.kind == RowPlan::Kind::kScore) return row + ".score";
  if (!plan.verifies()) return row;
  const std::string draft = row + (plan.is_tree ? ".verify_tree" : ".verify_draft");
  if ((missing & (kernels::kFeatureVerify | kernels::kFeatureBlock)) != 0) return draft + ".mode";
  if ((missing & kernels::kFeatureRounds) != 0) return draft + ".draft_sampling";
  return plan.return_probabilities ? draft + ".return_probabilities" : draft;
}

}  // namespace

std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const v1::SamplingParameters& parameters,
                                   bool asks_receipts, absl::string_view path, const SequenceSpec& spec) {
  for (uint32_t phase = 0; phase <= spec.history.phases.size(); ++phase) {
    const kernels::Features missing = devices.Lacking(FeaturesOfDraw(spec, phase, spec.receipts));
    if (missing != kernels::kNoFeatures)
      return Lacked(FieldNeeding(parameters, asks_receipts, path, phase, missing), missing);
  }
  return std::nullopt;
}

std::optional<Refusal> WhyTooWide(const DeviceKeeper& devices, const SequenceSpec& spec, std::string field) {
  if (spec.live_vocabulary <= devices.widest_vocabulary()) return std::nullopt;
  return Refusal{Reason::kOutOfRange, std::move(field), absl::StrCat("<= ", devices.widest_vocabulary()),
                 "no device of this server takes rows as wide"};
}

std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const RowPlan& plan, const SequenceSpec& spec) {
  const kernels::Features task = FeaturesOfTask(plan);
  const bool lists_kept = plan.return_probabilities || (spec.receipts && plan.kind != RowPlan::Kind::kScore);
  if (task == kernels::kNoFeatures && !plan.return_probabilities) return std::nullopt;
  for (uint32_t phase = 0; phase <= spec.history.phases.size(); ++phase) {
    const kernels::Features missing = devices.Lacking(task | FeaturesOfDraw(spec, phase, lists_kept));
    if (missing != kernels::kNoFeatures) return Lacked(FieldNeeding(plan, missing), missing);
  }
  return std::nullopt;
}

}  // namespace sortition::service
