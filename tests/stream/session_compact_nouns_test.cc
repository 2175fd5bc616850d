// Every answer that a whole row can have, from compact rows that decide it: a test for each.
#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/stream/compact_fixture.h"

namespace sortition::service::session_compact_nouns_test {
namespace {

constexpr uint32_t kVocabulary = 1500;  // more tokens than a refusal names
constexpr uint32_t kFirst = 200;

class SessionCompactNouns : public CompactFixture {
 protected:
  using AddTask = std::function<void(StepBuilder*, v1::StepRow*)>;

  // Opens a text on both streams.
  void Open(const std::function<void(v1::OpenSequence*)>& change) {
    open_ = MakeOpen("a", ++epoch_, kVocabulary);
    open_.set_seed(11);
    open_.mutable_parameters()->set_temperature(0.8f);
    open_.mutable_parameters()->set_top_k(30);
    change(&open_);
    const v1::OpenedState state = whole_.MustOpen(open_);
    EXPECT_EQ(compact_.MustOpen(open_).history_hash(), state.history_hash());
    hash_ = state.history_hash();
    is_stateful_ = state.stateful();
    position_ = open_.history().tokens_size();
  }

  std::string Logits() { return RandomLogits(kernels::DType::kF32, kVocabulary, &random_); }

  // Steps the text in both forms, `positions` rows of logits, and expects one answer without a refusal.
  v1::RowResult ExpectEqual(uint32_t positions, const AddTask& add) {
    StepBuilder builder(++batch_, kVocabulary);
    v1::StepRow& row = builder.AddRow("a", ++step_id_, position_, Logits());
    for (uint32_t i = 1; i < positions; ++i) builder.AddTensorRow(Logits());
    if (is_stateful_) row.set_history_hash(hash_);
    add(&builder, &row);
    const v1::StreamRequest step = builder.Build();
    const std::vector<v1::RowResult> expected = whole_.Run(step);
    CompactChoice choice{PlainRowParameters(open_.parameters()), kVocabulary, kFirst};
    choice.sum = open_.parameters().phases().empty();
    choice.named.assign(positions, named_);
    const std::optional<CompactChoice> choices[] = {choice};
    compact_step_ = WithCompactRows(step, choices);
    const v1::RowResult result = RunOne(compact_step_);
    EXPECT_EQ(expected.size(), 1u);
    if (expected.empty()) return {};
    EXPECT_FALSE(result.has_error()) << result.ShortDebugString();
    EXPECT_EQ(result.SerializeAsString(), expected[0].SerializeAsString()) << expected[0].ShortDebugString();
    if (result.has_draw()) {
      tokens_.push_back(result.draw().token());
      hash_ = result.draw().history_hash();
    }
    for (const v1::Position& position : result.verify().positions()) tokens_.push_back(position.token());
    if (result.has_verify()) hash_ = result.verify().history_hash();
    position_ = static_cast<uint32_t>(open_.history().tokens_size() + tokens_.size());
    return result;
  }
  void ExpectEqualDraws(int steps) {
    for (int i = 0; i < steps; ++i) ExpectEqual(1, [](auto*, auto*) {});
  }

  StreamWorker whole_{engine_.get(), {.tenant = "whole"}};
  std::mt19937_64 random_{5};
  v1::OpenSequence open_;
  v1::StreamRequest compact_step_;
  std::vector<uint32_t> tokens_;  // drawn since Open
  std::vector<uint32_t> named_;   // stated besides the first tokens
  uint64_t epoch_ = 0;
  uint64_t step_id_ = 0;
  uint64_t hash_ = 0;
  uint32_t position_ = 0;
  bool is_stateful_ = false;
};

TEST_F(SessionCompactNouns, SequencesEqualWhole) {
  Open([](auto* open) {
    for (uint32_t token = 0; token < 40; ++token) open->mutable_history()->add_tokens(7 * token);
    open->mutable_parameters()->set_repetition_penalty(1.2f);
    open->mutable_parameters()->set_presence_penalty(0.5f);
    open->mutable_parameters()->mutable_dry()->set_multiplier(0.8f);
  });
  EXPECT_TRUE(is_stateful_);
  ExpectEqualDraws(6);
}

TEST_F(SessionCompactNouns, DraftsAtEveryPositionEqualWhole) {
  for (const auto mode : {v1::VERIFY_MODE_COUPLED, v1::VERIFY_MODE_REJECTION, v1::VERIFY_MODE_BLOCK}) {
    Open([](auto* open) { open->mutable_parameters()->set_top_k(4); });
    for (int round = 0; round < 8; ++round) {
      tokens_.clear();
      ExpectEqual(4, [&](StepBuilder* builder, v1::StepRow* row) {
        v1::VerifyDraft& draft = *row->mutable_verify_draft();
        draft.set_mode(mode);
        draft.set_return_probabilities(true);
        for (uint32_t i = 0; i < 3; ++i) {
          draft.add_draft_tokens(i);
          if (mode == v1::VERIFY_MODE_BLOCK) {
            const uint32_t at = builder->AddDraftRow(std::vector<float>(kVocabulary, 1.0f / kVocabulary));
            if (i == 0) draft.set_draft_row(at);
          }
        }
      });
      position_ = 0;
    }
  }
}

TEST_F(SessionCompactNouns, TreesEqualWhole) {
  Open([](auto* open) { open->mutable_parameters()->set_top_k(4); });
  ExpectEqual(4, [](StepBuilder*, v1::StepRow* row) {
    v1::VerifyTree& tree = *row->mutable_verify_tree();
    tree.set_mode(v1::VERIFY_MODE_COUPLED);
    for (int i = 0; i < 3; ++i) {
      tree.add_draft_tokens(static_cast<uint32_t>(i));
      tree.add_parents(i - 2);
    }
    tree.set_parents(0, -1);
  });
}

TEST_F(SessionCompactNouns, ScoresEqualWhole) {
  Open([](auto* open) { open->mutable_parameters()->mutable_processed_logprobs()->set_top(3); });
  const v1::RowResult result = ExpectEqual(3, [](StepBuilder*, v1::StepRow* row) {
    for (const uint32_t token : {4u, 5u, 6u}) row->mutable_score()->add_tokens(token);
  });
  EXPECT_EQ(result.score().positions_size(), 3);
}

TEST_F(SessionCompactNouns, MasksEqualWhole) {
  Open([](auto*) {});
  v1::StreamRequest upload;
  v1::UploadMask& mask = *upload.mutable_upload_mask();
  mask.set_mask_id(1);
  mask.set_vocabulary_size(kVocabulary);
  mask.mutable_mask()->set_rows(1);
  mask.mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
  upload.add_payloads(std::string((kVocabulary + 31) / 32 * 4, '\x7f'));
  whole_.Send(upload);
  compact_.Send(upload);
  ExpectEqual(1, [](StepBuilder* builder, v1::StepRow* row) {
    std::vector<bool> allowed(kVocabulary, true);
    for (uint32_t id = 0; id < kVocabulary; id += 5) allowed[id] = false;
    row->mutable_mask()->set_mask_row(builder->AddMask(allowed));
  });
  ExpectEqual(1, [](StepBuilder*, v1::StepRow* row) { row->mutable_mask()->set_uploaded_mask_id(1); });
  ExpectEqual(1, [](StepBuilder*, v1::StepRow* row) {
    for (uint32_t token = 0; token < 300; ++token) row->mutable_mask()->add_banned_tokens(token);
  });
  ExpectEqual(1, [](StepBuilder*, v1::StepRow* row) {
    for (uint32_t token = 0; token < 1400; ++token) {
      row->mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
    }
  });
}

TEST_F(SessionCompactNouns, LogprobsEqualWhole) {
  Open([](auto* open) {
    open->mutable_parameters()->mutable_raw_logprobs()->set_top(5);
    open->mutable_parameters()->mutable_processed_logprobs()->set_top(3);
    open->mutable_parameters()->mutable_tempered_logprobs()->set_top(4);
    open->mutable_parameters()->set_entropy(true);
  });
  ExpectEqualDraws(4);
}

TEST_F(SessionCompactNouns, KeptSetsEqualWhole) {
  Open([](auto* open) {
    open->mutable_parameters()->mutable_kept_set()->set_tokens(true);
    open->mutable_parameters()->mutable_kept_set()->set_count(true);
    open->mutable_parameters()->set_kept_log_mass(true);
  });
  const v1::RowResult result = ExpectEqual(1, [](auto*, auto*) {});
  EXPECT_EQ(result.draw().kept_tokens_size(), 30);
}

// Phases with other temperatures, in which a token is forced.
TEST_F(SessionCompactNouns, PhasesEqualWhole) {
  Open([](auto* open) {
    open->mutable_history();
    v1::Phase& first = *open->mutable_parameters()->add_phases();
    first.set_max_tokens(3);
    first.add_then(20);
    first.mutable_parameters()->set_temperature(0.4f);
    first.mutable_parameters()->set_top_k(10);
    v1::Phase& second = *open->mutable_parameters()->add_phases();
    second.add_begin(20);
    second.add_end(21);
    second.mutable_parameters()->set_min_p(0.02f);
    second.mutable_parameters()->set_top_k(10);
  });
  named_ = {20};  // a forced token is not always among the first
  ExpectEqualDraws(8);
  ASSERT_EQ(tokens_.size(), 8u);
  EXPECT_EQ(tokens_[3], 20u);
}

TEST_F(SessionCompactNouns, RetryRepeatsTheAnswer) {
  Open([](auto* open) {
    open->mutable_history();
    open->mutable_parameters()->set_presence_penalty(0.5f);
  });
  const v1::RowResult first = ExpectEqual(1, [](auto*, auto*) {});
  EXPECT_EQ(RunOne(compact_step_).SerializeAsString(), first.SerializeAsString());
  ExpectEqualDraws(1);
}

// The sequence is lost and its history replayed: the text continues as with whole rows.
TEST_F(SessionCompactNouns, ReplayContinuesTheText) {
  const auto with = [&](const std::vector<uint32_t>& said) {
    return [said](v1::OpenSequence* open) {
      open->mutable_history()->set_prompt_length(0);
      for (const uint32_t token : said) open->mutable_history()->add_tokens(token);
      open->mutable_parameters()->set_presence_penalty(0.5f);
      open->mutable_parameters()->set_repetition_penalty(1.3f);
    };
  };
  Open(with({}));
  ExpectEqualDraws(4);
  const std::vector<uint32_t> said = tokens_;
  const uint64_t hash = hash_;
  tokens_.clear();
  Open(with(said));
  EXPECT_EQ(hash_, hash);
  ExpectEqualDraws(4);
}

}  // namespace
}  // namespace sortition::service::session_compact_nouns_test
