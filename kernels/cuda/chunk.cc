// Lays out rows, and reads answers from the kernels' outputs.
#include "kernels/cuda/chunk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "kernels/check_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cuda {
namespace {

uint64_t RoundedUp(uint64_t bytes) { return (bytes + kLogitsAlignment - 1) / kLogitsAlignment * kLogitsAlignment; }

uint64_t LogitsBytes(const RowRequest& request) {
  return uint64_t{request.live_vocabulary} * ElementBytes(request.dtype);
}

// Bytes of a drafter's dense probabilities; 0 if there are none.
uint64_t DenseBytes(const RowRequest& request) {
  if (request.task != RowTask::kVerify || request.draft.form != DraftDistribution::Form::kDense) return 0;
  return uint64_t{request.live_vocabulary} * ElementBytes(request.draft.dtype);
}

bool HasMask(const RowRequest& request) { return request.has_allowed_tokens || request.allowed_bits != nullptr; }
uint64_t MaskWords(const RowRequest& request) { return (uint64_t{request.live_vocabulary} + 31) / 32; }

// Writes one bit a token: both kinds of mask together.
void WriteMask(const RowRequest& request, uint32_t* words) {
  if (!request.has_allowed_tokens) {
    std::copy_n(request.allowed_bits, MaskWords(request), words);
    return;
  }
  std::fill_n(words, MaskWords(request), 0u);
  for (const uint32_t token : request.allowed_tokens) {
    const uint32_t bit = 1u << (token % 32);
    if (request.allowed_bits == nullptr || (request.allowed_bits[token / 32] & bit) != 0) words[token / 32] |= bit;
  }
}

template <typename T>
T* Pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

uint64_t Chunk::ExtrasOffset() const { return RoundedUp(InputsBytes()); }

uint64_t Chunk::ScratchOffset() const { return RoundedUp(StatesBytes()); }

uint64_t Chunk::TokensOffset() const { return RoundedUp(OutputsBytes()); }

bool Chunk::Add(const RowRequest& request, uint64_t most_bytes, LogitsPath path) {
  CheckRow(request);
  SORTITION_CHECK(path != LogitsPath::kNone || reinterpret_cast<uintptr_t>(request.logits) % kLogitsAlignment == 0);
  const RowParameters& parameters = *request.parameters;
  const bool is_chained = IsChained(parameters, request.task, !request.requested.empty());
  const RowInput input = MakeRowInput(parameters, request.noise, request.dtype, request.live_vocabulary, is_chained);
  const uint32_t groups = GroupsOf(request.live_vocabulary);
  Sizes sizes = sizes_;
  PartOffsets place = {};
  const auto take = [](uint64_t* area, uint64_t bytes) { return std::exchange(*area, *area + RoundedUp(bytes)); };
  place.mask = take(&sizes.extras, HasMask(request) ? 4 * MaskWords(request) : 0);
  place.edits = take(&sizes.extras, request.edits.size_bytes());
  place.path = path;
  if (path == LogitsPath::kUpload) place.logits = take(&sizes.logits, LogitsBytes(request));
  if (path == LogitsPath::kCopy) place.logits = take(&sizes.copies, LogitsBytes(request));
  place.scratch = take(&sizes.scratch, uint64_t{4} * LayScratch(groups, uint32_t(request.edits.size())).words);
  place.processed_top = take(&sizes.tokens, sizeof(TopToken) * input.processed_top_count);
  place.raw_top = take(&sizes.tokens, sizeof(TopToken) * input.raw_top_count);
  place.is_chained = is_chained;
  if (is_chained) {
    place.chained = take(&sizes.extras, sizeof(ChainedInput));
    place.requested = take(&sizes.extras, request.requested.size_bytes());
    const DraftDistribution& draft = request.draft;
    place.draft = take(&sizes.extras, DenseBytes(request) + draft.sparse_tokens.size_bytes());
    place.draft_bits = take(&sizes.extras, draft.sparse_bits.size_bytes());
    const uint64_t places = sizeof(kernels::TokenPlace) * request.requested.size();
    place.output = take(&sizes.tokens, sizeof(ChainedOutput));
    place.processed_places = take(&sizes.tokens, parameters.processed_logprob ? places : 0);
    place.raw_places = take(&sizes.tokens, parameters.raw_logprob ? places : 0);
    const uint64_t kept = parameters.kept_tokens ? law::MostKept(parameters, request.live_vocabulary) : 0;
    place.kept = take(&sizes.kept, sizeof(TokenBits) * kept);
  }
  const uint64_t a_row = sizeof(RowInput) + sizeof(RowState) + sizeof(RawOutput);
  const uint64_t taken =
      a_row * (rows() + 1) + sizes.extras + sizes.logits + sizes.scratch + sizes.copies + sizes.tokens + sizes.kept;
  if (taken > most_bytes) return false;

  sizes_ = sizes;
  largest_groups_ = std::max(largest_groups_, groups);
  needed_ |= NeededBy(input);
  requests_.push_back(&request);
  inputs_.push_back(input);
  places_.push_back(place);
  return true;
}

std::byte* Chunk::LogitsOf(uint32_t row, std::byte* upload, size_t* bytes) const {
  *bytes = places_[row].path == LogitsPath::kUpload ? LogitsBytes(*requests_[row]) : 0;
  return upload + LogitsOffset() + places_[row].logits;
}

Chunk::Range Chunk::CopyOf(uint32_t row) const {
  if (places_[row].path != LogitsPath::kCopy) return {};
  return {CopiesOffset() + places_[row].logits, LogitsBytes(*requests_[row])};
}

void Chunk::WriteInputs(std::byte* upload, uint64_t device_upload, uint64_t device_work,
                        uint64_t device_download) const {
  const uint64_t extras = ExtrasOffset();
  for (uint32_t row = 0; row < rows(); ++row) {
    const RowRequest& request = *requests_[row];
    const PartOffsets& place = places_[row];
    RowInput input = inputs_[row];
    input.logits = request.logits;
    if (place.path == LogitsPath::kUpload) {
      input.logits = Pointer<const void>(device_upload + LogitsOffset() + place.logits);
    } else if (place.path == LogitsPath::kCopy) {
      input.logits = Pointer<const void>(device_work + CopiesOffset() + place.logits);
    }
    input.scratch = Pointer<uint32_t>(device_work + ScratchOffset() + place.scratch);
    if (HasMask(request)) {
      input.allowed = Pointer<const uint32_t>(device_upload + extras + place.mask);
      WriteMask(request, reinterpret_cast<uint32_t*>(upload + extras + place.mask));
    }
    input.edit_count = uint32_t(request.edits.size());
    if (!request.edits.empty()) {
      input.edits = Pointer<const LogitEdit>(device_upload + extras + place.edits);
      std::memcpy(upload + extras + place.edits, request.edits.data(), request.edits.size_bytes());
    }
    input.processed_top = Pointer<TopToken>(device_download + TokensOffset() + place.processed_top);
    input.raw_top = Pointer<TopToken>(device_download + TokensOffset() + place.raw_top);
    if (place.is_chained) {
      const ChainedInput chained = LayChainedInput(row, upload, device_upload, device_download);
      std::memcpy(upload + extras + place.chained, &chained, sizeof(chained));
      input.chained = Pointer<const ChainedInput>(device_upload + extras + place.chained);
    }
    std::memcpy(upload + sizeof(RowInput) * row, &input, sizeof(input));
  }
}

ChainedInput Chunk::LayChainedInput(uint32_t row, std::byte* upload, uint64_t device_upload,
                                    uint64_t device_download) const {
  const RowRequest& request = *requests_[row];
  const RowParameters& parameters = *request.parameters;
  const PartOffsets& place = places_[row];
  const uint64_t extras = ExtrasOffset();
  const uint64_t tokens = device_download + TokensOffset();
  ChainedInput chained = MakeChainedInput(parameters);
  chained.task = request.task;
  chained.given = request.given;
  chained.sampler_state = request.sampler_state;
  chained.requested_count = uint32_t(request.requested.size());
  chained.requested = Pointer<const uint32_t>(device_upload + extras + place.requested);
  if (!request.requested.empty()) {
    std::memcpy(upload + extras + place.requested, request.requested.data(), request.requested.size_bytes());
  }
  const DraftDistribution& draft = request.draft;
  chained.draft.form = draft.form;
  chained.draft.dtype = draft.dtype;
  chained.draft.dense = Pointer<const void>(device_upload + extras + place.draft);
  if (DenseBytes(request) != 0) std::memcpy(upload + extras + place.draft, draft.dense, DenseBytes(request));
  chained.draft.sparse_count = uint32_t(draft.sparse_tokens.size());
  chained.draft.sparse_tokens = Pointer<const uint32_t>(device_upload + extras + place.draft);
  chained.draft.sparse_bits = Pointer<const uint32_t>(device_upload + extras + place.draft_bits);
  if (!draft.sparse_tokens.empty()) {
    std::memcpy(upload + extras + place.draft, draft.sparse_tokens.data(), draft.sparse_tokens.size_bytes());
    std::memcpy(upload + extras + place.draft_bits, draft.sparse_bits.data(), draft.sparse_bits.size_bytes());
  }
  chained.output = Pointer<ChainedOutput>(tokens + place.output);
  if (parameters.processed_logprob) {
    chained.processed_places = Pointer<kernels::TokenPlace>(tokens + place.processed_places);
  }
  if (parameters.raw_logprob) chained.raw_places = Pointer<kernels::TokenPlace>(tokens + place.raw_places);
  if (parameters.kept_tokens) chained.kept = Pointer<TokenBits>(device_download + KeptOffset() + place.kept);
  return chained;
}

BatchView Chunk::MakeView(uint64_t device_upload, uint64_t device_work, uint64_t device_download,
                          uint32_t multiprocessors) const {
  BatchView view;
  view.inputs = Pointer<const RowInput>(device_upload);
  view.states = Pointer<RowState>(device_work);
  view.outputs = Pointer<RawOutput>(device_download);
  view.section_groups = geometry(multiprocessors).section_groups;
  return view;
}

Chunk::Range Chunk::KeptOf(uint32_t row, const std::byte* download) const {
  const RawOutput& output = reinterpret_cast<const RawOutput*>(download)[row];
  if (!requests_[row]->parameters->kept_tokens || output.error != RowFault::kNone) return {};
  return {KeptOffset() + places_[row].kept, sizeof(TokenBits) * output.kept};
}

RowOutput Chunk::ReadOutput(uint32_t row, const std::byte* download) const {
  const PartOffsets& place = places_[row];
  const auto at = [&]<typename T>(uint64_t offset, const T*) {
    return reinterpret_cast<const T*>(download + TokensOffset() + offset);
  };
  OutputView view;
  view.output = reinterpret_cast<const RawOutput*>(download) + row;
  view.raw_top = at(place.raw_top, view.raw_top);
  view.processed_top = at(place.processed_top, view.processed_top);
  if (place.is_chained) {
    view.chained = at(place.output, view.chained);
    view.raw_places = at(place.raw_places, view.raw_places);
    view.processed_places = at(place.processed_places, view.processed_places);
    view.requested = uint32_t(requests_[row]->requested.size());
    view.kept = reinterpret_cast<const TokenBits*>(download + KeptOffset() + place.kept);
  }
  return cuda::ReadOutput(*requests_[row]->parameters, view);
}

}  // namespace sortition::kernels::cuda
