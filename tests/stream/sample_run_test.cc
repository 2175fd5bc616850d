// Unary calls: the tokens of a stream, without one.
#include "service/stream/sample_run.h"

#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "service/text/cost.h"
#include "service/wire/compile_parameters.h"
#include "tests/support/session.h"

namespace sortition::service::sample_run_test {
namespace {

constexpr uint32_t kWidth = 50;

class SampleRunTest : public ::testing::Test {
 protected:
  static v1::SampleRequest Rows(uint32_t rows) {
    std::mt19937_64 random(7);
    v1::SampleRequest request;
    request.set_dtype(v1::DTYPE_F32);
    request.set_vocabulary_size(kWidth);
    for (uint32_t i = 0; i < rows; ++i) {
      *request.mutable_logits() += RandomLogits(kernels::DType::kF32, kWidth, &random);
      v1::SampleRow& row = *request.add_rows();
      row.set_seed(i);
      row.set_position(3 * i);
    }
    return request;
  }

  SampleRun::Answer Call(const v1::SampleRequest& request, absl::Duration timeout = absl::InfiniteDuration()) {
    SampleRun run(engine_.get(), "default", std::make_shared<const v1::SampleRequest>(request), request.ByteSizeLong());
    SampleRun::Answer answer;
    absl::Notification done;
    run.Start(timeout, [&](SampleRun::Answer given) {
      answer = std::move(given);
      done.Notify();
    });
    for (pieces_ = 1; run.has_pieces(); ++pieces_) run.Continue();
    done.WaitForNotification();
    return answer;
  }
  v1::SampleResponse MustCall(const v1::SampleRequest& request) {
    SampleRun::Answer answer = Call(request);
    EXPECT_TRUE(std::holds_alternative<v1::SampleResponse>(answer)) << std::get<Refusal>(answer).message;
    return std::get<v1::SampleResponse>(std::move(answer));
  }
  void ExpectRefused(const v1::SampleRequest& request, Reason reason, const std::string& field) {
    const SampleRun::Answer answer = Call(request);
    ASSERT_TRUE(std::holds_alternative<Refusal>(answer)) << field;
    EXPECT_EQ(std::get<Refusal>(answer).reason, reason) << field;
    EXPECT_EQ(std::get<Refusal>(answer).field, field);
  }

  TestEngine engine_ = TestEngine::OnCpu();
  int pieces_ = 0;  // of the last call
};

TEST_F(SampleRunTest, TokensAreThoseOfAStream) {
  constexpr uint32_t kRows = 20;
  v1::SampleRequest request = Rows(kRows);
  for (v1::SampleRow& row : *request.mutable_rows()) {
    row.mutable_parameters()->set_temperature(1.5f);
    row.mutable_parameters()->set_top_k(30);
    row.mutable_parameters()->mutable_processed_logprobs()->set_top(3);
    row.mutable_parameters()->mutable_kept_set()->set_tokens(true);
    row.set_draw_salt(5);
  }
  const v1::SampleResponse response = MustCall(request);
  ASSERT_EQ(response.rows_size(), static_cast<int>(kRows));
  StreamWorker worker(engine_.get());
  for (uint32_t i = 0; i < kRows; ++i) {
    const auto index = static_cast<int>(i);
    const std::string id = std::to_string(i);
    v1::OpenSequence open = MakeOpen(id, 1, kWidth);
    open.set_seed(i);
    *open.mutable_parameters() = request.rows(index).parameters();
    worker.MustOpen(open);
    StepBuilder step(i + 1, kWidth);
    step.AddRow(id, 1, 3 * i, request.logits().substr(i * kWidth * sizeof(float), kWidth * sizeof(float)))
        .set_draw_salt(5);
    const auto results = worker.Run(step.Build());
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(response.rows(index).row(), i);
    EXPECT_EQ(response.seeds(index), i);
    EXPECT_EQ(response.rows(index).draw().SerializeAsString(), results[0].draw().SerializeAsString());
  }
}

TEST_F(SampleRunTest, DrawnSeedRepeatsToken) {
  v1::SampleRequest request = Rows(8);
  for (v1::SampleRow& row : *request.mutable_rows()) row.clear_seed();
  const v1::SampleResponse first = MustCall(request);
  for (int i = 0; i < 8; ++i) request.mutable_rows(i)->set_seed(first.seeds(i));
  EXPECT_EQ(MustCall(request).SerializeAsString(), first.SerializeAsString());
}

TEST_F(SampleRunTest, BadRowFailsAlone) {
  v1::SampleRequest request = Rows(6);
  request.mutable_rows(1)->mutable_parameters()->set_repetition_penalty(2);
  request.mutable_rows(2)->mutable_parameters()->set_top_p(3);
  request.mutable_rows(3)->GetReflection()->MutableUnknownFields(request.mutable_rows(3))->AddVarint(99, 1);
  request.mutable_rows(4)->set_draw_salt(1 << 20);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  request.mutable_logits()->replace(5 * kWidth * sizeof(float), sizeof(float), reinterpret_cast<const char*>(&nan),
                                    sizeof(float));
  const v1::SampleResponse response = MustCall(request);
  EXPECT_TRUE(response.rows(0).has_draw());
  ExpectError(response.rows(1), Reason::kContradiction, "rows[1].parameters.repetition_penalty");
  ExpectError(response.rows(2), Reason::kOutOfRange, "rows[2].parameters.top_p");
  ExpectError(response.rows(3), Reason::kUnknownField, "rows[3].#99");
  ExpectError(response.rows(4), Reason::kOutOfRange, "rows[4].draw_salt");
  ExpectError(response.rows(5), Reason::kLogitNan, "rows[5]");
}

// gRPC's clients accept 4 MiB by default. What a row may keep counts before it runs.
TEST_F(SampleRunTest, RowBeyondTheAnswersBytesIsRefused) {
  constexpr uint32_t kWide = 400'000;  // ids of three bytes
  v1::SampleRequest request = Rows(5);
  request.set_vocabulary_size(kWide);
  request.mutable_logits()->assign(size_t{5} * kWide * sizeof(float), '\0');
  for (v1::SampleRow& row : *request.mutable_rows()) row.mutable_parameters()->mutable_kept_set()->set_tokens(true);
  request.mutable_rows(4)->mutable_parameters()->set_top_k(40);
  const v1::SampleResponse response = MustCall(request);
  for (const int row : {0, 1, 2, 4}) EXPECT_TRUE(response.rows(row).has_draw()) << row;
  EXPECT_EQ(response.rows(0).draw().kept_tokens_size(), static_cast<int>(kWide));
  ExpectError(response.rows(3), Reason::kTooMany, "rows[3].parameters.kept_set");
  EXPECT_EQ(response.rows(3).error().limit(), "max_sample_bytes 4194304");
  EXPECT_LE(response.ByteSizeLong(), kMaxSampleBytes);
}

TEST_F(SampleRunTest, ListedLogprobsCountToo) {
  constexpr int kRows = 250;
  v1::SampleRequest request = Rows(kRows);
  request.set_vocabulary_size(kernels::kMaxTopLogprobs);
  request.mutable_logits()->assign(size_t{kRows} * kernels::kMaxTopLogprobs * sizeof(float), '\0');
  for (v1::SampleRow& row : *request.mutable_rows()) {
    v1::SamplingParameters& parameters = *row.mutable_parameters();
    for (auto* logprobs : {parameters.mutable_raw_logprobs(), parameters.mutable_processed_logprobs(),
                           parameters.mutable_tempered_logprobs()}) {
      logprobs->set_top(kernels::kMaxTopLogprobs);
    }
  }
  const v1::SampleResponse response = MustCall(request);
  EXPECT_EQ(response.rows(0).draw().tempered().top_tokens_size(), static_cast<int>(kernels::kMaxTopLogprobs));
  ExpectError(response.rows(kRows - 1), Reason::kTooMany, absl::StrCat("rows[", kRows - 1, "].parameters"));
  EXPECT_LE(response.ByteSizeLong(), kMaxSampleBytes);
}

// Megabytes of options once kept the thread from its streams for a quarter of a second.
TEST_F(SampleRunTest, LongOptionsAreTakenInPieces) {
  constexpr int kRows = 4;
  constexpr uint32_t kWide = 30'000;
  v1::SampleRequest request = Rows(kRows);
  request.set_vocabulary_size(kWide);
  request.mutable_logits()->assign(size_t{kRows} * kWide * sizeof(float), '\0');
  uint64_t price = 0;
  for (v1::SampleRow& row : *request.mutable_rows()) {
    for (uint32_t token = 0; token < kWide; ++token) {
      v1::LogitBias& bias = *row.mutable_parameters()->add_logit_bias();
      bias.set_token(token);
      bias.set_bias(1);
    }
    price += price::kParameterByte * row.parameters().ByteSizeLong();
  }
  ASSERT_GE(price, kRows * kPieceWork) << "one row is more than a piece";
  const v1::SampleResponse response = MustCall(request);
  for (const v1::RowResult& row : response.rows()) EXPECT_TRUE(row.has_draw()) << row.row();
  EXPECT_EQ(pieces_, kRows + 1) << "the first one has read the message";
  EXPECT_GE(engine_->ledger().work(), price);
}

TEST_F(SampleRunTest, OptionsOfTooMuchWorkAreRefusedByName) {
  v1::SampleRequest request = Rows(2);
  v1::SamplingParameters& parameters = *request.mutable_rows(1)->mutable_parameters();
  while (CompileCost(parameters) <= kMaxPieceWork) {
    for (int i = 0; i < 10'000; ++i) parameters.add_logit_bias()->set_bias(1);
  }
  const v1::SampleResponse response = MustCall(request);
  EXPECT_TRUE(response.rows(0).has_draw());
  ExpectError(response.rows(1), Reason::kTooMany, "rows[1].parameters");
  EXPECT_EQ(response.rows(1).error().limit(), absl::StrCat("max_piece_work ", kMaxPieceWork));
}

TEST_F(SampleRunTest, RowsMayAllFail) {
  v1::SampleRequest request = Rows(2);
  for (v1::SampleRow& row : *request.mutable_rows()) row.mutable_parameters()->mutable_adaptive_p()->set_target(0.5f);
  const v1::SampleResponse response = MustCall(request);
  ExpectError(response.rows(0), Reason::kContradiction, "rows[0].parameters.adaptive_p");
  ExpectError(response.rows(1), Reason::kContradiction, "rows[1].parameters.adaptive_p");
}

TEST_F(SampleRunTest, ErrorOfAllRowsRefusesTheCall) {
  ExpectRefused(v1::SampleRequest(), Reason::kMissingField, "rows");
  v1::SampleRequest request = Rows(2);
  request.mutable_logits()->pop_back();
  ExpectRefused(request, Reason::kSizeMismatch, "logits");
  request = Rows(2);
  request.clear_dtype();
  ExpectRefused(request, Reason::kMissingField, "dtype");
  request = Rows(2);
  request.set_dtype(static_cast<v1::DType>(9));
  ExpectRefused(request, Reason::kUnknownEnumValue, "dtype");
  request = Rows(2);
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(99, 1);
  ExpectRefused(request, Reason::kUnknownField, "#99");
  request = Rows(2);
  request.set_law_version(99);
  const v1::SampleResponse response = MustCall(request);
  ExpectError(response.rows(1), Reason::kUnsupportedLawVersion, "law_version");
}

TEST_F(SampleRunTest, RunMayEndBeforeItsRows) {
  TestEngine held = TestEngine::OnFake();
  const v1::SampleRequest request = Rows(1);
  bool is_done = false;
  {
    SampleRun run(held.get(), "default", std::make_shared<const v1::SampleRequest>(request), request.ByteSizeLong());
    run.Start(absl::Seconds(1), [&](const SampleRun::Answer&) { is_done = true; });
  }
  held.fake().FinishAll();
  EXPECT_FALSE(is_done);
}

// Calls that took turns by the row would all hold results, and together have a share of the device for each.
TEST_F(SampleRunTest, CallsOfATenantEndInTurn) {
  TestEngine held = TestEngine::OnFake({}, {.max_batch_rows = 1});
  const v1::SampleRequest request = Rows(3);
  const auto shared = std::make_shared<const v1::SampleRequest>(request);
  std::vector<int> ended;
  std::vector<std::unique_ptr<SampleRun>> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(std::make_unique<SampleRun>(held.get(), "default", shared, request.ByteSizeLong()));
    runs.back()->Start(absl::InfiniteDuration(), [&ended, i](const SampleRun::Answer&) { ended.push_back(i); });
  }
  for (size_t rows = 1; rows <= 9; ++rows) {
    held.fake().Finish();
    EXPECT_EQ(ended.size(), rows / 3);
  }
  EXPECT_EQ(ended, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace sortition::service::sample_run_test
