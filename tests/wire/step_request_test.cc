// The shape of a step: tensors against their bytes, and everything that concerns all rows.
#include "service/wire/step_request.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/messages.h"

namespace sortition::service::step_request_test {
namespace {

using kernels::DType;
using testing::StepBuilder;

constexpr uint32_t kVocabulary = 70;

// Payloads of the given sizes; only their sizes are looked at.
std::vector<Payload> Payloads(std::initializer_list<uint64_t> sizes) {
  std::vector<Payload> payloads;
  for (const uint64_t size : sizes) payloads.push_back(Payload{{}, size});
  return payloads;
}

// A step of `rows` rows, and payloads as its shape needs them.
v1::Step MakeStep(int rows, DType dtype = DType::kF32) {
  StepBuilder builder(1, kVocabulary, dtype);
  for (int i = 0; i < rows; ++i) builder.AddRow("a", 1, 0, "");
  return builder.step();
}

std::variant<StepShape, Refusal> Parse(const v1::Step& step, const std::vector<Payload>& payloads,
                                       const Limits& limits = {}) {
  return ParseStepShape(step, payloads, limits);
}

StepShape MustParse(const v1::Step& step, const std::vector<Payload>& payloads, const Limits& limits = {}) {
  auto parsed = Parse(step, payloads, limits);
  if (auto* refusal = std::get_if<Refusal>(&parsed)) {
    ADD_FAILURE() << refusal->field << ": " << refusal->message;
    return StepShape();
  }
  return std::get<StepShape>(parsed);
}

void ExpectRefused(const v1::Step& step, const std::vector<Payload>& payloads, Reason reason, const std::string& field,
                   const Limits& limits = {}) {
  const auto parsed = Parse(step, payloads, limits);
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed)) << field << " " << step.ShortDebugString();
  const Refusal& refusal = std::get<Refusal>(parsed);
  EXPECT_EQ(refusal.reason, reason) << ReasonName(refusal.reason);
  EXPECT_EQ(refusal.field, field);
}

TEST(StepShape, PackedRowsOfEachType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const uint64_t stride = kVocabulary * kernels::ElementBytes(dtype);
    const StepShape shape = MustParse(MakeStep(3, dtype), Payloads({3 * stride}));
    EXPECT_EQ(shape.dtype, dtype);
    EXPECT_EQ(shape.vocabulary, kVocabulary);
    EXPECT_EQ(shape.row_stride, stride);
    EXPECT_EQ(shape.tensor_rows, 3u);
    EXPECT_EQ(shape.logits_payload, 0u);
    EXPECT_FALSE(shape.mask_payload.has_value());
    EXPECT_EQ(shape.timeout, absl::InfiniteDuration());
    EXPECT_EQ(shape.priority, 0);
  }
}

TEST(StepShape, BytesMustFitRowsStrideAndType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const uint64_t right = 3 * kVocabulary * kernels::ElementBytes(dtype);
    for (const uint64_t wrong : {uint64_t{0}, uint64_t{1}, right - 1, right + 1, right / 3, 2 * right, ~uint64_t{0}}) {
      ExpectRefused(MakeStep(3, dtype), Payloads({wrong}), Reason::kSizeMismatch, "payloads[0]");
    }
  }
  const auto parsed = Parse(MakeStep(2), Payloads({7}));
  EXPECT_EQ(std::get<Refusal>(parsed).limit, "560 bytes");
}

TEST(StepShape, StrideIsPaddingOrMore) {
  v1::Step step = MakeStep(2);
  for (const uint32_t stride : {kVocabulary * 4, kVocabulary * 4 + 4, 4096u}) {
    step.mutable_logits()->set_row_stride_bytes(stride);
    EXPECT_EQ(MustParse(step, Payloads({2 * stride})).row_stride, stride);
  }
  for (const uint32_t stride : {0u, 1u, kVocabulary * 4 - 4, kVocabulary * 4 + 1, kVocabulary * 4 + 2, 0xffffffffu}) {
    step.mutable_logits()->set_row_stride_bytes(stride);
    ExpectRefused(step, Payloads({2 * uint64_t{stride}}), Reason::kOutOfRange, "step.logits.row_stride_bytes");
  }
  v1::Step half = MakeStep(2, DType::kF16);
  half.mutable_logits()->set_row_stride_bytes(kVocabulary * 2 + 2);
  MustParse(half, Payloads({2 * (kVocabulary * 2 + 2)}));
  half.mutable_logits()->set_row_stride_bytes(kVocabulary * 2 + 1);
  ExpectRefused(half, Payloads({2 * (kVocabulary * 2 + 1)}), Reason::kOutOfRange, "step.logits.row_stride_bytes");
}

// 1024 rows of 2^32 - 4 bytes: the product needs 42 bits.
TEST(StepShape, HugeSizesDoNotWrap) {
  v1::Step step = MakeStep(1);
  step.mutable_logits()->set_row_stride_bytes(0xfffffffc);
  step.mutable_logits()->set_tensor_rows(1024);
  const uint64_t want = uint64_t{0xfffffffc} * 1024;
  for (const uint64_t wrapped : {want & 0xffffffff, uint64_t{0}}) {
    ExpectRefused(step, Payloads({wrapped}), Reason::kSizeMismatch, "payloads[0]");
  }
  EXPECT_EQ(MustParse(step, Payloads({want})).row_stride, 0xfffffffcu);
}

TEST(StepShape, VocabularyRange) {
  v1::Step step = MakeStep(1);
  for (const uint32_t vocabulary : {0u, 1u << 20, 0xffffffffu}) {
    step.mutable_logits()->set_vocabulary_size(vocabulary);
    ExpectRefused(step, Payloads({uint64_t{vocabulary} * 4}), Reason::kOutOfRange, "step.logits.vocabulary_size");
  }
  for (const uint32_t vocabulary : {1u, (1u << 20) - 1}) {
    step.mutable_logits()->set_vocabulary_size(vocabulary);
    EXPECT_EQ(MustParse(step, Payloads({uint64_t{vocabulary} * 4})).vocabulary, vocabulary);
  }
  Limits limits;
  limits.max_vocabulary = kVocabulary - 1;
  ExpectRefused(MakeStep(1), Payloads({kVocabulary * 4}), Reason::kOutOfRange, "step.logits.vocabulary_size", limits);
}

TEST(StepShape, TensorRows) {
  v1::Step step = MakeStep(2);
  step.mutable_logits()->set_tensor_rows(5);
  EXPECT_EQ(MustParse(step, Payloads({5 * kVocabulary * 4})).tensor_rows, 5u);
  for (const uint32_t rows : {0u, 1025u, 0xffffffffu}) {
    step.mutable_logits()->set_tensor_rows(rows);
    ExpectRefused(step, Payloads({uint64_t{rows} * kVocabulary * 4}), Reason::kOutOfRange, "step.logits.tensor_rows");
  }
}

TEST(StepShape, PositionsAreLimitedTogether) {
  Limits limits;
  limits.max_step_positions = 2;
  MustParse(MakeStep(2), Payloads({2 * kVocabulary * 4}), limits);
  ExpectRefused(MakeStep(3), Payloads({3 * kVocabulary * 4}), Reason::kTooMany, "step.rows", limits);
  ExpectRefused(MakeStep(0), Payloads({0}), Reason::kMissingField, "step.rows");
  v1::Step scores = MakeStep(1);
  scores.mutable_rows(0)->mutable_score()->mutable_tokens()->Resize(3, 1);
  const auto parsed = ParseStepShape(scores, Payloads({3 * kVocabulary * 4}), limits);
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed));
  EXPECT_EQ(std::get<Refusal>(parsed).limit, "max_step_positions 2");
}

TEST(StepShape, RequiredFields) {
  const std::vector<Payload> payloads = Payloads({kVocabulary * 4});
  v1::Step step = MakeStep(1);
  step.mutable_logits()->clear_source();
  ExpectRefused(step, payloads, Reason::kMissingField, "step.logits.source.kind");
  step = MakeStep(1);
  step.mutable_logits()->clear_dtype();
  ExpectRefused(step, payloads, Reason::kMissingField, "step.logits.dtype");
  step.clear_logits();
  ExpectRefused(step, payloads, Reason::kMissingField, "step.logits");
}

TEST(StepShape, PayloadIndex) {
  v1::Step step = MakeStep(1);
  for (const uint32_t payload : {1u, 0xffffffffu}) {
    step.mutable_logits()->mutable_source()->mutable_inline_()->set_payload(payload);
    ExpectRefused(step, Payloads({kVocabulary * 4}), Reason::kOutOfRange, "step.logits.source.inline.payload");
  }
  ExpectRefused(MakeStep(1), Payloads({}), Reason::kOutOfRange, "step.logits.source.inline.payload");
}

TEST(StepShape, EveryPayloadIsUsed) {
  ExpectRefused(MakeStep(1), Payloads({kVocabulary * 4, 0}), Reason::kContradiction, "payloads[1]");
  v1::Step step = MakeStep(1);
  step.mutable_logits()->mutable_source()->mutable_inline_()->set_payload(1);
  ExpectRefused(step, Payloads({5, kVocabulary * 4}), Reason::kContradiction, "payloads[0]");
}

TEST(StepShape, Masks) {
  v1::Step step = MakeStep(2);
  step.mutable_masks()->mutable_source()->mutable_inline_()->set_payload(1);
  step.mutable_masks()->set_rows(3);
  step.mutable_rows(1)->mutable_mask()->set_mask_row(2);
  const uint64_t logits = 2 * kVocabulary * 4;
  const StepShape shape = MustParse(step, Payloads({logits, 3 * 12}));
  EXPECT_EQ(shape.mask_payload, 1u);
  EXPECT_EQ(shape.mask_rows, 3u);
  EXPECT_EQ(shape.mask_stride, 12u);  // 70 bits in three words
  for (const uint64_t wrong : {0, 35, 37, 27, 3 * 70}) {
    ExpectRefused(step, Payloads({logits, wrong}), Reason::kSizeMismatch, "payloads[1]");
  }
  ExpectRefused(step, Payloads({logits}), Reason::kOutOfRange, "step.masks.source.inline.payload");
  for (const uint32_t rows : {0u, 1025u, 0xffffffffu}) {
    step.mutable_masks()->set_rows(rows);
    ExpectRefused(step, Payloads({logits, uint64_t{rows} * 12}), Reason::kOutOfRange, "step.masks.rows");
  }
  step.mutable_masks()->clear_source();
  ExpectRefused(step, Payloads({logits, 36}), Reason::kMissingField, "step.masks.source.kind");
}

TEST(StepShape, MasksAreNotTheLogits) {
  // 32 ids: a row of logits has 128 bytes, and so have 32 mask rows.
  StepBuilder builder(1, 32);
  builder.AddRow("a", 1, 0, "");
  builder.step().mutable_masks()->mutable_source()->mutable_inline_()->set_payload(0);
  builder.step().mutable_masks()->set_rows(32);
  ExpectRefused(builder.step(), Payloads({128}), Reason::kContradiction, "step.masks.source.inline.payload");
}

TEST(StepShape, Timeout) {
  const std::vector<Payload> payloads = Payloads({kVocabulary * 4});
  const auto with = [](int64_t seconds, int32_t nanos) {
    v1::Step step = MakeStep(1);
    step.mutable_timeout()->set_seconds(seconds);
    step.mutable_timeout()->set_nanos(nanos);
    return step;
  };
  EXPECT_EQ(MustParse(with(0, 1), payloads).timeout, absl::Nanoseconds(1));
  EXPECT_EQ(MustParse(with(2, 999'999'999), payloads).timeout, absl::Seconds(2) + absl::Nanoseconds(999'999'999));
  EXPECT_EQ(MustParse(with(315'576'000'000, 0), payloads).timeout, absl::Seconds(315'576'000'000));
  ExpectRefused(with(0, 0), payloads, Reason::kOutOfRange, "step.timeout");
  for (const int64_t seconds : {int64_t{-1}, int64_t{315'576'000'001}, INT64_MAX, INT64_MIN}) {
    ExpectRefused(with(seconds, 1), payloads, Reason::kOutOfRange, "step.timeout.seconds");
  }
  for (const int32_t nanos : {-1, INT32_MIN, INT32_MAX}) {
    ExpectRefused(with(1, nanos), payloads, Reason::kOutOfRange, "step.timeout.nanos");
  }
}

TEST(StepShape, TimeoutOfABillionNanosNamesItsRange) {
  v1::Step step = MakeStep(1);
  step.mutable_timeout()->set_nanos(1'000'000'000);
  const auto parsed = ParseStepShape(step, Payloads({kVocabulary * 4}), Limits());
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed));
  EXPECT_EQ(std::get<Refusal>(parsed).field, "step.timeout.nanos");
  EXPECT_EQ(std::get<Refusal>(parsed).limit, "0..999999999");
}

TEST(StepShape, UnusedMasksAreRefused) {
  v1::Step step = MakeStep(2);
  step.mutable_masks()->mutable_source()->mutable_inline_()->set_payload(1);
  step.mutable_masks()->set_rows(1);
  const std::vector<Payload> payloads = Payloads({2 * kVocabulary * 4, 12});
  ExpectRefused(step, payloads, Reason::kContradiction, "step.masks");
  step.mutable_rows(0)->mutable_mask()->mutable_allowed_tokens();
  ExpectRefused(step, payloads, Reason::kContradiction, "step.masks");
  step.mutable_rows(1)->mutable_mask()->set_mask_row(0);
  MustParse(step, payloads);
}

TEST(StepShape, UnusedDraftProbabilitiesAreRefused) {
  v1::Step step = MakeStep(1);
  step.mutable_draft_probabilities()->mutable_source()->mutable_inline_()->set_payload(1);
  step.mutable_draft_probabilities()->set_dtype(v1::DTYPE_F32);
  step.mutable_draft_probabilities()->set_rows(1);
  const std::vector<Payload> payloads = Payloads({kVocabulary * 4, kVocabulary * 4});
  ExpectRefused(step, payloads, Reason::kContradiction, "step.draft_probabilities");
}

TEST(StepShape, Priority) {
  const std::vector<Payload> payloads = Payloads({kVocabulary * 4});
  v1::Step step = MakeStep(1);
  for (const int32_t priority : {-100, 0, 100}) {
    step.set_priority(priority);
    EXPECT_EQ(MustParse(step, payloads).priority, priority);
  }
  for (const int32_t priority : {-101, 101, INT32_MIN, INT32_MAX}) {
    step.set_priority(priority);
    ExpectRefused(step, payloads, Reason::kOutOfRange, "step.priority");
  }
}

TEST(StepShape, UnknownRegion) {
  v1::Step step = MakeStep(1);
  step.mutable_logits()->mutable_source()->mutable_region()->set_region_id(7);
  ExpectRefused(step, Payloads({kVocabulary * 4}), Reason::kUnknownRegion, "step.logits.source.region.region_id");
  step = MakeStep(1);
  step.mutable_masks()->mutable_source()->mutable_region();
  ExpectRefused(step, Payloads({kVocabulary * 4}), Reason::kUnknownRegion, "step.masks.source.region.region_id");
}

// A step with drafts has more rows for devices than rows.
TEST(StepShape, DraftsCountAsRows) {
  v1::Step step = MakeStep(2);
  v1::VerifyDraft& chain = *step.mutable_rows(0)->mutable_verify_draft();
  for (int i = 0; i < 3; ++i) chain.add_draft_tokens(1);
  const StepShape shape = MustParse(step, Payloads({5 * kVocabulary * 4}));
  EXPECT_EQ(shape.tensor_rows, 5u);
  EXPECT_EQ(shape.first_rows, (std::vector<uint32_t>{0, 4}));
  chain.mutable_draft_tokens()->Resize(1023, 1);
  step.mutable_logits()->set_tensor_rows(5);
  ExpectRefused(step, Payloads({5 * kVocabulary * 4}), Reason::kTooMany, "step.rows");
}

}  // namespace
}  // namespace sortition::service::step_request_test
