// One row of a step: what concerns it alone.
#include <gtest/gtest.h>

#include <functional>

#include "service/request/step_request.h"

namespace sortition::service {
namespace {

constexpr uint32_t kVocabulary = 70;
constexpr uint32_t kLive = 60;

class StepRowTest : public ::testing::Test {
 protected:
  StepRowTest() {
    shape_.vocabulary = kVocabulary;
    shape_.tensor_rows = 4;
    shape_.mask_payload = 1;
    shape_.mask_rows = 2;
    spec_.vocabulary = kVocabulary;
    spec_.live_vocabulary = kLive;
    row_.set_request_id("a");
    row_.set_step_id(5);
    row_.set_position(9);
    row_.set_history_hash(77);
  }

  std::variant<StepRowRequest, Refusal> Parse(int index = 2) {
    return ParseStepRow(row_, index, shape_, spec_, limits_);
  }
  StepRowRequest MustParse() {
    auto parsed = Parse();
    if (auto* refusal = std::get_if<Refusal>(&parsed)) {
      ADD_FAILURE() << refusal->field << ": " << refusal->message;
      return StepRowRequest();
    }
    return std::get<StepRowRequest>(parsed);
  }
  void ExpectRefused(Reason reason, const std::string& field) {
    const auto parsed = Parse();
    ASSERT_TRUE(std::holds_alternative<Refusal>(parsed)) << field;
    EXPECT_EQ(std::get<Refusal>(parsed).reason, reason) << ReasonName(std::get<Refusal>(parsed).reason);
    EXPECT_EQ(std::get<Refusal>(parsed).field, field);
  }

  StepShape shape_;
  SequenceSpec spec_;
  Limits limits_;
  v1::StepRow row_;
};

TEST_F(StepRowTest, CarriesWhatWasSent) {
  row_.set_truncate_to(3);
  row_.add_append_tokens(kLive - 1);
  row_.set_draw_salt(65535);
  row_.set_tensor_row(3);
  row_.mutable_mask()->set_mask_row(1);
  const StepRowRequest request = MustParse();
  EXPECT_EQ(request.intent.step_id, 5u);
  EXPECT_EQ(request.intent.position, 9u);
  EXPECT_EQ(request.intent.history_hash, 77u);
  EXPECT_EQ(request.intent.truncate_to, 3u);
  EXPECT_EQ(request.intent.append_tokens, std::vector<uint32_t>{kLive - 1});
  EXPECT_EQ(request.draw_salt, 65535u);
  EXPECT_EQ(request.tensor_row, 3u);
  EXPECT_EQ(request.mask_row, 1u);
  EXPECT_FALSE(request.has_allowed_tokens);
}

TEST_F(StepRowTest, DrawMayBeSpelledOut) {
  const uint64_t digest = MustParse().intent.options_digest;
  row_.mutable_draw();
  EXPECT_EQ(MustParse().intent.options_digest, digest);
}

TEST_F(StepRowTest, TensorRowDefaultsToTheRow) {
  EXPECT_EQ(MustParse().tensor_row, 2u);
  const auto parsed = Parse(4);
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed));
  EXPECT_EQ(std::get<Refusal>(parsed).field, "step.rows[4].tensor_row");
  for (const uint32_t tensor_row : {4u, 0xffffffffu}) {
    row_.set_tensor_row(tensor_row);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].tensor_row");
  }
}

TEST_F(StepRowTest, AnotherVocabulary) {
  shape_.vocabulary = kVocabulary + 1;
  ExpectRefused(Reason::kVocabularyMismatch, "step.logits.vocabulary_size");
}

TEST_F(StepRowTest, WhatMustBeSet) {
  row_.set_step_id(0);
  ExpectRefused(Reason::kMissingField, "step.rows[2].step_id");
  row_.set_step_id(1);
  row_.clear_history_hash();
  EXPECT_FALSE(MustParse().intent.history_hash.has_value());
  spec_.presence_penalty = 1;
  ExpectRefused(Reason::kMissingField, "step.rows[2].history_hash");
  row_.set_history_hash(0);
  EXPECT_EQ(MustParse().intent.history_hash, 0u);
}

TEST_F(StepRowTest, Ranges) {
  limits_.max_history = 100;
  row_.set_position(99);
  MustParse();
  for (const uint32_t position : {100u, 0xffffffffu}) {
    row_.set_position(position);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].position");
  }
  row_.set_position(0);
  for (const uint32_t salt : {65536u, 0xffffffffu}) {
    row_.set_draw_salt(salt);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].draw_salt");
  }
}

TEST_F(StepRowTest, AppendedTokens) {
  limits_.max_history = 2;
  row_.set_position(1);
  row_.add_append_tokens(0);
  row_.add_append_tokens(kLive - 1);
  MustParse();
  for (const uint32_t token : {kLive, kVocabulary, 0xffffffffu}) {
    row_.set_append_tokens(1, token);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].append_tokens[1]");
  }
  row_.set_append_tokens(1, 0);
  row_.add_append_tokens(0);
  ExpectRefused(Reason::kTooMany, "step.rows[2].append_tokens");
}

TEST_F(StepRowTest, MaskRow) {
  for (const uint32_t mask_row : {2u, 0xffffffffu}) {
    row_.mutable_mask()->set_mask_row(mask_row);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].mask.mask_row");
  }
  shape_.mask_payload.reset();
  shape_.mask_rows = 0;
  row_.mutable_mask()->set_mask_row(0);
  ExpectRefused(Reason::kMissingField, "step.masks");
  row_.mutable_mask()->clear_kind();
  ExpectRefused(Reason::kMissingField, "step.rows[2].mask.kind");
}

TEST_F(StepRowTest, AllowedTokensAreASet) {
  auto& tokens = *row_.mutable_mask()->mutable_allowed_tokens();
  EXPECT_TRUE(MustParse().has_allowed_tokens) << "the empty set allows nothing";
  for (const uint32_t token : {7u, 3u, 7u, kLive - 1}) tokens.add_tokens(token);
  EXPECT_EQ(MustParse().allowed_tokens, (std::vector<uint32_t>{3, 7, kLive - 1}));
  for (const uint32_t token : {kLive, 0xffffffffu}) {
    tokens.set_tokens(1, token);
    ExpectRefused(Reason::kOutOfRange, "step.rows[2].mask.allowed_tokens.tokens[1]");
  }
  tokens.set_tokens(1, 0);
  limits_.max_listed_tokens = 3;
  ExpectRefused(Reason::kTooMany, "step.rows[2].mask.allowed_tokens.tokens");
}

TEST_F(StepRowTest, NotBuilt) {
  const std::vector<std::pair<std::string, std::function<void(v1::StepRow*)>>> cases = {
      {"score", [](auto* r) { r->mutable_score(); }},
      {"verify_chain", [](auto* r) { r->mutable_verify_chain(); }},
      {"verify_tree", [](auto* r) { r->mutable_verify_tree(); }},
      {"checkpoint", [](auto* r) { r->set_checkpoint("x"); }},
      {"mask.uploaded_mask_id", [](auto* r) { r->mutable_mask()->set_uploaded_mask_id(1); }},
  };
  for (const auto& [field, change] : cases) {
    const v1::StepRow saved = row_;
    change(&row_);
    ExpectRefused(Reason::kNotImplemented, "step.rows[2]." + field);
    row_ = saved;
  }
}

// A retry is recognised by this: whatever may change the answer changes the digest, and nothing else does.
TEST_F(StepRowTest, DigestSeesEveryOption) {
  row_.set_truncate_to(5);
  row_.add_append_tokens(1);
  row_.mutable_mask()->mutable_allowed_tokens()->add_tokens(3);
  const uint64_t digest = MustParse().intent.options_digest;
  EXPECT_EQ(MustParse().intent.options_digest, digest);
  const std::vector<std::pair<std::string, std::function<void(v1::StepRow*)>>> changes = {
      {"position", [](auto* r) { r->set_position(10); }},
      {"history_hash", [](auto* r) { r->set_history_hash(78); }},
      {"no history_hash", [](auto* r) { r->clear_history_hash(); }},
      {"truncate_to", [](auto* r) { r->set_truncate_to(6); }},
      {"no truncate_to", [](auto* r) { r->clear_truncate_to(); }},
      {"append_tokens", [](auto* r) { r->set_append_tokens(0, 2); }},
      {"more append_tokens", [](auto* r) { r->add_append_tokens(1); }},
      {"draw_salt", [](auto* r) { r->set_draw_salt(1); }},
      {"no mask", [](auto* r) { r->clear_mask(); }},
      {"another kind of mask", [](auto* r) { r->mutable_mask()->set_mask_row(0); }},
      {"allowed_tokens", [](auto* r) { r->mutable_mask()->mutable_allowed_tokens()->set_tokens(0, 4); }},
      {"no allowed_tokens", [](auto* r) { r->mutable_mask()->mutable_allowed_tokens()->clear_tokens(); }},
  };
  const v1::StepRow saved = row_;
  for (const auto& [name, change] : changes) {
    change(&row_);
    EXPECT_NE(MustParse().intent.options_digest, digest) << name;
    row_ = saved;
  }
  row_.set_step_id(6);
  row_.set_tensor_row(1);
  row_.set_request_id("b");
  EXPECT_EQ(MustParse().intent.options_digest, digest);
}

}  // namespace
}  // namespace sortition::service
