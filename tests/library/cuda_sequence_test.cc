// Sequences that a device advances by itself: the host learns each answer three steps late, or replays a graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "tests/library/cuda_library.h"
#include "tests/support/scale.h"

namespace sortition::cuda_sequence_test {
namespace {

using kernels::LogitEdit;
using kernels::RowFault;
using kernels::RowOutput;
using kernels::RowParameters;
using ::testing::HasSubstr;

constexpr uint32_t kSequences = 6;
constexpr uint32_t kTokens = 1000;
constexpr uint32_t kLate = 3;  // steps

// A model: a row's logits follow from the token before them alone. Few tokens are likely, so that they come again. Rows
// of 0xffff make the model fail.
void WriteLogits(uint32_t row, int32_t token, std::byte* logits) {
  uint32_t state = 0x9e3779b9u * (row + 1) ^ (uint32_t(token) % 7 * 0x85ebca6bu);
  for (uint32_t i = 0; i < kTokens; ++i) {
    state = state * 1664525u + 1013904223u;
    const float logit = float(state >> 20) / 4096.0f * 4 + (i % 90 < 3 ? 3.0f : 0.0f);
    const auto bits = uint16_t(std::bit_cast<uint32_t>(logit) >> 16);
    std::memcpy(logits + 2 * i, &bits, sizeof(bits));
  }
}

// A sequence of a row.
struct Ask {
  RowOptions options;
  std::vector<LogitEdit> edits;
  std::vector<TokenCount> counts;
  kernels::NoiseKey noise;
  int32_t first = 5;       // the token before the first one
  int32_t nan_after = -1;  // draws before the model fails
};

// The plain sequence: the reference, step by step, with counts in a map.
class PlainSequence {
 public:
  PlainSequence(uint32_t row, const Ask& ask) : row_(row), ask_(ask), token_(ask.first) {
    EXPECT_TRUE(Compile(ask.options, &parameters_).ok());
    for (const auto& [token, count] : ask.counts) counts_[token] = count;
    state_ = kernels::InitialSamplerState(parameters_.chain);
  }

  RowOutput Step() {
    if (failed_.error != RowFault::kNone) return failed_;
    const law::SamplingParameters& p = ask_.options.parameters;
    std::map<uint32_t, LogitEdit> edits;
    for (const LogitEdit& edit : ask_.edits) edits[edit.token] = edit;
    for (const auto& [token, count] : counts_) {
      if (p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0) continue;
      edits[token].token = token;
      edits[token].flags |= LogitEdit::kRepeated;
      edits[token].penalty = PenaltyBits(p, count);
    }
    std::vector<LogitEdit> list;
    for (const auto& [token, edit] : edits) list.push_back(edit);
    std::vector<std::byte> logits(2 * kTokens);
    WriteLogits(row_, token_, logits.data());
    if (ask_.nan_after == int32_t(drawn_)) logits[2 * 33] = logits[2 * 33 + 1] = std::byte{0xff};
    kernels::RowRequest request;
    request.logits = logits.data();
    request.dtype = kernels::DType::kBF16;
    request.live_vocabulary = kTokens;
    request.parameters = &parameters_;
    request.noise = ask_.noise;
    request.noise.position += drawn_;
    request.edits = list;
    request.sampler_state = state_;
    const RowOutput output = law::SampleRowReference(request);
    if (output.error != RowFault::kNone) return failed_ = output;
    ++counts_[output.token];
    ++drawn_;
    token_ = int32_t(output.token);
    state_ = output.sampler_state;
    return output;
  }

  float Logprob(const RowOutput& output) const {
    if (!parameters_.raw_logprob || output.error != RowFault::kNone) return 0;
    return law::Logprob(output.raw, output.raw.chosen.bits, 1);
  }
  size_t repeated() const {
    size_t sum = 0;
    for (const auto& [token, count] : counts_) sum += count > 1;
    return sum;
  }

 private:
  const uint32_t row_;
  const Ask ask_;
  RowParameters parameters_;
  std::map<uint32_t, uint32_t> counts_;
  uint64_t state_ = 0;
  uint32_t drawn_ = 0;
  int32_t token_;
  RowOutput failed_;
};

class CudaSequences : public CudaLibrary {
 protected:
  // Sequences of many kinds. Row 2's model fails.
  static Ask AskOf(uint32_t row, uint32_t life) {
    Ask ask;
    law::SamplingParameters& p = ask.options.parameters;
    p.temperature = 0.7f;
    ask.noise = {.seed = 77 + row, .position = 1000 * life + 3, .stream = row};
    ask.options.processed_logprob = row % 2 == 0;
    ask.options.raw_logprob = row % 3 == 0;
    if (row % 2 == 0) ask.options.processed_top = 4;
    if (row != 1) p.repetition_penalty = 1.17f;
    if (row != 1 && row != 3) p.frequency_penalty = 0.13f + 0.01f * float(row);
    if (row == 4 || row == 5) p.presence_penalty = -0.31f;
    if (row == 0) p.top_k = 40;
    if (row == 2) ask.nan_after = life == 0 ? 9 : -1;
    if (row == 3) p.mirostat = 2;
    if (row == 4) p.temperature = 0;
    if (row == 5) p.top_p = 0.9f;
    ask.edits = {{.token = 4, .bias = BiasBits(1.5f)}, {.token = 90, .flags = LogitEdit::kBanned}};
    if (row == 1) return ask;
    ask.edits.push_back({.token = 92, .flags = LogitEdit::kRepeated});
    ask.counts = {{1, 2}, {4, 1}, {999, 3}};
    return ask;
  }

  void Lay() {
    batch_ = {.row_bytes = 2 * kTokens, .rows = kSequences, .vocabulary = kTokens};
    logits_ = static_cast<std::byte*>(driver_.Allocate(batch_.row_bytes * kSequences));
    batch_.logits = logits_;
    batch_.tokens = static_cast<int32_t*>(driver_.Allocate(4 * kSequences));
    batch_.logprobs = static_cast<float*>(driver_.Allocate(4 * kSequences));
  }

  void Start(CudaSampler* sampler, uint32_t row, const Ask& ask) {
    RowParameters parameters;
    ASSERT_TRUE(Compile(ask.options, &parameters).ok());
    ASSERT_TRUE(sampler->SetRow(row, parameters, ask.noise).ok());
    ASSERT_TRUE(sampler->SetEdits(row, ask.edits).ok());
    ASSERT_TRUE(sampler->SetSequence(row, ask.options.parameters, ask.counts).ok());
    plain_[row] = std::make_unique<PlainSequence>(row, ask);
    // Counts as the device does, in the stream's order.
    driver_.Enqueue(kStream, [this, row, ask] {
      batch_.tokens[row] = ask.first;
      drawn_[row] = 0;
      nan_after_[row] = ask.nan_after;
    });
  }

  // Queues the model's work of a step.
  void Forward() {
    driver_.Enqueue(kStream, [this] {
      for (uint32_t row = 0; row < kSequences; ++row) {
        std::byte* const logits = logits_ + batch_.row_bytes * row;
        WriteLogits(row, batch_.tokens[row], logits);
        if (nan_after_[row] == drawn_[row]) logits[2 * 33] = logits[2 * 33 + 1] = std::byte{0xff};
        ++drawn_[row];
      }
    });
  }

  std::unique_ptr<PlainSequence> plain_[kSequences];
  int32_t drawn_[kSequences] = {};
  int32_t nan_after_[kSequences] = {};
};

// The host queues step n before it has seen steps n - 3 to n - 1. Meanwhile rows begin anew.
TEST_F(CudaSequences, AnswersMayComeThreeStepsLate) {
  Lay();
  driver_.Defer();
  const auto sampler = Create({.rows = kSequences, .vocabulary = kTokens, .edits = 200, .top = 4});
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  for (uint32_t row = 0; row < kSequences; ++row) Start(sampler.get(), row, AskOf(row, 0));
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  struct Step {
    CudaTicket ticket;
    std::vector<RowOutput> expected;
  };
  std::deque<Step> under_way;
  uint64_t void_draws = 0;
  uint64_t awaited = 0;
  const auto await = [&] {
    std::vector<RowOutput> outputs;
    ASSERT_TRUE(sampler->Await(under_way.front().ticket, &outputs).ok());
    EXPECT_EQ(driver_.launches(kernels::cuda::kReadKernel), ++awaited) << "later steps are not done";
    ASSERT_EQ(outputs.size(), kSequences);
    for (uint32_t row = 0; row < kSequences; ++row) {
      ASSERT_EQ(outputs[row], under_way.front().expected[row]) << "step " << awaited << ", row " << row;
      void_draws += outputs[row].error != RowFault::kNone;
    }
    under_way.pop_front();
  };
  const auto steps = uint32_t(std::max<uint64_t>(30, testing::Scaled(40)));
  const uint64_t waits = driver_.calls("StreamSynchronize") + driver_.calls("CtxSynchronize");
  for (uint32_t step = 0; step < steps; ++step) {
    if (step == 15 || step == 20) {
      const uint32_t row = step == 15 ? 4 : 2;
      Start(sampler.get(), row, AskOf(row, 1));
      ASSERT_TRUE(sampler->Upload(kStream).ok());
    }
    Forward();
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    Step& queued = under_way.emplace_back();
    ASSERT_TRUE(sampler->Fetch(kStream, &queued.ticket).ok());
    for (const auto& plain : plain_) queued.expected.push_back(plain->Step());
    if (under_way.size() > kLate) await();
  }
  while (!under_way.empty()) await();
  EXPECT_EQ(driver_.calls("StreamSynchronize") + driver_.calls("CtxSynchronize"), waits);
  EXPECT_EQ(void_draws, 20u - 9u);
  for (uint32_t row = 0; row < kSequences; ++row) EXPECT_GE(plain_[row]->repeated(), 1u) << row;
}

// A captured step advances its rows at each replay. Tokens and log probabilities stay in the device's memory.
TEST_F(CudaSequences, GraphReplaysAdvance) {
  Lay();
  const auto sampler = Create({.rows = kSequences, .vocabulary = kTokens, .edits = 200, .top = 4});
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  for (uint32_t row = 0; row < kSequences; ++row) Start(sampler.get(), row, AskOf(row, 0));
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  const std::function<void()> replay = driver_.Capture(kStream, [&] {
    Forward();
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    CudaTicket ticket;
    EXPECT_EQ(sampler->Fetch(kStream, &ticket).code, StatusCode::kFailedPrecondition);
  });
  for (uint32_t step = 0; step < 24; ++step) {
    replay();
    for (uint32_t row = 0; row < kSequences; ++row) {
      const RowOutput expected = plain_[row]->Step();
      ASSERT_EQ(batch_.tokens[row], expected.error == RowFault::kNone ? int32_t(expected.token) : -1)
          << "step " << step << ", row " << row;
      if (row % 3 == 0) {
        EXPECT_EQ(batch_.logprobs[row], plain_[row]->Logprob(expected));
      }
    }
  }
  EXPECT_EQ(batch_.tokens[2], -1);
}

// A row without room for edits still draws its token, then ends; others continue.
TEST_F(CudaSequences, FullEditsEndOneRow) {
  Lay();
  const auto sampler = Create({.rows = kSequences, .vocabulary = kTokens, .edits = 12, .top = 4});
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  for (uint32_t row = 0; row < kSequences; ++row) Start(sampler.get(), row, AskOf(row == 2 ? 4 : row, 0));
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  std::vector<RowOutput> outputs(kSequences);
  std::map<uint32_t, uint32_t> drawn;
  for (uint32_t step = 0; step < 30; ++step) {
    Forward();
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ASSERT_TRUE(sampler->Download(kStream, outputs).ok());
    EXPECT_EQ(outputs[1], plain_[1]->Step()) << "penalties are off";
    if (outputs[0].error == RowFault::kNone) {
      ++drawn[outputs[0].token];
      EXPECT_EQ(outputs[0], plain_[0]->Step());
      continue;
    }
    EXPECT_EQ(outputs[0].error, RowFault::kTooManyEdits);
    EXPECT_EQ(drawn[outputs[0].error_token], 1u) << "the last token, drawn once";
    EXPECT_EQ(batch_.tokens[0], -1);
  }
  EXPECT_EQ(outputs[0].error, RowFault::kTooManyEdits);
  EXPECT_GE(drawn.size(), 12u - 6u);
}

TEST_F(CudaSequences, MistakesAreNamed) {
  Lay();
  const auto sampler = Create({.rows = kSequences, .vocabulary = kTokens, .edits = 4});
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  const law::SamplingParameters penalties = {.presence_penalty = 1};
  EXPECT_EQ(sampler->SetSequence(0, penalties).code, StatusCode::kFailedPrecondition) << "never set";
  ASSERT_TRUE(sampler->SetRow(0, RowParameters(), {}).ok());
  EXPECT_EQ(sampler->SetSequence(kSequences, penalties).code, StatusCode::kInvalidArgument);
  EXPECT_THAT(sampler->SetSequence(0, {.repetition_penalty = 0}).message, HasSubstr("repetition_penalty"));
  EXPECT_THAT(sampler->SetSequence(0, {.frequency_penalty = 101}).message, HasSubstr("frequency_penalty"));
  const TokenCount twice[] = {{4, 1}, {4, 1}};
  EXPECT_THAT(sampler->SetSequence(0, penalties, twice).message, HasSubstr("counts[1]"));
  const TokenCount often[] = {{4, 1u << 29}};
  EXPECT_THAT(sampler->SetSequence(0, penalties, often).message, HasSubstr("at most 536870911"));
  const std::vector<TokenCount> many = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}};
  EXPECT_THAT(sampler->SetSequence(0, penalties, many).message, HasSubstr("would have 5 edits, at most 4"));
  const LogitEdit penalized[] = {{.token = 1, .penalty = BiasBits(1)}};
  ASSERT_TRUE(sampler->SetEdits(0, penalized).ok());
  EXPECT_THAT(sampler->SetSequence(0, penalties).message, HasSubstr("token 1 has a penalty"));
  ASSERT_TRUE(sampler->SetEdits(0, {}).ok());
  ASSERT_TRUE(sampler->SetTask(0, kernels::RowTask::kScore).ok());
  EXPECT_THAT(sampler->SetSequence(0, penalties).message, HasSubstr("does not draw"));
  ASSERT_TRUE(sampler->SetTask(0, kernels::RowTask::kDraw).ok());
  ASSERT_TRUE(sampler->SetSequence(0, penalties).ok());
  for (const Status& refused : {sampler->SetEdits(0, {}), sampler->SetTask(0, kernels::RowTask::kScore),
                                sampler->SetSamplerState(0, 1), sampler->SetSequence(0, penalties)}) {
    EXPECT_EQ(refused.code, StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message, HasSubstr("row 0 has a sequence"));
  }
  ASSERT_TRUE(sampler->SetRow(0, RowParameters(), {}).ok());
  EXPECT_TRUE(sampler->SetEdits(0, {}).ok());
}

// An upload that fails leaves no step that would draw without counting.
TEST_F(CudaSequences, FailedUploadStopsSteps) {
  Lay();
  const auto sampler = Create({.rows = kSequences, .vocabulary = kTokens, .edits = 200, .top = 4});
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  for (uint32_t row = 0; row < kSequences; ++row) Start(sampler.get(), row, AskOf(row, 0));
  for (const char* const function : {"MemcpyHtoDAsync", "LaunchKernel", "EventRecord"}) {
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    driver_.Fail(function, devices::cuda::Result::kOutOfMemory);
    EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kResourceExhausted) << function;
    EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
  }
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  std::vector<RowOutput> outputs(kSequences);
  for (uint32_t step = 0; step < 3; ++step) {
    Forward();
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ASSERT_TRUE(sampler->Download(kStream, outputs).ok());
    for (uint32_t row = 0; row < kSequences; ++row) EXPECT_EQ(outputs[row], plain_[row]->Step()) << row;
  }
}

TEST_F(CudaSequences, TicketsAreFew) {
  Lay();
  const auto sampler = Create({.rows = kSequences, .vocabulary = kTokens, .kept = kTokens});
  CudaTicket tickets[CudaSampler::kMostTickets + 1];
  EXPECT_EQ(sampler->Fetch(kStream, &tickets[0]).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  for (uint32_t row = 0; row < kSequences; ++row) ASSERT_TRUE(sampler->SetRow(row, RowParameters(), {}).ok());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  Forward();
  ASSERT_TRUE(sampler->Sample(kStream).ok());
  for (uint32_t i = 0; i < CudaSampler::kMostTickets; ++i) ASSERT_TRUE(sampler->Fetch(kStream, &tickets[i]).ok());
  EXPECT_EQ(sampler->Fetch(kStream, &tickets[4]).code, StatusCode::kResourceExhausted);
  std::vector<RowOutput> outputs;
  EXPECT_EQ(sampler->Await({}, &outputs).code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(sampler->Await(tickets[2], &outputs).ok()) << "in any order";
  EXPECT_EQ(sampler->Await(tickets[2], &outputs).code, StatusCode::kInvalidArgument) << "once";
  EXPECT_TRUE(sampler->Fetch(kStream, &tickets[4]).ok());
  RowParameters kept;
  kept.kept_tokens = true;
  ASSERT_TRUE(sampler->SetRow(3, kept, {}).ok());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  EXPECT_THAT(sampler->Fetch(kStream, &tickets[2]).message, HasSubstr("row 3 requests its kept tokens"));
}

}  // namespace
}  // namespace sortition::cuda_sequence_test
