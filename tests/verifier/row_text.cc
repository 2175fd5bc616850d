// Requests as golden rows, and their text.
#include "tests/verifier/row_text.h"

#include <cstring>
#include <vector>

#include "kernels/law/golden/golden_outputs.h"

namespace sortition::testing {
namespace {

using kernels::DType;
using Form = kernels::DraftDistribution::Form;

std::vector<uint32_t> Elements(const void* tensor, DType dtype, uint32_t count) {
  std::vector<uint32_t> elements(count);
  const size_t bytes = kernels::ElementBytes(dtype);
  for (uint32_t id = 0; id < count; ++id) {
    std::memcpy(&elements[id], static_cast<const std::byte*>(tensor) + id * bytes, bytes);
  }
  return elements;
}

law::KnownDraft DraftOf(const kernels::RowRequest& request) {
  law::KnownDraft draft = {.form = request.draft.form, .dtype = request.draft.dtype};
  if (draft.form == Form::kSparse) {
    draft.tokens.assign(request.draft.sparse_tokens.begin(), request.draft.sparse_tokens.end());
    draft.elements.assign(request.draft.sparse_bits.begin(), request.draft.sparse_bits.end());
  }
  if (draft.form != Form::kDense) return draft;
  for (uint32_t id = 0; id < request.live_vocabulary; ++id) draft.tokens.push_back(id);
  draft.elements = Elements(request.draft.dense, draft.dtype, request.live_vocabulary);
  const auto* bytes = static_cast<const std::byte*>(request.draft.dense);
  draft.dense.assign(bytes, bytes + size_t{request.live_vocabulary} * kernels::ElementBytes(draft.dtype));
  return draft;
}

}  // namespace

law::GoldenRow GoldenRowOf(const kernels::RowRequest& request, const std::string& name) {
  law::GoldenRow row;
  row.name = name;
  row.dtype = request.dtype;
  row.vocabulary = request.live_vocabulary;
  row.elements = Elements(request.logits, request.dtype, request.live_vocabulary);
  row.compiled = *request.parameters;
  row.options.temperature = float(request.parameters->temperature);
  row.noise = request.noise;
  row.edits.assign(request.edits.begin(), request.edits.end());
  row.has_allowed_tokens = request.has_allowed_tokens;
  row.allowed_tokens.assign(request.allowed_tokens.begin(), request.allowed_tokens.end());
  if (request.allowed_bits != nullptr) {
    row.allowed_bits.assign(request.allowed_bits, request.allowed_bits + (row.vocabulary + 31) / 32);
  }
  row.sampler_state = request.sampler_state;
  row.task = request.task;
  row.given = request.given;
  row.wants_race_place = request.wants_race_place;
  if (row.task == kernels::RowTask::kVerify) row.draft = DraftOf(request);
  row.requested.assign(request.requested.begin(), request.requested.end());
  return row;
}

std::string RowText(const law::GoldenRow& row) {
  std::string line = law::GoldenRowJson(row);
  // Lines of the golden outputs are indented by six spaces at most.
  for (size_t at = line.find('\n'); at != std::string::npos; at = line.find('\n')) line.erase(at, 1);
  for (size_t at = line.find("      "); at != std::string::npos; at = line.find("      ")) line.erase(at, 6);
  return line.substr(line.find('{'));
}

}  // namespace sortition::testing
