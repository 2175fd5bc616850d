// What a sequence is, from the message that describes it.
#include "client/python/native/options.h"

#include <utility>

namespace nb = nanobind;

namespace sortition::python {

client::SequenceOptions ParseSequence(nb::bytes message, std::vector<uint32_t> prompt,
                                      std::optional<uint32_t> start_position) {
  v1::OpenSequence open;
  if (!open.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
    throw nb::value_error("the bytes are no sortition.v1.OpenSequence");
  }
  client::SequenceOptions options;
  options.request_id = open.request_id();
  options.parameters = std::move(*open.mutable_parameters());
  if (open.has_seed()) options.seed = open.seed();
  options.choice_index = open.choice_index();
  options.vocabulary_size = open.vocabulary_size();
  if (open.has_live_vocabulary_size()) options.live_vocabulary_size = open.live_vocabulary_size();
  options.model = open.model();
  options.prompt = std::move(prompt);
  options.start_position = start_position;
  return options;
}

}  // namespace sortition::python
