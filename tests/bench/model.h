// Sequences with the options of a usual model, as benchmarks of the service step them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sortition/client.h"

namespace sortition::bench {

inline v1::SamplingParameters ModelParameters() {
  v1::SamplingParameters parameters;
  parameters.set_temperature(0.8f);
  parameters.set_top_k(50);
  parameters.set_top_p(0.95f);
  parameters.set_min_p(0.05f);
  return parameters;
}

// Opens sequences PREFIX-0, PREFIX-1, ..., whose seed is their number. `more`, if given, changes their options.
inline std::vector<std::unique_ptr<client::Sequence>> OpenSequences(
    client::Client* client, const std::string& prefix, size_t count, uint32_t vocabulary,
    const v1::SamplingParameters& parameters,
    absl::FunctionRef<void(size_t number, client::SequenceOptions*)> more = [](size_t, client::SequenceOptions*) {}) {
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  for (size_t i = 0; i < count; ++i) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat(prefix, "-", i);
    options.parameters = parameters;
    options.seed = i;
    options.vocabulary_size = vocabulary;
    more(i, &options);
    auto opened = client->Open(std::move(options));
    if (!opened.ok()) std::cerr << opened.status() << "\n";
    SORTITION_CHECK(opened.ok());
    sequences.push_back(*std::move(opened));
  }
  return sequences;
}

}  // namespace sortition::bench
