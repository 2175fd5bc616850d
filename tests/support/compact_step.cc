// The law's reference states each row.
#include "tests/support/compact_step.h"

#include "kernels/check.h"
#include "kernels/law/compact.h"
#include "service/wire/step_request.h"

namespace sortition::testing {
namespace {

// Returns the value of the f32 bits, which `dtype` can represent, as bits of `dtype`.
uint32_t Narrowed(uint32_t bits, kernels::DType dtype) {
  if (dtype == kernels::DType::kF32) return bits;
  if (dtype == kernels::DType::kBF16) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xff) - 127;
  if (exponent == 128) return sign | 0x7c00;
  const uint32_t mantissa = bits & 0x7fffff;
  if (exponent >= -14) return sign | static_cast<uint32_t>(exponent + 15) << 10 | mantissa >> 13;
  return exponent < -24 ? sign : sign | (mantissa | 0x800000) >> (-1 - exponent);
}

// Returns one compact form for each of the rows that begin at `logits`; none if a row has none.
std::vector<kernels::StatedRow> State(const CompactChoice& choice, kernels::DType dtype, const char* logits,
                                      uint64_t row_bytes, uint64_t positions) {
  std::vector<kernels::StatedRow> rows;
  for (uint64_t i = 0; i < positions; ++i) {
    kernels::RowRequest request;
    request.logits = logits + i * row_bytes;
    request.dtype = dtype;
    request.live_vocabulary = choice.live_vocabulary;
    request.parameters = &choice.parameters;
    std::vector<uint32_t> named;
    for (const uint32_t id : i < choice.named.size() ? choice.named[i] : std::vector<uint32_t>()) {
      const bool is_here = id >= choice.first_token && id - choice.first_token < choice.live_vocabulary;
      if (is_here) named.push_back(id - choice.first_token);
    }
    auto stated = law::StateRowReference(request, choice.count, named);
    if (!stated) return {};
    if (!choice.unit_sum) stated->unit_sum.reset();
    if (!choice.sum) stated->sum.reset();
    for (auto* const tokens : {&stated->first, &stated->others}) {
      for (kernels::TokenBits& token : *tokens) token.token += choice.first_token;
    }
    rows.push_back(*std::move(stated));
  }
  return rows;
}

}  // namespace

void AppendCompact(const kernels::StatedRow& row, kernels::DType dtype, std::string* pairs, v1::CompactRow* message) {
  message->set_offset(pairs->size());
  message->set_first(static_cast<uint32_t>(row.first.size()));
  message->set_others(static_cast<uint32_t>(row.others.size()));
  message->set_is_whole(row.is_whole);
  if (row.unit_sum) message->set_unit_sum(*row.unit_sum);
  if (row.sum) message->set_sum(*row.sum);
  for (const auto* tokens : {&row.first, &row.others}) {
    for (const kernels::TokenBits& token : *tokens) {
      pairs->append(reinterpret_cast<const char*>(&token.token), sizeof(token.token));
    }
  }
  for (const auto* tokens : {&row.first, &row.others}) {
    for (const kernels::TokenBits& token : *tokens) {
      const uint32_t bits = Narrowed(token.bits, dtype);
      pairs->append(reinterpret_cast<const char*>(&bits), kernels::ElementBytes(dtype));
    }
  }
}

v1::StreamRequest WithCompactRows(const v1::StreamRequest& step,
                                  std::span<const std::optional<CompactChoice>> choices) {
  v1::StreamRequest compact = step;
  v1::LogitsTensor& tensor = *compact.mutable_step()->mutable_logits();
  SORTITION_CHECK(tensor.source().inline_().payload() == 0);
  const kernels::DType dtype = *service::ToDType(tensor.dtype());
  const uint64_t row_bytes = uint64_t{tensor.vocabulary_size()} * kernels::ElementBytes(dtype);
  std::string whole;
  std::string pairs;
  uint64_t at = 0;
  for (int i = 0; i < compact.step().rows_size(); ++i) {
    v1::StepRow& row = *compact.mutable_step()->mutable_rows(i);
    const uint64_t positions = service::PositionsOf(row);
    const char* const logits = step.payloads(0).data() + at;
    at += positions * row_bytes;
    const std::optional<CompactChoice>& choice = choices[static_cast<size_t>(i)];
    std::vector<kernels::StatedRow> stated;
    if (choice) stated = State(*choice, dtype, logits, row_bytes, positions);
    for (const kernels::StatedRow& position : stated) AppendCompact(position, dtype, &pairs, row.add_compact());
    if (stated.empty()) whole.append(logits, positions * row_bytes);
  }
  SORTITION_CHECK(at == step.payloads(0).size());
  if (whole.size() == at) return step;
  // The pairs take the place of the whole rows if none is left.
  if (whole.empty()) {
    tensor.clear_source();
    tensor.mutable_pairs()->mutable_inline_()->set_payload(0);
    compact.set_payloads(0, pairs);
    return compact;
  }
  compact.set_payloads(0, whole);
  tensor.mutable_pairs()->mutable_inline_()->set_payload(static_cast<uint32_t>(compact.payloads_size()));
  compact.add_payloads(pairs);
  return compact;
}

}  // namespace sortition::testing
