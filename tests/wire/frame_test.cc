// Taking encoded messages apart: any segmentation, any order of fields, any damage.
#include "service/wire/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "service/limits.h"
#include "tests/support/messages.h"
#include "tests/support/scale.h"

namespace sortition::service::frame_test {
namespace {

using ::sortition::testing::Deliver;
using ::sortition::testing::DeliverInPieces;
using ::sortition::testing::Delivery;
using ::sortition::testing::Scaled;
using ::sortition::testing::StepBuilder;

using Decoded = std::variant<Frame, Refusal>;

Decoded Decode(const Delivery& delivery) { return DecodeFrame(delivery.segments, delivery.bytes); }
Decoded Decode(std::string bytes) { return Decode(Deliver(std::move(bytes))); }

Frame MustDecode(const Delivery& delivery) {
  Decoded decoded = Decode(delivery);
  if (auto* refusal = std::get_if<Refusal>(&decoded)) {
    ADD_FAILURE() << refusal->message;
    return Frame();
  }
  return std::move(std::get<Frame>(decoded));
}

Reason WhyNot(std::string bytes) {
  const Decoded decoded = Decode(std::move(bytes));
  if (!std::holds_alternative<Refusal>(decoded)) {
    ADD_FAILURE() << "was decoded";
    return Reason::kDraining;
  }
  return std::get<Refusal>(decoded).reason;
}

std::string Bytes(const Payload& payload) {
  std::string bytes;
  for (const devices::ByteSegment& segment : payload.segments) {
    EXPECT_GT(segment.size, 0u);
    bytes.append(reinterpret_cast<const char*>(segment.data), segment.size);
  }
  EXPECT_EQ(bytes.size(), payload.size);
  return bytes;
}

// The frame as one message again.
v1::StreamRequest Whole(const Frame& frame) {
  v1::StreamRequest message = frame.message;
  EXPECT_EQ(message.payloads_size(), 0);
  for (const Payload& payload : frame.payloads) message.add_payloads(Bytes(payload));
  return message;
}

v1::StreamRequest SomeStep() {
  std::mt19937_64 random(7);
  StepBuilder builder(42, 50, kernels::DType::kF16);
  for (int i = 0; i < 3; ++i) {
    v1::StepRow& row = builder.AddRow("sequence", 1 + i, 5, testing::RandomLogits(kernels::DType::kF16, 50, &random));
    row.set_history_hash(random());
    row.add_append_tokens(300);
    row.mutable_mask()->set_mask_row(builder.AddMask(std::vector<bool>(50, true)));
  }
  builder.step().set_priority(-3);
  builder.step().mutable_timeout()->set_nanos(5);
  return builder.Build();
}

// One top-level field: its key, then `rest`.
std::string Field(uint32_t number, uint32_t wire_type, const std::string& rest) {
  uint32_t key = number << 3 | wire_type;
  std::string bytes;
  for (; key >= 0x80; key >>= 7) bytes.push_back(static_cast<char>(key | 0x80));
  bytes.push_back(static_cast<char>(key));
  return bytes + rest;
}

TEST(Frame, SegmentationDoesNotMatter) {
  const std::string bytes = SomeStep().SerializeAsString();
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < Scaled(2000); ++i) {
    const Frame frame = MustDecode(DeliverInPieces(bytes, &random));
    ASSERT_EQ(Whole(frame).SerializeAsString(), bytes);
    ASSERT_EQ(frame.bytes, bytes.size());
  }
}

TEST(Frame, SegmentsOfOneByte) {
  const std::string bytes = SomeStep().SerializeAsString();
  std::vector<size_t> cuts;
  for (size_t end = 1; end < bytes.size(); ++end) cuts.push_back(end);
  EXPECT_EQ(Whole(MustDecode(Deliver(bytes, cuts))).SerializeAsString(), bytes);
}

// A reused step keeps its memory, and nothing else.
TEST(Frame, MemoryOfAnEarlierStepDoesNotMatter) {
  const auto reuse = [] {
    auto used = std::make_unique<v1::Step>(SomeStep().step());
    used->mutable_rows(0)->mutable_verify_draft()->add_draft_tokens(3);
    used->set_answer_early(true);
    used->Clear();
    return used;
  };
  StepBuilder builder(7, 50, kernels::DType::kF16);
  std::mt19937_64 random(3);
  builder.AddRow("s", 1, 0, testing::RandomLogits(kernels::DType::kF16, 50, &random));
  for (const v1::StreamRequest& message : {builder.Build(), SomeStep()}) {
    const std::string bytes = message.SerializeAsString();
    const Delivery delivery = Deliver(bytes);
    const Decoded decoded = DecodeFrame(delivery.segments, delivery.bytes, reuse);
    ASSERT_TRUE(std::holds_alternative<Frame>(decoded));
    EXPECT_EQ(Whole(std::get<Frame>(decoded)).SerializeAsString(), bytes);
  }
}

// Only a step takes one.
TEST(Frame, OtherMessagesTakeNoStep) {
  const auto fail = []() -> std::unique_ptr<v1::Step> {
    ADD_FAILURE();
    return std::make_unique<v1::Step>();
  };
  v1::StreamRequest hello;
  hello.mutable_hello()->set_worker_session("w");
  const Delivery delivery = Deliver(hello.SerializeAsString());
  const Decoded decoded = DecodeFrame(delivery.segments, delivery.bytes, fail);
  EXPECT_TRUE(std::get<Frame>(decoded).message.has_hello());
}

TEST(Frame, EmptySegmentsAnywhere) {
  const std::string bytes = SomeStep().SerializeAsString();
  std::vector<size_t> cuts;
  for (size_t end = 0; end <= bytes.size(); ++end) cuts.insert(cuts.end(), 3, end);
  EXPECT_EQ(Whole(MustDecode(Deliver(bytes, cuts))).SerializeAsString(), bytes);
}

TEST(Frame, NoBytesAreTheEmptyMessage) {
  EXPECT_EQ(MustDecode(Delivery{std::make_shared<std::string>(), {}}).message.kind_case(),
            v1::StreamRequest::KIND_NOT_SET);
  EXPECT_EQ(MustDecode(Deliver("")).payloads.size(), 0u);
}

TEST(Frame, PayloadsAreNotCopied) {
  v1::StreamRequest message;
  message.add_payloads(std::string(1000, 'a'));
  message.add_payloads(std::string(500, 'b'));
  const std::string bytes = message.SerializeAsString();
  const size_t cuts[] = {400};
  const Delivery delivery = Deliver(bytes, cuts);
  const Frame frame = MustDecode(delivery);
  EXPECT_EQ(frame.owner, delivery.bytes);
  ASSERT_EQ(frame.payloads.size(), 2u);

  const auto* begin = reinterpret_cast<const std::byte*>(delivery.bytes->data());
  ASSERT_EQ(frame.payloads[0].segments.size(), 2u);
  EXPECT_EQ(frame.payloads[0].segments[0].data, begin + 3);
  EXPECT_EQ(frame.payloads[0].segments[1].data, begin + 400);
  ASSERT_EQ(frame.payloads[1].segments.size(), 1u);
  EXPECT_EQ(frame.payloads[1].segments[0].data, begin + bytes.size() - 500);
}

TEST(Frame, LongHistoryTakesItsMemoryOnce) {
  v1::StreamRequest message;
  for (uint32_t i = 0; i < 100'001; ++i) message.mutable_open()->mutable_history()->add_tokens(i);
  const Frame frame = MustDecode(Deliver(message.SerializeAsString()));
  const auto& tokens = frame.message.open().history().tokens();
  EXPECT_EQ(tokens.size(), 100'001);
  EXPECT_EQ(tokens[100'000], 100'000u);
  EXPECT_EQ(tokens.Capacity(), 100'001) << "neither grown by doubling nor reserved for each byte";
}

TEST(Frame, EmptyPayloadsCount) {
  v1::StreamRequest message;
  message.add_payloads("");
  message.add_payloads("x");
  message.add_payloads("");
  EXPECT_EQ(Whole(MustDecode(Deliver(message.SerializeAsString()))).SerializeAsString(), message.SerializeAsString());
}

TEST(Frame, OwnerOutlivesItsCaller) {
  std::weak_ptr<const std::string> bytes;
  {
    std::optional<Frame> frame;
    {
      const Delivery delivery = Deliver(SomeStep().SerializeAsString());
      bytes = delivery.bytes;
      frame.emplace(MustDecode(delivery));
    }
    EXPECT_FALSE(bytes.expired());
    EXPECT_EQ(Whole(*frame).SerializeAsString(), SomeStep().SerializeAsString());
  }
  EXPECT_TRUE(bytes.expired());
}

TEST(Frame, TruncatedAtEveryLength) {
  const std::string bytes = SomeStep().SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string truncated = bytes.substr(0, length);
    const Decoded decoded = Decode(truncated);
    v1::StreamRequest message;
    const bool valid = message.ParseFromString(truncated);
    ASSERT_EQ(std::holds_alternative<Frame>(decoded), valid) << length;
    if (valid) {
      ASSERT_EQ(Whole(std::get<Frame>(decoded)).SerializeAsString(), message.SerializeAsString());
    } else {
      ASSERT_EQ(std::get<Refusal>(decoded).reason, Reason::kMalformedMessage);
    }
  }
}

TEST(Frame, FieldsInAnyOrder) {
  // A step between payloads.
  v1::StreamRequest first, payload;
  first.mutable_step()->set_batch_id(9);
  first.mutable_step()->add_rows()->set_request_id("a");
  std::vector<std::string> parts = {first.SerializeAsString()};
  for (const char* text : {"zero", "one", "two"}) {
    payload.Clear();
    payload.add_payloads(text);
    parts.push_back(payload.SerializeAsString());
  }
  std::sort(parts.begin(), parts.end());
  do {
    std::string bytes;
    for (const std::string& part : parts) bytes += part;
    v1::StreamRequest expected;
    ASSERT_TRUE(expected.ParseFromString(bytes));
    ASSERT_EQ(Whole(MustDecode(Deliver(bytes))).SerializeAsString(), expected.SerializeAsString());
  } while (std::next_permutation(parts.begin(), parts.end()));
}

TEST(Frame, GroupsAndUnusedWireTypesAreRefused) {
  for (const uint32_t wire_type : {3u, 4u, 6u, 7u}) {
    for (const uint32_t number : {1u, 3u, 15u, 99u}) {
      EXPECT_EQ(WhyNot(Field(number, wire_type, "")), Reason::kMalformedMessage);
    }
  }
  EXPECT_EQ(WhyNot(Field(99, 3, Field(99, 4, ""))), Reason::kMalformedMessage);
}

TEST(Frame, FieldNumberZeroIsRefused) { EXPECT_EQ(WhyNot(Field(0, 0, "\x01")), Reason::kMalformedMessage); }

TEST(Frame, PayloadsOfAnotherWireTypeStayVisible) {
  // Kept by protobuf as an unknown field, so that it is refused by name later and not dropped.
  for (const std::string& field : {Field(15, 0, "\x01"), Field(15, 1, std::string(8, 'x')), Field(15, 5, "xxxx")}) {
    const Frame frame = MustDecode(Deliver(field));
    EXPECT_EQ(frame.payloads.size(), 0u);
    const auto& unknown = frame.message.GetReflection()->GetUnknownFields(frame.message);
    ASSERT_EQ(unknown.field_count(), 1);
    EXPECT_EQ(unknown.field(0).number(), 15);
  }
}

TEST(Frame, HugeLengthsAreRefused) {
  const std::string lengths[] = {
      std::string("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 10),  // 2^63
      std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10),  // 2^64 - 1
      std::string("\xff\xff\xff\xff\x0f", 5),                       // 2^32 - 1
      std::string("\xff\xff\xff\xff\x7f", 5),                       // 2^35 - 1
      std::string("\xff\xff\xff\xff\x07", 5),                       // 2^31 - 1
  };
  for (const std::string& length : lengths) {
    for (const uint32_t number : {1u, 3u, 15u, 99u}) {
      EXPECT_EQ(WhyNot(Field(number, 2, length + "abc")), Reason::kMalformedMessage);
    }
  }
}

TEST(Frame, OverlongVarintsAreRefused) {
  const std::string eleven = std::string(10, '\x80') + '\x01';
  EXPECT_EQ(WhyNot(eleven), Reason::kMalformedMessage);
  EXPECT_EQ(WhyNot(Field(99, 0, eleven)), Reason::kMalformedMessage);
  EXPECT_EQ(WhyNot(Field(15, 2, eleven)), Reason::kMalformedMessage);
  // A length in six bytes, which protobuf does not read either.
  EXPECT_EQ(WhyNot(Field(15, 2, std::string("\x81\x80\x80\x80\x80\x00x", 7))), Reason::kMalformedMessage);
}

// protobuf cuts a key to 32 bits: it would find a payload where this reader sees another field.
TEST(Frame, KeyBeyond32BitsHidesNoPayload) {
  const std::string key("\xfa\x80\x80\x80\x10", 5);  // 2^32 + the key of payloads
  EXPECT_EQ(WhyNot(key + std::string("\x01x", 2)), Reason::kMalformedMessage);
}

TEST(Frame, PayloadsAreCounted) {
  v1::StreamRequest message;
  for (uint32_t i = 0; i < kMaxPayloads; ++i) message.add_payloads("");
  EXPECT_EQ(MustDecode(Deliver(message.SerializeAsString())).payloads.size(), kMaxPayloads);
  message.add_payloads("");
  const Decoded decoded = Decode(message.SerializeAsString());
  ASSERT_TRUE(std::holds_alternative<Refusal>(decoded));
  EXPECT_EQ(std::get<Refusal>(decoded).reason, Reason::kTooMany);
  EXPECT_EQ(std::get<Refusal>(decoded).field, "payloads");
}

TEST(Frame, TextThatIsNotUtf8IsRefused) {
  const testing::QuietProtobuf silencer;
  v1::StreamRequest message;
  message.mutable_hello()->set_worker_session("\xff\xfe");
  EXPECT_EQ(WhyNot(message.SerializePartialAsString()), Reason::kMalformedMessage);
}

// Damaged messages: the parts that the reader finds are those that protobuf reads from the same bytes, and bytes that
// protobuf refuses are refused. If only the reader refuses, the damage made a group, a payload too many or a key beyond
// 32 bits.
TEST(Frame, EqualsProtobufOnDamagedMessages) {
  const testing::QuietProtobuf silencer;
  const std::string whole = SomeStep().SerializeAsString();
  // Without payloads, damage hits the structure more often.
  v1::StreamRequest step = SomeStep();
  step.clear_payloads();
  step.add_payloads("bulk");
  const std::string small = step.SerializeAsString();
  std::mt19937_64 random(2);
  uint64_t accepted = 0;
  uint64_t refused = 0;
  for (uint64_t i = 0; i < Scaled(100'000); ++i) {
    std::string bytes = random() % 4 == 0 ? whole : small;
    for (uint64_t n = 1 + random() % 3; n > 0 && !bytes.empty(); --n) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
          break;
        case 2:
          bytes.erase(at, 1 + random() % 3);
          break;
        case 3:
          bytes.insert(at, 1, static_cast<char>(random()));
          break;
      }
    }
    v1::StreamRequest expected;
    const bool valid = expected.ParseFromString(bytes);
    const Decoded decoded = Decode(DeliverInPieces(bytes, &random));
    if (const auto* frame = std::get_if<Frame>(&decoded)) {
      ASSERT_TRUE(valid);
      ASSERT_EQ(Whole(*frame).SerializeAsString(), expected.SerializeAsString());
      ++accepted;
    } else {
      const Refusal& refusal = std::get<Refusal>(decoded);
      ASSERT_TRUE(!valid || refusal.message == "a wire type that proto3 does not have" ||
                  refusal.message == "a field key of more than 32 bits" || refusal.reason == Reason::kTooMany ||
                  refusal.reason == Reason::kContradiction)
          << refusal.message;
      ++refused;
    }
  }
  EXPECT_GT(accepted, refused / 20);
  EXPECT_GT(refused, accepted / 20);
}

}  // namespace
}  // namespace sortition::service::frame_test
