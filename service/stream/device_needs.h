// Refuses what no device of the server is able to do, whichever of them serve now. The features that rows need are
// those of kernels/features.h, and their names those of request/parameter_table.h.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "service/refusal.h"
#include "service/route/device_keeper.h"
#include "service/row/row_plan.h"
#include "service/sequence/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns why a sequence is refused, by the field of `open` below `path`: an option needs what no device has, or no
// device takes rows as wide. `spec` is what `open` compiled to. Thread-safe.
std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const v1::OpenSequence& open, absl::string_view path,
                                   const SequenceSpec& spec);

// Returns why a step's row is refused, whose sequence has been opened. Thread-safe.
std::optional<Refusal> WhyNoDevice(const DeviceKeeper& devices, const RowPlan& plan, const SequenceSpec& spec);

}  // namespace sortition::service
