// Messages of the contract as a worker writes them, and the network's way of delivering them.
#pragma once

#include <google/protobuf/stubs/common.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "kernels/row.h"
#include "sortition/v1/sampling.pb.h"
#if GOOGLE_PROTOBUF_VERSION < 4022000
#include <google/protobuf/stubs/logging.h>
#endif

namespace sortition::testing {

// Keeps protobuf, while it lives, from writing about damaged messages to the standard error stream. Later versions log
// through Abseil, and a few lines more do no harm there.
#if GOOGLE_PROTOBUF_VERSION < 4022000
using QuietProtobuf = google::protobuf::LogSilencer;
#else
struct QuietProtobuf {
  QuietProtobuf() {}
};
#endif

// An encoded message in the pieces in which it arrives.
struct Delivery {
  std::shared_ptr<const std::string> bytes;
  std::vector<devices::ByteSegment> segments;  // of `bytes`, in order
};

// Delivers the bytes in one piece.
Delivery Deliver(std::string bytes);
// Delivers pieces that end at the offsets `cuts`, which ascend; a repeated offset makes an empty piece.
Delivery Deliver(std::string bytes, std::span<const size_t> cuts);
// Delivers a few pieces of random sizes, some of them empty.
Delivery DeliverInPieces(std::string bytes, std::mt19937_64* random);

// The tokens of a result's positions.
std::vector<uint32_t> TokensOf(const v1::VerifyResult& result);
// Appends the next part of a row's result, as a client does; an empty `*whole` becomes `part`.
void AppendPart(const v1::RowResult& part, v1::RowResult* whole);

v1::StreamRequest Hello(std::string_view worker_session);
// Asks the server to ignore unknown fields. Protobuf 36 has its own accessor of the field's name.
template <typename Hello>
void IgnoreUnknownFields(Hello* hello) {
  if constexpr (requires { hello->set_unknown_fields_(v1::UNKNOWN_FIELDS_IGNORE); }) {
    hello->set_unknown_fields_(v1::UNKNOWN_FIELDS_IGNORE);
  } else {
    hello->set_unknown_fields(v1::UNKNOWN_FIELDS_IGNORE);
  }
}

// A sequence with the seed 1 and a vocabulary of live tokens only; no parameter is set.
v1::OpenSequence MakeOpen(std::string_view request_id, uint64_t epoch, uint32_t vocabulary);

void AddBias(uint32_t token, float bias, v1::SamplingParameters* parameters);
// Returns parameters that are written in protobuf's text format.
v1::SamplingParameters ParametersOf(const std::string& text);

v1::StreamRequest Message(v1::OpenSequence open);
v1::StreamRequest MakeCancel(uint64_t batch_id);
v1::StreamRequest MakeClose(std::string_view request_id, uint64_t epoch);

// Logits as their bytes on the wire.
std::string F32Bytes(std::span<const float> logits);
// `vocabulary` normal logits, rounded to `dtype`.
std::string RandomLogits(kernels::DType dtype, uint32_t vocabulary, std::mt19937_64* random);
// Returns one tensor row with `token` far above all others.
std::string F32Peak(uint32_t vocabulary, uint32_t token);

// A Step under construction. Rows are added with the bytes of their logits; everything else is set in `step()`.
class StepBuilder {
 public:
  StepBuilder(uint64_t batch_id, uint32_t vocabulary, kernels::DType dtype = kernels::DType::kF32);

  // The message so far, for changes; the payloads are set by Build.
  v1::Step& step() { return *request_.mutable_step(); }

  v1::StepRow& AddRow(std::string_view request_id, uint64_t step_id, uint32_t position, std::string_view logits);
  // Adds a tensor row beyond the one that AddRow adds.
  void AddTensorRow(std::string_view logits) { logits_ += logits; }
  // Adds a row of the drafter's probabilities, as f32, and returns its index.
  uint32_t AddDraftRow(std::span<const float> probabilities);
  // Adds a row of the packed mask tensor, one bit an id, and returns its index.
  uint32_t AddMask(const std::vector<bool>& allowed);

  v1::StreamRequest Build() const;

 private:
  v1::StreamRequest request_;
  std::string logits_;
  std::string masks_;
  std::string drafts_;
};

}  // namespace sortition::testing
