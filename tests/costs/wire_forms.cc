// protobuf writes unknown fields as they are: one with the number of a known field is that field on the wire.
#include "tests/costs/wire_forms.h"

#include <algorithm>

#include "google/protobuf/unknown_field_set.h"

namespace sortition::costs {
namespace {

constexpr uint64_t kMostRows = 1 << 18;  // a test's memory
constexpr int kUnknownNumber = 99;

google::protobuf::UnknownFieldSet& FieldsBehind(google::protobuf::Message* message) {
  return *message->GetReflection()->MutableUnknownFields(message);
}

}  // namespace

void ChangeForm(const Scenario& scenario, v1::Step* step) {
  if (scenario.kind == Kind::kCancel) return;  // its step has paid for the rows that it answers
  const uint64_t count = scenario.Size("wire");
  if (scenario.Has("wire.rows")) {
    // They give their places, so that each may be looked at for those before it.
    for (uint64_t i = 0; i < std::min(count, kMostRows); ++i) step->add_rows()->set_tensor_row(0);
  }
  for (v1::StepRow& row : *step->mutable_rows()) {
    if (scenario.Has("wire.twice")) {
      FieldsBehind(&row).AddLengthDelimited(v1::StepRow::kDrawFieldNumber, "");
      FieldsBehind(&row).AddLengthDelimited(v1::StepRow::kScoreFieldNumber, "");
    }
    if (scenario.Has("wire.unknown")) FieldsBehind(&row).AddLengthDelimited(kUnknownNumber, "");
  }
  if (!scenario.Has("wire.unpacked")) return;
  v1::RowMask& mask = *step->mutable_rows(0)->mutable_mask();
  for (uint64_t i = 0; i < count; ++i) FieldsBehind(&mask).AddVarint(v1::RowMask::kBannedTokensFieldNumber, 0);
}

}  // namespace sortition::costs
