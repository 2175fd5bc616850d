// Uses few ids for many masks, so that masks are replaced often.
#include "tests/simulation/uploads.h"

#include <cstring>
#include <set>

#include "service/wire/payload_view.h"
#include "tests/simulation/text.h"

namespace sortition::simulation {
namespace {

static_assert(kVocabulary <= 32, "a mask is one word");
constexpr uint32_t kIds = 2;

std::vector<v1::RowMask*> MasksOf(v1::Step* step) {
  std::vector<v1::RowMask*> masks;
  for (v1::StepRow& row : *step->mutable_rows()) {
    if (row.has_mask()) masks.push_back(row.mutable_mask());
    if (row.has_verify_draft()) {
      for (v1::RowMask& mask : *row.mutable_verify_draft()->mutable_masks()) masks.push_back(&mask);
    }
    if (row.has_verify_tree()) {
      for (v1::RowMask& mask : *row.mutable_verify_tree()->mutable_masks()) masks.push_back(&mask);
    }
  }
  return masks;
}

std::string UploadOf(uint64_t id, uint32_t word) {
  v1::StreamRequest request;
  v1::UploadMask& upload = *request.mutable_upload_mask();
  upload.set_mask_id(id);
  upload.set_vocabulary_size(kVocabulary);
  upload.mutable_mask()->set_rows(1);
  upload.mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
  request.add_payloads(std::string(reinterpret_cast<const char*>(&word), sizeof(word)));
  return request.SerializeAsString();
}

std::string ReleaseOf(uint64_t id) {
  v1::StreamRequest request;
  request.mutable_upload_mask()->set_mask_id(id);
  return request.SerializeAsString();
}

// Removes the step's mask tensor, which no row uses. Later payloads move up: drafts' probabilities and compact rows'
// pairs.
void DropMasks(service::Frame* frame) {
  v1::Step& step = *frame->message.mutable_step();
  const uint32_t removed = step.masks().source().inline_().payload();
  frame->payloads.erase(frame->payloads.begin() + removed);
  step.clear_masks();
  const auto move_up = [removed](v1::TensorSource* source) {
    v1::TensorSource::Inline& place = *source->mutable_inline_();
    if (place.payload() > removed) place.set_payload(place.payload() - 1);
  };
  if (step.has_draft_probabilities()) move_up(step.mutable_draft_probabilities()->mutable_source());
  if (step.logits().has_pairs()) move_up(step.mutable_logits()->mutable_pairs());
}

}  // namespace

Uploads::Messages Uploads::Rewrite(Draws draws, service::Frame* frame) {
  Messages messages;
  if (!frame->message.step().has_masks() || draws.OneIn(3)) return messages;
  v1::Step& step = *frame->message.mutable_step();
  std::vector<uint32_t> words(step.masks().rows());
  const service::Payload& payload = frame->payloads.at(step.masks().source().inline_().payload());
  service::PayloadView(payload).Copy(0, words.size() * sizeof(uint32_t), words.data());
  std::set<uint64_t> named;
  bool all = true;
  for (v1::RowMask* const mask : MasksOf(&step)) {
    if (!mask->has_mask_row()) continue;
    const uint32_t word = words.at(mask->mask_row());
    const uint64_t id = 1 + word % kIds;
    const auto held = held_.find(id);
    const bool is_there = held != held_.end() && held->second == word;
    if (!is_there && named.contains(id)) {
      all = false;
      continue;
    }
    if (!is_there) messages.before.push_back(UploadOf(id, word));
    held_[id] = word;
    named.insert(id);
    mask->set_uploaded_mask_id(id);
  }
  if (all) DropMasks(frame);
  for (const uint64_t id : named) {
    if (!draws.OneIn(4)) continue;
    messages.after.push_back(ReleaseOf(id));
    held_.erase(id);
  }
  return messages;
}

}  // namespace sortition::simulation
