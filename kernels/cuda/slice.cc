// Layout of rows, and answers from what kernels leave.
#include "kernels/cuda/slice.h"

#include <algorithm>
#include <cstring>

#include "kernels/check_row.h"

namespace sortition::kernels::cuda {
namespace {

uint64_t RoundedUp(uint64_t bytes) { return (bytes + kLogitsAlignment - 1) / kLogitsAlignment * kLogitsAlignment; }

uint64_t LogitsBytes(const RowRequest& request) {
  return uint64_t{request.live_vocabulary} * ElementBytes(request.dtype);
}

bool HasMask(const RowRequest& request) { return request.has_allowed_tokens || request.allowed_bits != nullptr; }
uint64_t MaskWords(const RowRequest& request) { return (uint64_t{request.live_vocabulary} + 31) / 32; }

// One bit a token, both kinds of mask in one.
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

uint64_t Slice::LogitsOffset() const { return RoundedUp(InputsBytes()) + sizes_.extras; }

bool Slice::Add(const RowRequest& request, uint64_t most_bytes) {
  CheckRow(request);
  const RowInput input = InputOf(*request.parameters, request.noise, request.dtype, request.live_vocabulary);
  const uint32_t groups = GroupsOf(request.live_vocabulary);
  Sizes sizes = sizes_;
  Place place;
  place.mask = sizes.extras;
  if (HasMask(request)) sizes.extras += RoundedUp(4 * MaskWords(request));
  place.patches = sizes.extras;
  sizes.extras += RoundedUp(sizeof(TokenPatch) * request.patches.size());
  place.logits = sizes.logits;
  sizes.logits += RoundedUp(LogitsBytes(request));
  place.scratch = sizes.scratch;
  sizes.scratch += uint64_t{4} * LayScratch(groups, uint32_t(request.patches.size())).words;
  place.processed_top = sizes.tops;
  sizes.tops += uint64_t{sizeof(TopToken)} * input.processed_top_count;
  place.raw_top = sizes.tops;
  sizes.tops += uint64_t{sizeof(TopToken)} * input.raw_top_count;
  const uint64_t a_row = sizeof(RowInput) + sizeof(RowState) + sizeof(RowOutput);
  if (a_row * (rows() + 1) + sizes.extras + sizes.logits + sizes.scratch + sizes.tops > most_bytes) return false;

  sizes_ = sizes;
  largest_groups_ = std::max(largest_groups_, groups);
  weighs_ = weighs_ || NeedsWeights(input);
  requests_.push_back(&request);
  inputs_.push_back(input);
  places_.push_back(place);
  return true;
}

std::byte* Slice::LogitsOf(uint32_t row, std::byte* upload, size_t* bytes) const {
  *bytes = LogitsBytes(*requests_[row]);
  return upload + LogitsOffset() + places_[row].logits;
}

void Slice::WriteInputs(std::byte* upload, uint64_t device_upload, uint64_t device_work,
                        uint64_t device_download) const {
  const uint64_t extras = RoundedUp(InputsBytes());
  for (uint32_t row = 0; row < rows(); ++row) {
    const RowRequest& request = *requests_[row];
    const Place& place = places_[row];
    RowInput input = inputs_[row];
    input.logits = Pointer<const void>(device_upload + LogitsOffset() + place.logits);
    input.scratch = Pointer<uint32_t>(device_work + StatesBytes() + place.scratch);
    if (HasMask(request)) {
      input.allowed = Pointer<const uint32_t>(device_upload + extras + place.mask);
      WriteMask(request, reinterpret_cast<uint32_t*>(upload + extras + place.mask));
    }
    if (!request.patches.empty()) {
      input.patches = Pointer<const TokenPatch>(device_upload + extras + place.patches);
      input.patch_count = uint32_t(request.patches.size());
      std::memcpy(upload + extras + place.patches, request.patches.data(), request.patches.size_bytes());
    }
    input.processed_top = Pointer<TopToken>(device_download + OutputsBytes() + place.processed_top);
    input.raw_top = Pointer<TopToken>(device_download + OutputsBytes() + place.raw_top);
    std::memcpy(upload + sizeof(RowInput) * row, &input, sizeof(input));
  }
}

BatchView Slice::ViewOf(uint64_t device_upload, uint64_t device_work, uint64_t device_download,
                        uint32_t multiprocessors) const {
  BatchView view;
  view.inputs = Pointer<const RowInput>(device_upload);
  view.states = Pointer<RowState>(device_work);
  view.outputs = Pointer<RowOutput>(device_download);
  view.chunk_groups = geometry(multiprocessors).chunk_groups;
  return view;
}

RowAnswer Slice::AnswerOf(uint32_t row, const std::byte* download) const {
  RowOutput output;
  std::memcpy(&output, download + sizeof(RowOutput) * row, sizeof(output));
  const auto top = [&](uint64_t place) { return reinterpret_cast<const TopToken*>(download + OutputsBytes() + place); };
  return cuda::AnswerOf(*requests_[row]->parameters, output, top(places_[row].raw_top),
                        top(places_[row].processed_top));
}

}  // namespace sortition::kernels::cuda
