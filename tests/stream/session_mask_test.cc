// Masks of a step: uploaded ones, their bounds and their end; masks that allow nothing; forced and stop tokens.

#include <functional>
#include <limits>

#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_mask_test {
namespace {

constexpr uint32_t kVocabulary = 70;

v1::StreamRequest MakeUpload(uint64_t id, const std::vector<uint32_t>& allowed, uint32_t vocabulary = kVocabulary) {
  std::vector<uint32_t> words((vocabulary + 31) / 32);
  for (const uint32_t token : allowed) words.at(token / 32) |= 1u << token % 32;
  v1::StreamRequest request;
  v1::UploadMask& upload = *request.mutable_upload_mask();
  upload.set_mask_id(id);
  upload.set_vocabulary_size(vocabulary);
  upload.mutable_mask()->set_rows(1);
  upload.mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
  request.add_payloads(std::string(reinterpret_cast<const char*>(words.data()), words.size() * 4));
  return request;
}

v1::StreamRequest MakeRelease(uint64_t id) {
  v1::StreamRequest request;
  request.mutable_upload_mask()->set_mask_id(id);
  return request;
}

class SessionMask : public ::testing::Test {
 protected:
  v1::MaskUploaded Upload(const v1::StreamRequest& request) { return Upload(&worker_, request); }
  static v1::MaskUploaded Upload(StreamWorker* worker, const v1::StreamRequest& request) {
    worker->Send(request);
    const auto response = worker->Await([](const auto& message) { return message.has_mask_uploaded(); });
    return response ? response->mask_uploaded() : v1::MaskUploaded();
  }
  // Draws for "a" from a row with the likeliest token `peak`, under mask `id`.
  v1::RowResult Masked(uint64_t id, uint32_t peak) {
    StepBuilder step(++batch_, kVocabulary);
    v1::StepRow& row = step.AddRow("a", batch_, 0, F32Peak(kVocabulary, peak));
    row.mutable_mask()->set_uploaded_mask_id(id);
    return worker_.Run(step.Build()).at(0);
  }

  TestEngine engine_ = TestEngine::OnCpu({.stream_masks = 3, .stream_mask_bytes = 30, .max_mask_bytes = 48});
  StreamWorker worker_{engine_.get()};
  uint64_t batch_ = 0;
};

TEST_F(SessionMask, UploadedMaskHoldsForItsSteps) {
  worker_.MustOpen(MakeOpen("a", 1, kVocabulary));
  ASSERT_FALSE(Upload(MakeUpload(7, {3, 69})).has_error());
  EXPECT_EQ(Masked(7, 69).draw().token(), 69u);
  EXPECT_NE(Masked(7, 68).draw().token(), 68u);
  // Replaced, then released.
  ASSERT_FALSE(Upload(MakeUpload(7, {5})).has_error());
  EXPECT_EQ(Masked(7, 69).draw().token(), 5u);
  ASSERT_FALSE(Upload(MakeRelease(7)).has_error());
  ExpectError(Masked(7, 69).error(), Reason::kUnknownMask, "step.rows[0].mask.uploaded_mask_id");
  EXPECT_FALSE(Upload(MakeRelease(7)).has_error());
  EXPECT_EQ(engine_.get()->masks().bytes(), 0u);
}

TEST_F(SessionMask, WrongMaskWidthIsRefusedByName) {
  worker_.MustOpen(MakeOpen("a", 1, kVocabulary));
  ASSERT_FALSE(Upload(MakeUpload(1, {3}, kVocabulary - 1)).has_error());
  ExpectError(Masked(1, 3).error(), Reason::kVocabularyMismatch, "step.rows[0].mask.uploaded_mask_id");
  const std::tuple<Reason, const char*, void (*)(v1::StreamRequest*, v1::UploadMask*)> cases[] = {
      {Reason::kSizeMismatch, "payloads[0]", [](auto*, auto* mask) { mask->set_vocabulary_size(kVocabulary + 32); }},
      {Reason::kOutOfRange, "upload_mask.mask.rows", [](auto*, auto* mask) { mask->mutable_mask()->set_rows(2); }},
      {Reason::kOutOfRange, "upload_mask.mask.source.inline.payload",
       [](auto*, auto* mask) { mask->mutable_mask()->mutable_source()->mutable_inline_()->set_payload(1); }},
      {Reason::kTooMany, "payloads", [](auto* request, auto*) { request->add_payloads("more"); }},
  };
  for (const auto& [reason, field, change] : cases) {
    v1::StreamRequest wrong = MakeUpload(2, {3});
    change(&wrong, wrong.mutable_upload_mask());
    ExpectError(Upload(wrong).error(), reason, field);
  }
  v1::StreamRequest wrong = MakeRelease(2);
  wrong.add_payloads("nothing refers to it");
  ExpectError(Upload(wrong).error(), Reason::kContradiction, "payloads[0]");
}

TEST_F(SessionMask, MasksAreBoundedAndEndWithStream) {
  for (const uint64_t id : {1u, 2u}) ASSERT_FALSE(Upload(MakeUpload(id, {})).has_error());
  ExpectError(Upload(MakeUpload(3, {})).error(), Reason::kTooMany, "upload_mask");  // 36 bytes
  ASSERT_FALSE(Upload(MakeUpload(3, {}, 32)).has_error());
  ExpectError(Upload(MakeUpload(4, {}, 1)).error(), Reason::kTooMany, "upload_mask");  // the fourth
  EXPECT_FALSE(Upload(MakeUpload(2, {5})).has_error()) << "in place of another there is room";
  EXPECT_EQ(engine_.get()->masks().bytes(), 28u);

  auto other = std::make_unique<StreamWorker>(engine_.get());
  ASSERT_FALSE(Upload(other.get(), MakeUpload(1, {})).has_error());
  ExpectError(Upload(other.get(), MakeUpload(2, {})).error(), Reason::kOverloaded, "upload_mask");
  worker_.Disconnect();
  EXPECT_EQ(engine_.get()->masks().bytes(), 12u);
  EXPECT_FALSE(Upload(other.get(), MakeUpload(2, {})).has_error());
}

// Each form of a mask is sent first once, and then in every other form.
TEST_F(SessionMask, RetryMayBringTheSameMaskInAnyForm) {
  ASSERT_FALSE(Upload(MakeUpload(1, {5, 6}, kStatefulVocabulary)).has_error());
  using Form = void (*)(StepBuilder*, v1::RowMask*);
  const auto list = [](StepBuilder*, v1::RowMask* mask) {
    for (const uint32_t token : {6u, 5u}) mask->mutable_allowed_tokens()->add_tokens(token);
  };
  const Form forms[] = {
      list,
      [](StepBuilder*, v1::RowMask* mask) { mask->set_uploaded_mask_id(1); },
      [](StepBuilder* step, v1::RowMask* mask) {
        std::vector<bool> bits(kStatefulVocabulary);
        bits[5] = bits[6] = true;
        mask->set_mask_row(step->AddMask(bits));
      },
      [](StepBuilder*, v1::RowMask* mask) {  // one of its tokens is banned, and one that it does not allow
        for (const uint32_t token : {5u, 6u, 7u}) mask->mutable_allowed_tokens()->add_tokens(token);
        for (const uint32_t token : {7u, 9u}) mask->add_banned_tokens(token);
      },
      [](StepBuilder*, v1::RowMask* mask) {
        for (uint32_t token = 0; token < kStatefulVocabulary; ++token) {
          if (token != 5 && token != 6) mask->add_banned_tokens(token);
        }
      },
  };
  uint64_t batch = 0;
  uint64_t epoch = 0;
  for (const Form first : forms) {
    const v1::OpenSequence open = StatefulOpen("a", ++epoch);
    worker_.MustOpen(open);
    const PlainSequence plain(open);
    const auto run = [&](Form form) {
      StepBuilder builder(++batch, kStatefulVocabulary);
      form(&builder, AddPeak(&builder, "a", 1, plain, 9).mutable_mask());
      return worker_.Run(builder.Build()).at(0);
    };
    const v1::RowResult answer = run(first);
    ASSERT_TRUE(answer.has_draw()) << answer.ShortDebugString();
    for (const Form again : forms) {
      EXPECT_EQ(run(again).draw().history_hash(), answer.draw().history_hash()) << answer.ShortDebugString();
    }
    const auto conflicts = [](StepBuilder*, v1::RowMask* mask) { mask->mutable_allowed_tokens()->add_tokens(5); };
    ExpectError(run(conflicts).error(), Reason::kStepConflict, "step.rows[0].step_id");
  }
}

// A mask that lets all tokens be drawn equals none.
TEST_F(SessionMask, RetryWithoutMaskEqualsOneThatAllowsAll) {
  const v1::OpenSequence open = StatefulOpen("a", 1);
  worker_.MustOpen(open);
  const PlainSequence plain(open);
  const v1::RowResult answer = worker_.Run(PeakStep(1, "a", 1, plain, 9)).at(0);
  StepBuilder builder(2, kStatefulVocabulary);
  v1::StepRow& row = AddPeak(&builder, "a", 1, plain, 9);
  row.mutable_mask()->set_mask_row(builder.AddMask(std::vector<bool>(kStatefulVocabulary, true)));
  EXPECT_EQ(worker_.Run(builder.Build()).at(0).draw().SerializeAsString(), answer.draw().SerializeAsString());
}

// Padding bits do not count.
TEST_F(SessionMask, EmptyMaskFailsItsRowByName) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.set_live_vocabulary_size(66);
  worker_.MustOpen(open);
  worker_.MustOpen(MakeOpen("b", 1, kVocabulary));
  ASSERT_FALSE(Upload(MakeUpload(1, {66, 69})).has_error());
  ExpectError(Masked(1, 3).error(), Reason::kNoLiveToken, "step.rows[0].mask");
  StepBuilder step(100, kVocabulary);
  step.AddRow("a", 100, 0, F32Peak(kVocabulary, 3))
      .mutable_mask()
      ->set_mask_row(step.AddMask(std::vector<bool>(kVocabulary)));
  step.AddRow("b", 100, 0, F32Peak(kVocabulary, 4));
  const std::vector<v1::RowResult> results = worker_.Run(step.Build());
  ExpectError(results.at(0).error(), Reason::kNoLiveToken, "step.rows[0].mask");
  EXPECT_EQ(results.at(1).draw().token(), 4u);
  // An empty list alone fails; if the list and the sequence's options exclude each other, neither is named alone.
  const auto listed = [&](uint64_t batch, const std::vector<uint32_t>& tokens) {
    StepBuilder listed_step(batch, kVocabulary);
    v1::StepRow& row = listed_step.AddRow("a", batch, 0, F32Peak(kVocabulary, 3));
    v1::TokenSequence& list = *row.mutable_mask()->mutable_allowed_tokens();
    list.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    return worker_.Run(listed_step.Build()).at(0);
  };
  ExpectError(listed(101, {}).error(), Reason::kNoLiveToken, "step.rows[0].mask");
  open.set_epoch(2);
  open.mutable_parameters()->add_allowed_token_ids(5);
  worker_.MustOpen(open);
  ExpectError(listed(102, {6}).error(), Reason::kNoLiveToken, "step.rows[0]");
  EXPECT_EQ(listed(103, {5}).draw().token(), 5u);
  open.mutable_parameters()->clear_allowed_token_ids();
  // If other options ban the tokens that the mask allows, the mask is not named.
  ASSERT_FALSE(Upload(MakeUpload(2, {3})).has_error());
  open.set_epoch(3);
  open.mutable_parameters()->add_banned_token_ids(3);
  worker_.MustOpen(open);
  ExpectError(Masked(2, 3).error(), Reason::kNoLiveToken, "step.rows[0]");
}

// No mask of the step applies to a token that a phase forces, so the refusal names none.
TEST_F(SessionMask, NoLiveTokenNamesTheForcedTokenThatLogitsMask) {
  v1::OpenSequence open = StatefulOpen("a", 1);
  open.mutable_parameters()->MergeFrom(ParametersOf("phases { begin: 3 max_tokens: 0 then: 2 }"));
  worker_.MustOpen(open);
  const PlainSequence plain(open);
  std::vector<float> logits(kStatefulVocabulary);
  logits[2] = -std::numeric_limits<float>::infinity();
  StepBuilder step(1, kStatefulVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, plain.position(), F32Bytes(logits));
  row.set_history_hash(plain.hash());
  row.mutable_mask()->add_banned_tokens(5);
  const v1::Error error = worker_.Run(step.Build()).at(0).error();
  EXPECT_EQ(error.reason(), v1::NO_LIVE_TOKEN);
  EXPECT_EQ(error.field(), "step.rows[0]");
  EXPECT_EQ(error.message(), "the logits mask token 2, which phase 1 forces");
}

TEST_F(SessionMask, NoLiveTokenNamesTheOptionsThatTookPart) {
  uint64_t epoch = 0;
  const auto message_of = [&](const char* parameters, const std::function<void(v1::RowMask*)>& mask) {
    v1::OpenSequence open = StatefulOpen("a", ++epoch);
    open.mutable_parameters()->MergeFrom(ParametersOf(parameters));
    worker_.MustOpen(open);
    StepBuilder step(++batch_, kStatefulVocabulary);
    mask(AddPeak(&step, "a", batch_, PlainSequence(open), 9).mutable_mask());
    const v1::Error error = worker_.Run(step.Build()).at(0).error();
    EXPECT_EQ(error.reason(), v1::NO_LIVE_TOKEN);
    return error.message();
  };
  const auto allows_stop = [](v1::RowMask* mask) { mask->mutable_allowed_tokens()->add_tokens(9); };
  const char* const held_back = "stop_token_ids: 9 min_tokens: 5";
  EXPECT_EQ(message_of(held_back, allows_stop), "every token is masked: min_tokens, mask.allowed_tokens");
  const auto bans_all_but_stop = [](v1::RowMask* mask) {
    for (uint32_t token = 0; token < kStatefulVocabulary; ++token) {
      if (token != 9) mask->add_banned_tokens(token);
    }
  };
  EXPECT_EQ(message_of(held_back, bans_all_but_stop),
            "no token is live beside the banned ones: min_tokens, mask.banned_tokens");
  EXPECT_EQ(message_of("allowed_token_ids: [8, 9] banned_token_ids: 9", allows_stop),
            "every token is masked: allowed_token_ids, banned_token_ids or bad_words, mask.allowed_tokens");
  // The history ends in 2, 3.
  EXPECT_EQ(message_of("bad_words { tokens: [3, 9] }", allows_stop),
            "every token is masked: bad_words, mask.allowed_tokens");
  EXPECT_EQ(message_of("phases { end: 7 parameters { allowed_token_ids: 8 } }", allows_stop),
            "every token is masked: allowed_token_ids in phase 1, mask.allowed_tokens");
}

TEST_F(SessionMask, StopAndForcedTokensAreInAnswers) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_history();
  *open.mutable_parameters() =
      ParametersOf("raw_logprobs {} stop_token_ids: 9 min_tokens: 2 phases { max_tokens: 1 then: 20 }");
  const v1::OpenedState state = worker_.MustOpen(open);
  EXPECT_TRUE(state.stateful());
  PlainSequence plain(open);
  const std::string logits = F32Peak(kVocabulary, 9);
  std::vector<uint32_t> tokens;
  for (uint64_t step = 1; step <= 3; ++step) {
    StepBuilder builder(step, kVocabulary);
    builder.AddRow("a", step, plain.position(), logits).set_history_hash(plain.hash());
    const v1::RowResult result = worker_.Run(builder.Build()).at(0);
    ASSERT_TRUE(result.has_draw()) << result.ShortDebugString();
    v1::DrawResult expected = plain.Draw({.logits = logits});
    plain.Append(expected.token());
    expected.set_history_hash(plain.hash());
    EXPECT_EQ(result.draw().SerializeAsString(), expected.SerializeAsString()) << result.ShortDebugString();
    tokens.push_back(result.draw().token());
    EXPECT_EQ(result.draw().finish_reason() == v1::FINISH_REASON_STOP_TOKEN, step == 3);
  }
  EXPECT_NE(tokens[0], 9u);
  EXPECT_EQ(tokens[1], 20u);
  EXPECT_EQ(tokens[2], 9u);
}

}  // namespace
}  // namespace sortition::service::session_mask_test
