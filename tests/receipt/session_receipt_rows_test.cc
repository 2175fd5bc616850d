// Receipts of rows that were drawn: drawn again from the logits.
#include <gtest/gtest.h>

#include <set>

#include "client/receipts/receipt_rows.h"
#include "tests/receipt/receipts_fixture.h"

namespace sortition::service::session_receipt_rows_test {
namespace {

using client::ReceiptCheck;
using testing::StepBuilder;

// Rows of a text whose penalties look at its history, drawn, and then again from the logits.
class SessionReceiptRows : public SessionReceipts {
 protected:
  static constexpr uint32_t kTokens = 40;

  void DrawText(const v1::SamplingParameters& more = {}) {
    Begin();
    v1::OpenSequence open = Open();
    open.mutable_parameters()->MergeFrom(more);
    open.mutable_parameters()->set_repetition_penalty(1.3f);
    open.mutable_parameters()->set_frequency_penalty(0.2f);
    for (const uint32_t token : {5u, 6u, 7u}) open.mutable_history()->add_tokens(token);
    open.mutable_history()->set_prompt_length(3);
    uint64_t hash = MustOpen(open).history_hash();
    for (uint32_t i = 0; i < kTokens; ++i) {
      StepBuilder step(i + 1, kModelVocabulary);
      logits_ += LogitsAfter({}, i);
      step.AddRow("a", i + 1, 3 + i, LogitsAfter({}, i)).set_history_hash(hash);
      const v1::DrawResult draw = Run(step).draw();
      hash = draw.history_hash();
      phases_.insert(draw.phase());
    }
  }
  // Returns the counts, and the problems by name.
  std::pair<client::RowCounts, std::map<std::string, uint64_t>> Compare(const std::string& logits,
                                                                        std::optional<double> tolerance) {
    const std::string path = folder_.path() + "/logits";
    std::ofstream(path, std::ios::binary) << logits;
    client::ReceiptRows rows({path, v1::DTYPE_F32, {5, 6, 7}, tolerance, ""});
    std::optional<ReceiptCheck> check;
    check.emplace(ReceiptCheck::Options{
        {}, seeds_, [&](const std::string& id, const client::CheckedChain& chain, const Receipt& receipt) {
          rows.Take(id, chain, receipt, &*check);
        }});
    check->Read(records_);
    check->Finish();
    EXPECT_TRUE(rows.status().ok()) << rows.status();
    return {rows.counts(), check->problem_counts()};
  }
  // Returns the logits with the rounding of another machine.
  std::string Recomputed(float error) const {
    std::vector<float> logits(logits_.size() / sizeof(float));
    std::memcpy(logits.data(), logits_.data(), logits_.size());
    for (size_t i = 0; i < logits.size(); ++i) logits[i] += i % 2 == 0 ? error : -error;
    return testing::F32Bytes(logits);
  }

  std::string logits_;
  std::set<uint32_t> phases_;  // phases in which tokens were drawn
};

TEST_F(SessionReceiptRows, SameLogitsAgree) {
  DrawText();
  const auto [counts, problems] = Compare(logits_, std::nullopt);
  EXPECT_EQ(counts.compared, kTokens);
  EXPECT_EQ(counts.agreed, kTokens);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(Compare(logits_.substr(0, 7 * 4 * kModelVocabulary), std::nullopt).first.compared, 7u);
}

// Every receipt states its token's phase. Its draw and its row are checked with the phase's parameters.
TEST_F(SessionReceiptRows, RowsInPhasesAgree) {
  v1::SamplingParameters parameters;
  v1::LogitBias& bias = *parameters.add_logit_bias();  // so that the second phase begins
  bias.set_token(11);
  bias.set_bias(8);
  v1::Phase& first = *parameters.add_phases();
  first.set_max_tokens(9);
  first.add_then(10);
  first.mutable_parameters()->set_temperature(0.3f);
  v1::Phase& second = *parameters.add_phases();
  second.add_begin(11);
  second.set_max_tokens(12);
  second.add_then(12);
  second.mutable_parameters()->set_temperature(0);
  second.mutable_parameters()->set_frequency_penalty(2);
  DrawText(parameters);
  EXPECT_EQ(phases_, (std::set<uint32_t>{0, 1, 2}));
  const auto [counts, problems] = Compare(logits_, std::nullopt);
  EXPECT_EQ(counts.agreed, kTokens);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(Check({records_}).counts().drawn, kTokens);
}

TEST(ReceiptRecords, PhaseIsAtTheEnd) {
  Receipt receipt;
  receipt.kept_count = 1;
  const std::string outside = EncodeBody(receipt);
  receipt.phase = 3;
  const std::string inside = EncodeBody(receipt);
  EXPECT_EQ(inside.size(), outside.size() + 4);
  EXPECT_EQ(DecodeReceipt(inside), receipt);
  EXPECT_EQ(DecodeReceipt(inside.substr(0, inside.size() - 4) + std::string(4, '\0')), std::nullopt);
  EXPECT_EQ(DecodeReceipt(outside)->phase, 0u);
}

TEST_F(SessionReceiptRows, OtherLogitsDiffer) {
  DrawText();
  const auto [counts, problems] = Compare(Recomputed(0.01f), std::nullopt);
  EXPECT_EQ(counts.agreed, 0u);
  EXPECT_EQ(problems.at("wrong_row"), kTokens);
}

TEST_F(SessionReceiptRows, RecomputedLogitsAgreeWithinMargin) {
  DrawText();
  EXPECT_EQ(Compare(Recomputed(0.01f), 0.1).first.agreed, kTokens);
  EXPECT_LT(Compare(Recomputed(1), 0.1).first.agreed, kTokens);
}

}  // namespace
}  // namespace sortition::service::session_receipt_rows_test
