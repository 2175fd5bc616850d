// Receipts of steps with masks: one hash for a set of tokens, at the token's position.
#include <gtest/gtest.h>

#include <fstream>

#include "client/receipts/receipt_rows.h"
#include "tests/receipt/receipts_fixture.h"

namespace sortition::service::session_receipt_masks_test {
namespace {

class SessionReceiptMasks : public SessionReceipts {
 protected:
  // Returns the mask that allows the tokens with the remainder `rest` by `step`.
  static std::vector<bool> EachOf(uint32_t step, uint32_t rest) {
    std::vector<bool> allowed(kModelVocabulary);
    for (uint32_t token = rest; token < kModelVocabulary; token += step) allowed[token] = true;
    return allowed;
  }
  static std::vector<uint32_t> WordsOf(const std::vector<bool>& allowed) {
    std::vector<uint32_t> words((kModelVocabulary + 31) / 32);
    for (uint32_t token = 0; token < kModelVocabulary; ++token) {
      if (allowed[token]) words[token / 32] |= 1u << token % 32;
    }
    return words;
  }
  static ReceiptHash HashOfMask(const std::vector<bool>& allowed) {
    return MaskHashOf(WordsOf(allowed), kModelVocabulary);
  }
  // Returns the receipts that the worker has got, which the verifier has found right.
  std::vector<Receipt> Receipts() {
    std::vector<Receipt> receipts;
    ReceiptCheck check({{}, seeds_, [&](const std::string&, const client::CheckedChain&, const Receipt& receipt) {
                          receipts.push_back(receipt);
                        }});
    check.Read(records_);
    check.Finish();
    EXPECT_TRUE(check.problems().empty());
    EXPECT_EQ(check.counts().drawn, receipts.size());
    return receipts;
  }
  v1::StepRow& AddRow(StepBuilder* step, uint32_t number) {
    rows_ += LogitsAfter({}, number);
    return step->AddRow("a", number + 1, number, LogitsAfter({}, number));
  }

  std::string rows_;
};

TEST_F(SessionReceiptMasks, EachFormHasOneHash) {
  Begin();
  MustOpen(Open());
  const std::vector<bool> allowed = EachOf(3, 1);
  const std::vector<uint32_t> words = WordsOf(allowed);
  v1::StreamRequest upload;
  upload.mutable_upload_mask()->set_mask_id(5);
  upload.mutable_upload_mask()->set_vocabulary_size(kModelVocabulary);
  upload.mutable_upload_mask()->mutable_mask()->set_rows(1);
  upload.mutable_upload_mask()->mutable_mask()->mutable_source()->mutable_inline_()->set_payload(0);
  upload.add_payloads(std::string(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t)));
  worker_->Send(upload);
  for (uint32_t i = 0; i < 4; ++i) {
    StepBuilder step(i + 1, kModelVocabulary);
    v1::StepRow& row = AddRow(&step, i);
    if (i == 0) row.mutable_mask()->set_mask_row(step.AddMask(allowed));
    if (i == 1) row.mutable_mask()->set_uploaded_mask_id(5);
    for (uint32_t token = 0; i == 2 && token < kModelVocabulary; ++token) {
      if (allowed[token]) row.mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
    }
    EXPECT_TRUE(Run(step).has_draw());
  }
  const std::vector<Receipt> receipts = Receipts();
  ASSERT_EQ(receipts.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(receipts[i].mask, HashOfMask(allowed)) << i;
  EXPECT_FALSE(receipts[3].mask.has_value());

  // Rows agree where the verifier has the mask, and are not run where it lacks it.
  const std::string logits = folder_.path() + "/logits", masks = folder_.path() + "/masks";
  std::ofstream(logits, std::ios::binary) << rows_;
  std::ofstream(masks, std::ios::binary) << upload.payloads(0);
  for (const bool has_mask : {true, false}) {
    client::ReceiptRows rows({logits, v1::DTYPE_F32, {}, std::nullopt, "", has_mask ? masks : ""});
    std::optional<ReceiptCheck> check;
    check.emplace(ReceiptCheck::Options{
        {}, seeds_, [&](const std::string& id, const client::CheckedChain& chain, const Receipt& receipt) {
          rows.Take(id, chain, receipt, &*check);
        }});
    check->Read(records_);
    EXPECT_TRUE(rows.status().ok()) << rows.status();
    EXPECT_EQ(rows.counts().agreed, has_mask ? 4u : 1u);
    EXPECT_EQ(rows.counts().no_mask, has_mask ? 0u : 3u);
    EXPECT_TRUE(check->problems().empty());
  }
}

// Tokens that a step bans are no part of its mask, in any form of the mask.
TEST_F(SessionReceiptMasks, BannedTokensAreNotInIt) {
  Begin();
  MustOpen(Open());
  const std::vector<bool> asked = EachOf(3, 1);
  std::vector<bool> third = asked, all(kModelVocabulary, true);
  for (uint32_t i = 0; i < 3; ++i) {
    StepBuilder step(i + 1, kModelVocabulary);
    v1::RowMask& mask = *AddRow(&step, i).mutable_mask();
    if (i == 0) mask.set_mask_row(step.AddMask(asked));
    for (uint32_t token = 0; i == 1 && token < kModelVocabulary; ++token) {
      if (asked[token]) mask.mutable_allowed_tokens()->add_tokens(token);
    }
    for (const uint32_t token : {40u, 1u, 4u}) {
      mask.add_banned_tokens(token);
      third[token] = all[token] = false;
    }
    EXPECT_TRUE(Run(step).has_draw());
  }
  const std::vector<Receipt> receipts = Receipts();
  ASSERT_EQ(receipts.size(), 3u);
  EXPECT_EQ(receipts[0].mask, HashOfMask(third));
  EXPECT_EQ(receipts[1].mask, HashOfMask(third));
  EXPECT_EQ(receipts[2].mask, HashOfMask(all));
}

// Every accepted draft, and the token after it, has the mask of its position.
TEST_F(SessionReceiptMasks, DraftsHaveTheirOwn) {
  Begin();
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_top_k(1);
  MustOpen(open);
  // The same logits everywhere: the first token in order that a mask allows is drawn.
  const auto drawn_under = [&](const std::vector<bool>& mask, uint32_t id) {
    StepBuilder step(id, kModelVocabulary);
    step.AddRow("a", id, 0, LogitsAfter({}, 9)).mutable_mask()->set_mask_row(step.AddMask(mask));
    return Run(step).draw().token();
  };
  const std::vector<bool> masks[] = {EachOf(3, 0), EachOf(3, 1), EachOf(3, 2), EachOf(2, 1)};
  const uint32_t first = drawn_under(masks[0], 1), second = drawn_under(masks[2], 2);
  StepBuilder step(3, kModelVocabulary);
  v1::VerifyTree& tree = *step.AddRow("a", 3, 0, LogitsAfter({}, 9)).mutable_verify_tree();
  tree.set_mode(v1::VERIFY_MODE_COUPLED);
  for (int i = 0; i < 3; ++i) step.AddTensorRow(LogitsAfter({}, 9));
  // Draft 1 is accepted after the root, draft 0 is not, and draft 2 follows draft 1.
  tree.add_draft_tokens(first == 1 ? 2 : 1);
  tree.add_draft_tokens(first);
  tree.add_draft_tokens(second);
  for (const int parent : {-1, -1, 1}) tree.add_parents(parent);
  for (const size_t i : {0u, 1u, 2u, 3u}) tree.add_masks()->set_mask_row(step.AddMask(masks[i]));
  const v1::RowResult result = Run(step);
  ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
  EXPECT_EQ(result.verify().accepted(), 2u);
  const std::vector<Receipt> receipts = Receipts();
  ASSERT_EQ(receipts.size(), 5u);
  EXPECT_EQ(receipts[2].mask, HashOfMask(masks[0]));
  EXPECT_EQ(receipts[3].mask, HashOfMask(masks[2]));
  EXPECT_EQ(receipts[4].mask, HashOfMask(masks[3]));
}

// A repeated answer states the mask again, even if the sequence allows fewer tokens than the step.
TEST_F(SessionReceiptMasks, RetriedStepStatesItAgain) {
  Begin();
  v1::OpenSequence open = Open();
  open.mutable_parameters()->set_presence_penalty(0.5f);
  for (uint32_t token = 0; token < 20; ++token) open.mutable_parameters()->add_allowed_token_ids(token);
  open.mutable_history()->add_tokens(3);
  open.mutable_history()->set_prompt_length(1);
  const uint64_t hash = MustOpen(open).history_hash();
  for (int i = 0; i < 2; ++i) {
    StepBuilder step(1, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", 1, 1, LogitsAfter({}, 1));
    row.set_history_hash(hash);
    for (const uint32_t token : {4u, 5u, 40u}) row.mutable_mask()->mutable_allowed_tokens()->add_tokens(token);
    EXPECT_TRUE(Run(step).has_draw());
  }
  const std::vector<Receipt> receipts = Receipts();
  ASSERT_EQ(receipts.size(), 2u);
  const std::vector<uint32_t> allowed = {4, 5, 40};
  EXPECT_EQ(receipts[0].mask, MaskHashOfTokens(allowed, kModelVocabulary));
  EXPECT_EQ(receipts[1].mask, receipts[0].mask);
}

}  // namespace
}  // namespace sortition::service::session_receipt_masks_test
