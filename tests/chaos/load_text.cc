// Texts of load.
#include "tests/chaos/load_text.h"

#include "kernels/law/version.h"
#include "tests/client/reference_sequence.h"

namespace sortition::testing {
namespace {

v1::SamplingParameters Parameters() {
  v1::SamplingParameters parameters;
  parameters.set_temperature(0.9f);
  parameters.set_top_p(0.95f);
  parameters.mutable_raw_logprobs();
  parameters.mutable_processed_logprobs();
  return parameters;
}

std::string NameOf(uint32_t sequence) { return std::to_string(sequence); }

}  // namespace

LoadText::LoadText() : logits_(bench::Shape::kFlat, kernels::DType::kBF16, kSequences + kPositions, kVocabulary) {
  for (uint32_t sequence = 0; sequence < kSequences; ++sequence) {
    ReferenceSequence reference(Parameters(), sequence, 0, kVocabulary, kVocabulary, {});
    std::vector<uint32_t>& tokens = tokens_.emplace_back();
    for (uint32_t position = 0; position < kPositions; ++position) {
      tokens.push_back(reference.Step(v1::DTYPE_BF16, logits_.row(sequence + position)).token());
    }
  }
}

v1::StreamRequest LoadText::MakeOpen(uint32_t sequence) const {
  v1::StreamRequest request;
  v1::OpenSequence& open = *request.mutable_open();
  open.set_request_id(NameOf(sequence));
  open.set_epoch(1);
  open.set_law_version(law::kLawVersion);
  open.set_vocabulary_size(kVocabulary);
  open.set_seed(sequence);
  *open.mutable_parameters() = Parameters();
  return request;
}

v1::StreamRequest LoadText::MakeStep(uint64_t number, uint32_t rows) const {
  v1::StreamRequest request;
  v1::Step& step = *request.mutable_step();
  step.set_batch_id(number);
  step.mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
  step.mutable_logits()->set_dtype(v1::DTYPE_BF16);
  step.mutable_logits()->set_vocabulary_size(kVocabulary);
  const uint32_t position = number % kPositions;
  std::string& payload = *request.add_payloads();
  for (uint32_t sequence = 0; sequence < rows; ++sequence) {
    v1::StepRow& row = *step.add_rows();
    row.set_request_id(NameOf(sequence));
    row.set_step_id(number);
    row.set_position(position);
    payload.append(reinterpret_cast<const char*>(logits_.row(sequence + position)), logits_.row_bytes());
  }
  return request;
}

}  // namespace sortition::testing
