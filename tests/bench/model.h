// Clients and their sequences with the options of a usual model, as benchmarks of the service step them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/bench/logits.h"
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

inline std::unique_ptr<client::Client> Connect(client::ClientOptions options) {
  auto client = client::Client::Connect(std::move(options));
  if (!client.ok()) std::cerr << client.status() << "\n";
  SORTITION_CHECK(client.ok());
  return *std::move(client);
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

// Puts the rows one right after the other into memory that the client shares with the server, if it does.
inline client::Client::RowMemory Place(const Logits& logits, client::Client* client) {
  auto memory = client->AllocateRows(logits.count() * logits.row_bytes());
  SORTITION_CHECK(memory.ok());
  for (size_t i = 0; i < logits.count(); ++i) {
    std::memcpy(memory->data.get() + i * logits.row_bytes(), logits.row(i), logits.row_bytes());
  }
  return *std::move(memory);
}

inline void CheckDrawn(const std::vector<client::RowResult>& results) {
  for (const auto& result : results) SORTITION_CHECK(std::holds_alternative<v1::DrawResult>(result));
}

// Steps a batch of which every row draws a token.
inline void StepAll(client::Client* client, const client::Batch& batch) {
  const auto results = client->Step(batch);
  SORTITION_CHECK(results.ok());
  CheckDrawn(*results);
}

}  // namespace sortition::bench
