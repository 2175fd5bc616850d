// Refuses what no device of the server is able to do, whichever of them serve now. The features that rows need are
// those of kernels/features.h, and their names those of request/parameter_table.h.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "service/refusal.h"
#include "service/route/device_keeper.h"
#include "service/text/row_plan.h"
#include "service/text/sequence_spec.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Returns why a sequence is refused, by the field below `path`: an option of `parameters` needs what no device has, or
// the receipts do if they are asked for there. `spec` is what was compiled. Thread-safe.
std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const v1::SamplingParameters& parameters,
                                   bool asks_receipts, absl::string_view path, const SequenceSpec& spec);
// Refuses `field`, a vocabulary's size, if no device takes rows as wide. Thread-safe.
std::optional<Refusal> WhyTooWide(const DeviceKeeper& devices, const SequenceSpec& spec, std::string field);

// Returns why a step's row is refused, whose sequence has been opened. Thread-safe.
std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const RowPlan& plan, const SequenceSpec& spec);

}  // namespace sortition::service
