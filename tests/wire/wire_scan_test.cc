// Messages that would grow out of all proportion when parsed, fields that are set twice, and unknown ones.
#include "service/wire/wire_scan.h"

#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <memory>
#include <string>

#include "service/limits.h"
#include "service/text/cost.h"
#include "service/wire/frame.h"
#include "service/wire/sample_request.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/support/messages.h"

namespace sortition::service::wire_scan_test {
namespace {

uint32_t PartsOf(const std::string& encoded) { return ScanStream(encoded).parts; }

// Parts that this message counts for, which is larger than others.
constexpr uint32_t kParameters = 1 + sizeof(v1::SamplingParameters) / 160;
static_assert(kParameters > 2);

std::string Encoded(const std::function<void(v1::StreamRequest*)>& fill) {
  v1::StreamRequest message;
  fill(&message);
  return message.SerializeAsString();
}

// A length-delimited field.
std::string Field(uint32_t number, const std::string& content) {
  std::string bytes;
  for (size_t varint : {size_t{number << 3 | 2}, content.size()}) {
    for (; varint >= 0x80; varint >>= 7) bytes.push_back(static_cast<char>(varint | 0x80));
    bytes.push_back(static_cast<char>(varint));
  }
  return bytes + content;
}

// Returns `depth` messages within each other: phases and their parameters, the innermost with a list of tokens.
std::string NestedPhases(int depth) {
  std::string bytes = Field(v1::SamplingParameters::kAllowedTokenIdsFieldNumber, std::string(1000, 1));
  for (int i = depth; i > 0; --i) {
    const uint32_t numbers[] = {v1::Phase::kParametersFieldNumber, v1::SamplingParameters::kPhasesFieldNumber};
    bytes = Field(numbers[i % 2], bytes);
  }
  return bytes;
}

uint32_t TokensOf(const std::string& encoded) { return ScanStream(encoded).history_tokens; }

TEST(HistoryTokens, ThoseOfTheHistoryAlone) {
  const auto history = [](const std::string& tokens) {
    return Field(v1::StreamRequest::kOpenFieldNumber,
                 Field(v1::OpenSequence::kHistoryFieldNumber, Field(v1::History::kTokensFieldNumber, tokens)));
  };
  EXPECT_EQ(TokensOf(""), 0u);
  EXPECT_EQ(TokensOf(history("")), 0u);
  const std::string three("\x01\xff\x7f\x00", 4);
  EXPECT_EQ(TokensOf(history(three)), 3u);
  EXPECT_EQ(TokensOf(history(three) + Field(60, three) + history(three)), 6u) << "protobuf joins the lists";
  EXPECT_EQ(TokensOf(history(three) + Field(v1::StreamRequest::kPayloadsFieldNumber, history(three))), 3u);
  const std::string open = history(three).substr(2);
  EXPECT_EQ(TokensOf(Field(v1::StreamRequest::kForkFieldNumber, Field(v1::ForkSequence::kChildFieldNumber, open))), 0u);
  const std::string whole = history(std::string(300, 1));
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_LE(TokensOf(whole.substr(0, length)), length);
}

// Looks no deeper than protobuf, which refuses the rest.
TEST(PartCount, MessagesWithinEachOtherTakeNoStack) {
  const auto open = [](int depth) { return Field(2, Field(4, NestedPhases(depth - 2))); };
  v1::StreamRequest message;
  const uint32_t deepest = PartsOf(open(100));
  EXPECT_LE(PartsOf(open(20'000)), deepest + kParameters);
  EXPECT_FALSE(message.ParseFromString(open(20'000)));
  EXPECT_GT(deepest, PartsOf(open(98)));
  EXPECT_TRUE(message.ParseFromString(open(100)));
}

TEST(PartCount, MessagesAndStringsAtAnyDepth) {
  EXPECT_EQ(PartsOf(""), 0u);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) { m->mutable_step(); })), 1u);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) { m->mutable_hello()->set_worker_session("w"); })), 2u);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) {
              for (int i = 0; i < 10; ++i) m->mutable_step()->add_rows()->mutable_mask()->mutable_allowed_tokens();
            })),
            1u + 3 * 10);
  EXPECT_EQ(PartsOf(Encoded([](auto* m) {
              auto* samplers = m->mutable_open()->mutable_parameters()->mutable_chain()->mutable_explicit_();
              for (int i = 0; i < 10; ++i) samplers->add_samplers("");
            })),
            kParameters + 3 + 10);
}

TEST(PartCount, AListOfNumbersIsOne) {
  v1::StreamRequest message;
  v1::History& history = *message.mutable_open()->mutable_history();
  for (uint32_t i = 0; i < 1000; ++i) history.add_tokens(i);
  message.mutable_open()->set_seed(1);
  message.mutable_open()->set_epoch(1);
  EXPECT_EQ(PartsOf(message.SerializeAsString()), 3u);
  // The same list unpacked: one field for each number.
  std::string unpacked;
  for (int i = 0; i < 100; ++i) unpacked += "\x08\x05";
  EXPECT_EQ(PartsOf(Field(2, Field(10, unpacked))), 3u);
}

TEST(PartCount, AnUnknownFieldCountsAsEight) {
  EXPECT_EQ(PartsOf(Field(14, "") + Field(14, "")), 16u);
  EXPECT_EQ(PartsOf(Field(3, std::string("\x68\x01\x68\x01", 4))), 17u) << "field 13 of Step";
  EXPECT_EQ(PartsOf(Field(3, Field(3, std::string("\x20\x01\x20\x01", 4)))), 18u) << "history_hash as a varint";
}

// A field that is set twice does not end the count.
TEST(PartCount, PartsBehindARefusedFieldCount) {
  const std::string two_salts("\x60\x01\x60\x01", 4);
  EXPECT_EQ(PartsOf(Field(3, Field(3, two_salts + Field(1, "a")))), 3u);
  EXPECT_EQ(PartsOf(Field(3, std::string("\x08\x01\x08\x01", 4) + Field(3, Field(1, "a")))), 3u);
}

TEST(PartCount, DamagedBytesEndTheCount) {
  const std::string step = Encoded([](auto* m) { m->mutable_step()->add_rows()->set_request_id("abc"); });
  EXPECT_EQ(PartsOf(step), 3u);
  for (size_t length = 0; length < step.size(); ++length) EXPECT_LE(PartsOf(step.substr(0, length)), 3u);
  for (const char* bytes : {"\xff", "\x1c", "\x1a\xff\xff\xff\xff\x7f", "\x0b\x0b\x0b"}) EXPECT_LE(PartsOf(bytes), 8u);
}

std::string Repeated(uint32_t count, const std::string& bytes) {
  std::string all;
  for (uint32_t i = 0; i < count; ++i) all += bytes;
  return all;
}

// Returns the limit that the refusal of a message names: "" if it is decoded. Fails if it was parsed all the same.
std::string LimitOf(const std::string& encoded, const Limits& limits = {}) {
  const testing::Delivery delivery = testing::Deliver(encoded);
  bool is_parsed = false;
  const auto new_step = [&] {
    is_parsed = true;
    return std::make_unique<v1::Step>();
  };
  const auto decoded = DecodeFrame(delivery.segments, delivery.bytes, new_step, limits);
  if (std::holds_alternative<Frame>(decoded)) return "";
  EXPECT_FALSE(is_parsed);
  EXPECT_EQ(std::get<Refusal>(decoded).reason, Reason::kTooMany);
  return std::get<Refusal>(decoded).limit;
}

// Two megabytes of empty words would take a hundred to parse.
TEST(PartCount, FrameOfTooManyPartsIsRefused) {
  const auto words = [](uint32_t count) {
    return Field(2, Field(4, Repeated(count, Field(v1::SamplingParameters::kBadWordsFieldNumber, ""))));
  };
  EXPECT_EQ(LimitOf(words(kMaxMessageParts - 1 - kParameters)), "");
  EXPECT_EQ(LimitOf(words(kMaxMessageParts - kParameters)), "max_message_parts 262144");
}

// Rows of all kinds count, in two parts of the step, too.
TEST(RowCount, FrameOfTooManyRowsIsNotParsed) {
  const std::string kinds[] = {"", Field(5, "") + Field(6, ""), Field(99, "")};
  for (const std::string& row : kinds) {
    EXPECT_EQ(LimitOf(Field(3, Repeated(1024, Field(3, row)))), "");
    EXPECT_EQ(LimitOf(Field(3, Repeated(1025, Field(3, row)))), "max_step_positions 1024");
    const std::string half = Field(3, Repeated(600, Field(3, row)));
    EXPECT_EQ(LimitOf(half + half), "max_step_positions 1024");
  }
  EXPECT_EQ(LimitOf(Field(3, Repeated(3, Field(3, ""))), {.max_step_positions = 2}), "max_step_positions 2");
}

std::string LimitOfSample(const std::string& encoded) {
  const auto decoded = DecodeSample(encoded);
  return std::holds_alternative<Refusal>(decoded) ? std::get<Refusal>(decoded).limit : "";
}

TEST(SampleScan, BytesBesideTheLogitsAreBounded) {
  const std::string logits = Field(v1::SampleRequest::kLogitsFieldNumber, std::string(kMaxFieldBytes, 0));
  const auto row = [](uint64_t tokens) {
    const std::string list = Field(v1::SamplingParameters::kAllowedTokenIdsFieldNumber, std::string(tokens, 1));
    return Field(v1::SampleRequest::kRowsFieldNumber, Field(v1::SampleRow::kParametersFieldNumber, list));
  };
  EXPECT_EQ(LimitOfSample(logits + row(kMaxFieldBytes - 100)), "");
  EXPECT_EQ(LimitOfSample(logits + row(kMaxFieldBytes)), "max_field_bytes 2097152");
  EXPECT_EQ(LimitOfSample(Repeated(kMaxFieldBytes / 2 + 1, std::string("\x10\x01", 2))), "max_field_bytes 2097152");
}

TEST(SampleScan, RowsAndPartsAreBounded) {
  const auto rows = [](uint32_t count) { return Repeated(count, Field(v1::SampleRequest::kRowsFieldNumber, "")); };
  EXPECT_EQ(LimitOfSample(rows(1024)), "");
  EXPECT_EQ(LimitOfSample(rows(1025)), "max_step_positions 1024");
  EXPECT_EQ(LimitOfSample(Repeated(kMaxMessageParts / 8 + 1, Field(99, ""))), "max_message_parts 262144");
}

// The largest step, and the tokens of a row of the most work, fit the limits.
TEST(PartCount, LimitsFit) {
  constexpr uint32_t kPartsOfARow = 7;  // itself, request_id, task, mask, its list and tokens, checkpoint
  EXPECT_LE(kMostStepPositions * kPartsOfARow + 100, kMaxMessageParts);
  EXPECT_LE(kMostListedTokens + 100, kMaxMessageParts);
  EXPECT_LE(Limits().max_step_positions, kMostStepPositions);
  EXPECT_LE(Limits().max_listed_tokens, kMostListedTokens);
  constexpr uint64_t kTokenBytes = 3 + 4;  // with its probability
  EXPECT_LE(kMaxPieceWork / price::kListedToken * kTokenBytes + (64 << 10), kMaxFieldBytes);
  constexpr uint64_t kBiasBytes = 12;
  EXPECT_LE(kMostListedTokens * kBiasBytes + (64 << 10), kMaxFieldBytes);
}

std::string PathOf(const std::string& encoded) {
  const auto twice = FindSetTwice(encoded, *v1::StreamRequest::descriptor());
  return twice ? twice->refusal.field : "";
}

TEST(SetTwice, OnceIsAccepted) {
  EXPECT_EQ(PathOf(""), "");
  const auto fill = [](v1::StreamRequest* m) {
    v1::OpenSequence& open = *m->mutable_open();
    open.set_request_id("a");
    open.set_seed(0);
    for (int i = 0; i < 3; ++i) open.mutable_parameters()->add_logit_bias()->set_token(1);
    for (int i = 0; i < 3; ++i) open.mutable_history()->add_tokens(5);
    m->add_payloads("x");
    m->add_payloads("y");
  };
  EXPECT_EQ(PathOf(Encoded(fill)), "");
  EXPECT_EQ(PathOf(Field(2, Field(10, "\x08\x05\x08\x05"))), "") << "a list that is not packed";
}

TEST(SetTwice, MembersOfOneOneofAreFound) {
  const std::string open = Encoded([](auto* m) { m->mutable_open()->set_request_id("a"); });
  const std::string step = Encoded([](auto* m) { m->mutable_step()->set_batch_id(1); });
  EXPECT_EQ(PathOf(open + step), "step");
  EXPECT_EQ(PathOf(step + open), "open");
  EXPECT_EQ(FindSetTwice(open + step, *v1::StreamRequest::descriptor())->refusal.message, "open is set, too");
  // chain.preset and chain.explicit of an open's parameters.
  EXPECT_EQ(PathOf(Field(2, Field(4, std::string("\x92\x01\x04\x08\x01\x12\x00", 7)))),
            "open.parameters.chain.explicit");
  // mask_row and uploaded_mask_id of the second row's mask.
  EXPECT_EQ(PathOf(Field(3, Field(3, "") + Field(3, Field(13, std::string("\x08\x00\x10\x07", 4))))),
            "step.rows[1].mask.uploaded_mask_id");
}

TEST(SetTwice, SameFieldTwiceIsFound) {
  const std::string open = Encoded([](auto* m) { m->mutable_open()->set_request_id("a"); });
  EXPECT_EQ(PathOf(open + open), "open");
  EXPECT_EQ(PathOf(Field(3, std::string("\x08\x01\x08\x01", 4))), "step.batch_id");
  EXPECT_EQ(FindSetTwice(open + open, *v1::StreamRequest::descriptor())->refusal.message, "is set twice");
}

// One field of each row, and the first one outside of rows.
TEST(SetTwice, RowsOfAStepAreFoundApart) {
  const std::string two_salts("\x60\x01\x60\x01\x60\x01", 6);
  const std::string two_tasks = Field(5, "") + Field(6, "");
  const std::string rows = Field(3, two_salts) + Field(3, "") + Field(3, two_tasks);
  std::vector<SetTwice> found = ScanStream(Field(3, rows)).set_twice;
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].refusal.field, "step.rows[0].draw_salt");
  EXPECT_EQ(found[0].row, 0u);
  EXPECT_FALSE(found[0].is_task);
  EXPECT_EQ(found[1].refusal.field, "step.rows[2].score");
  EXPECT_EQ(found[1].row, 2u);
  EXPECT_TRUE(found[1].is_task);
  found = ScanStream(Field(3, rows + std::string("\x08\x01\x08\x01", 4))).set_twice;
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[2].refusal.field, "step.batch_id");
  EXPECT_FALSE(found[2].row.has_value());
}

TEST(SetTwice, DamagedBytesEndTheSearch) {
  const std::string step = Field(3, Field(3, std::string("\x60\x01\x60\x01", 4)));
  for (size_t length = 0; length < step.size() - 1; ++length) EXPECT_EQ(PathOf(step.substr(0, length)), "");
  for (const char* bytes : {"\xff", "\x1c", "\x1a\xff\xff\xff\xff\x7f", "\x0b\x0b\x0b"}) EXPECT_EQ(PathOf(bytes), "");
  EXPECT_EQ(PathOf(step), "step.rows[0].draw_salt");
}

bool MayHaveUnknown(const std::string& encoded) { return ScanStream(encoded).may_have_unknown; }

TEST(StreamScan, UnknownFieldsAreSeenAtAnyDepth) {
  EXPECT_FALSE(MayHaveUnknown(""));
  EXPECT_FALSE(MayHaveUnknown(Field(3, Field(3, "\x10\x05"))));
  EXPECT_TRUE(MayHaveUnknown(Field(14, "")));
  EXPECT_TRUE(MayHaveUnknown(Field(3, Field(3, "\x10\x05\x68\x01"))));
  EXPECT_TRUE(MayHaveUnknown(Field(3, Field(3, Field(13, Field(12, ""))))));
  // A group, whose fields would not be counted.
  const std::string group = Field(3, Field(3, "\x9b\x06\x08\x01\x9c\x06"));
  EXPECT_TRUE(MayHaveUnknown(group));
  EXPECT_EQ(ScanStream(group).end, WireScan::End::kGroup);
}

TEST(StreamScan, FieldsInAnotherWireFormAreSeen) {
  EXPECT_TRUE(MayHaveUnknown(Field(3, Field(1, "x")))) << "batch_id as bytes";
  EXPECT_TRUE(MayHaveUnknown(Field(3, std::string("\x18\x01", 2)))) << "rows as a varint";
  // append_tokens, packed and not.
  EXPECT_FALSE(MayHaveUnknown(Field(3, Field(3, Field(11, "\x05\x06")))));
  EXPECT_FALSE(MayHaveUnknown(Field(3, Field(3, "\x58\x05\x58\x06"))));
  EXPECT_TRUE(MayHaveUnknown(Field(3, Field(3, std::string("\x5d\x05\x00\x00\x00", 5)))));
}

TEST(StreamScan, EnumValuesAreSeen) {
  const auto dtype = [](int value) {
    return Encoded([&](auto* m) { m->mutable_step()->mutable_logits()->set_dtype(static_cast<v1::DType>(value)); });
  };
  for (const int known : {0, 1, 2, 3}) EXPECT_FALSE(MayHaveUnknown(dtype(known))) << known;
  for (const int unknown : {4, 63, 64, 1000, -1, INT32_MIN}) EXPECT_TRUE(MayHaveUnknown(dtype(unknown))) << unknown;
}

TEST(StreamScan, WhatIsNotScannedMayBeUnknown) {
  EXPECT_TRUE(WireScan().may_have_unknown);
  EXPECT_FALSE(MayHaveUnknown(Field(3, Field(3, std::string("\x60\x01\x60\x01", 4))))) << "set twice";
  EXPECT_TRUE(MayHaveUnknown("\xff"));
  EXPECT_TRUE(MayHaveUnknown(Field(3, "\x1a\x05\x10")));
}

}  // namespace
}  // namespace sortition::service::wire_scan_test
