// Options of the C++ client from Python's arguments.
#pragma once

#include <nanobind/nanobind.h>

#include "client/cpp/options.h"
#include "client/cpp/sequence_record.h"

namespace sortition::python {

// `message` is a serialized sortition.v1.OpenSequence without history; the prompt goes beside it, uncopied by protobuf.
client::SequenceOptions ParseSequence(nanobind::bytes message, std::vector<uint32_t> prompt,
                                      std::optional<uint32_t> start_position);

}  // namespace sortition::python
