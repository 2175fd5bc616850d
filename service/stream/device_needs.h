// Refuses rows that no device of the server can run, counting devices that do not serve too. Rows' features are in
// kernels/features.h, and their names in service/wire/parameter_table.h.
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

// Returns the refusal, by the field below `path`, of a sequence whose `parameters` need a feature that no device has,
// or whose receipts do. `spec`: the compiled parameters. Thread-safe.
std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const v1::SamplingParameters& parameters,
                                   bool asks_receipts, absl::string_view path, const SequenceSpec& spec);
// Refuses `field`, a vocabulary's size, if no device takes rows as wide. Thread-safe.
std::optional<Refusal> WhyTooWide(const DeviceKeeper& devices, const SequenceSpec& spec, std::string field);

// Returns the refusal of a step's row on an open sequence. Thread-safe.
std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const RowPlan& plan, const SequenceSpec& spec);

}  // namespace sortition::service
