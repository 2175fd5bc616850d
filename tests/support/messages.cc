// Encoding and cutting of messages.
#include "tests/support/messages.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "google/protobuf/text_format.h"
#include "kernels/check.h"
#include "kernels/law/version.h"

namespace sortition::testing {

Delivery Deliver(std::string bytes) { return Deliver(std::move(bytes), {}); }

Delivery Deliver(std::string bytes, std::span<const size_t> cuts) {
  Delivery delivery;
  delivery.bytes = std::make_shared<const std::string>(std::move(bytes));
  const auto* data = reinterpret_cast<const std::byte*>(delivery.bytes->data());
  size_t start = 0;
  const auto cut = [&](size_t end) {
    SORTITION_CHECK(start <= end && end <= delivery.bytes->size());
    delivery.segments.push_back({data + start, end - start});
    start = end;
  };
  for (const size_t end : cuts) cut(end);
  cut(delivery.bytes->size());
  return delivery;
}

Delivery DeliverInPieces(std::string bytes, std::mt19937_64* random) {
  std::vector<size_t> cuts((*random)() % 8);
  for (size_t& cut : cuts) cut = (*random)() % (bytes.size() + 1);
  std::sort(cuts.begin(), cuts.end());
  return Deliver(std::move(bytes), cuts);
}

std::vector<uint32_t> TokensOf(const v1::VerifyResult& result) {
  std::vector<uint32_t> tokens;
  for (const v1::Position& position : result.positions()) tokens.push_back(position.token());
  return tokens;
}

// Merges everything, then joins entries of the same position: plainer than the client's way, which it checks.
void AppendPart(const v1::RowResult& part, v1::RowResult* whole) {
  const std::string receipts = whole->receipts() + part.receipts();
  whole->MergeFrom(part);
  if (!receipts.empty()) whole->set_receipts(receipts);
  if (!whole->has_score() && !whole->has_verify()) return;
  auto* const positions =
      whole->has_score() ? whole->mutable_score()->mutable_positions() : whole->mutable_verify()->mutable_positions();
  for (int i = 1; i < positions->size(); ++i) {
    if (positions->Get(i).index() != positions->Get(i - 1).index()) continue;
    v1::Position& entry = *positions->Mutable(i - 1);
    const std::string probabilities = entry.probabilities() + positions->Get(i).probabilities();
    entry.MergeFrom(positions->Get(i));
    if (!probabilities.empty()) entry.set_probabilities(probabilities);
    positions->DeleteSubrange(i--, 1);
  }
}

v1::StreamRequest Hello(std::string_view worker_session) {
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session(std::string(worker_session));
  return request;
}

v1::OpenSequence MakeOpen(std::string_view request_id, uint64_t epoch, uint32_t vocabulary) {
  v1::OpenSequence open;
  open.set_request_id(std::string(request_id));
  open.set_epoch(epoch);
  open.set_law_version(law::kLawVersion);
  open.set_seed(1);
  open.set_vocabulary_size(vocabulary);
  return open;
}

void AddBias(uint32_t token, float bias, v1::SamplingParameters* parameters) {
  v1::LogitBias& added = *parameters->add_logit_bias();
  added.set_token(token);
  added.set_bias(bias);
}

v1::SamplingParameters ParametersOf(const std::string& text) {
  v1::SamplingParameters parameters;
  SORTITION_CHECK(google::protobuf::TextFormat::ParseFromString(text, &parameters));
  return parameters;
}

v1::StreamRequest Message(v1::OpenSequence open) {
  v1::StreamRequest request;
  *request.mutable_open() = std::move(open);
  return request;
}

v1::StreamRequest MakeCancel(uint64_t batch_id) {
  v1::StreamRequest request;
  request.mutable_cancel()->set_batch_id(batch_id);
  return request;
}

v1::StreamRequest MakeClose(std::string_view request_id, uint64_t epoch) {
  v1::StreamRequest request;
  request.mutable_close()->set_request_id(std::string(request_id));
  request.mutable_close()->set_epoch(epoch);
  return request;
}

std::string F32Bytes(std::span<const float> logits) {
  return std::string(reinterpret_cast<const char*>(logits.data()), logits.size_bytes());
}

std::string RandomLogits(kernels::DType dtype, uint32_t vocabulary, std::mt19937_64* random) {
  std::string bytes;
  for (uint32_t id = 0; id < vocabulary; ++id) {
    // A sum of uniforms is normal enough, and the same with every library.
    const uint64_t word = (*random)();
    float logit = -131070.0f;
    for (int part = 0; part < 4; ++part) logit += static_cast<float>(word >> (16 * part) & 0xffff);
    logit /= 15000.0f;
    const uint32_t bits = std::bit_cast<uint32_t>(logit);
    // f16 takes a random sign, exponents 2^-9 to 2^2, and mantissa.
    const uint32_t f16 = (word & 0x8000) | (6 + word % 12) << 10 | (word >> 20 & 0x3ff);
    const uint32_t element = dtype == kernels::DType::kF32 ? bits : dtype == kernels::DType::kBF16 ? bits >> 16 : f16;
    bytes.append(reinterpret_cast<const char*>(&element), kernels::ElementBytes(dtype));
  }
  return bytes;
}

std::string F32Peak(uint32_t vocabulary, uint32_t token) {
  std::vector<float> logits(vocabulary, 0.0f);
  logits.at(token) = 1000.0f;
  return F32Bytes(logits);
}

StepBuilder::StepBuilder(uint64_t batch_id, uint32_t vocabulary, kernels::DType dtype) {
  step().set_batch_id(batch_id);
  v1::LogitsTensor& logits = *step().mutable_logits();
  logits.mutable_source()->mutable_inline_()->set_payload(0);
  logits.set_dtype(dtype == kernels::DType::kF32   ? v1::DTYPE_F32
                   : dtype == kernels::DType::kF16 ? v1::DTYPE_F16
                                                   : v1::DTYPE_BF16);
  logits.set_vocabulary_size(vocabulary);
}

v1::StepRow& StepBuilder::AddRow(std::string_view request_id, uint64_t step_id, uint32_t position,
                                 std::string_view logits) {
  v1::StepRow& row = *step().add_rows();
  row.set_request_id(std::string(request_id));
  row.set_step_id(step_id);
  row.set_position(position);
  logits_ += logits;
  return row;
}

uint32_t StepBuilder::AddMask(const std::vector<bool>& allowed) {
  std::vector<uint32_t> words((step().logits().vocabulary_size() + 31) / 32);
  for (size_t id = 0; id < allowed.size(); ++id) words.at(id / 32) |= uint32_t{allowed[id]} << (id % 32);
  masks_.append(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t));
  v1::MaskTensor& masks = *step().mutable_masks();
  masks.mutable_source()->mutable_inline_()->set_payload(1);
  masks.set_rows(masks.rows() + 1);
  return masks.rows() - 1;
}

uint32_t StepBuilder::AddDraftRow(std::span<const float> probabilities) {
  drafts_ += F32Bytes(probabilities);
  v1::DraftTensor& drafts = *step().mutable_draft_probabilities();
  drafts.set_dtype(v1::DTYPE_F32);
  drafts.set_rows(drafts.rows() + 1);
  return drafts.rows() - 1;
}

v1::StreamRequest StepBuilder::Build() const {
  v1::StreamRequest request = request_;
  request.add_payloads(logits_);
  if (!masks_.empty()) request.add_payloads(masks_);
  if (!drafts_.empty()) {
    v1::TensorSource& source = *request.mutable_step()->mutable_draft_probabilities()->mutable_source();
    source.mutable_inline_()->set_payload(static_cast<uint32_t>(request.payloads_size()));
    request.add_payloads(drafts_);
  }
  return request;
}

}  // namespace sortition::testing
