// A local sequence answers what a server answers, byte for byte: draws, drafts of every kind, scores, and refusals.
#include <signal.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "sortition/in_process.h"
#include "sortition/local_sequence.h"
#include "tests/e2e/servers.h"
#include "tests/support/scale.h"

namespace sortition::testing::local_test {
namespace {

using client::Drafts;
using client::LocalSequence;
using client::Row;
using client::RowError;
using client::RowResult;

constexpr uint32_t kVocabulary = 300;
constexpr uint32_t kLiveVocabulary = 290;
constexpr size_t kWords = (kVocabulary + 31) / 32;

// Without a history and with one, with samplers that keep a state, with all answers.
const char* const kKinds[] = {
    "temperature: 0",
    "temperature: 0.8 top_k: 40 top_p: 0.95 min_p: 0.02 processed_logprobs { top: 3 } raw_logprobs {}",
    "temperature: 0 repetition_penalty: 1.3 frequency_penalty: 0.4 presence_penalty: 0.2 raw_logprobs { top: 2 }",
    "repetition_penalty: 1.2 penalty_scope { window: 6 } entropy: true kept_set { count: true tokens: true } top_k: 30",
    "dry { multiplier: 0.8 allowed_length: 1 } no_repeat_ngram_size: 3 bad_words { tokens: [3, 4] }",
    "mirostat { version: 1 tau: 4 } frequency_penalty: 0.3 processed_logprobs {}",
    "mirostat { version: 2 tau: 3 } raw_logprobs {}",
    "adaptive_p { target: 0.5 decay: 0.9 } presence_penalty: 0.3",
    "stop_token_ids: [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] min_tokens: 4 logprob_token_ids: [7, 9] raw_logprobs {}",
    "phases { max_tokens: 3 then: [11, 12, 13] } repetition_penalty: 1.1 processed_logprobs {}",
    "phases { begin: 1 end: 2 max_tokens: 4 then: [7, 2] parameters { temperature: 0 frequency_penalty: 0.5 } } "
    "phases { max_tokens: 2 then: 1 parameters { top_k: 3 allowed_token_ids: [1, 5, 9] } } raw_logprobs {}",
    "watermark { key: 77 context_width: 3 } top_p: 0.9",
    "watermark { key: 78 context_width: 1 skip_repeated_contexts: true } top_k: 5 processed_logprobs {}",
    "top_k: 2 repetition_stop { repeats: 2 max_period: 5 min_length: 3 }",
    "banned_phrases { tokens: [3] } banned_phrases { tokens: [7, 9] } banned_phrases { tokens: [5, 2, 11] } top_k: 12",
    "allowed_token_ids: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40] xtc { probability: 0.5 threshold: 0.1 }",
    "temperature: 0.9 top_p: 0.8 typical_p: 0.9 chain { preset: PRESET_LLAMA_CPP } dynamic_temperature { range: 0.5 }",
    "temperature: 0.7 top_p: 0.9 frequency_penalty: 0.3 tempered_logprobs { top: 4 } kept_log_mass: true",
    "typical_p: 0.8 xtc { probability: 0.5 threshold: 0.1 } tempered_logprobs {} kept_log_mass: true",
};

// A step's task: the data that its row refers to.
struct Task {
  std::vector<float> logits;
  std::vector<uint32_t> masks;
  std::vector<std::vector<uint32_t>> bans;
  std::vector<uint32_t> tokens;
  std::vector<int32_t> parents;
  std::vector<float> probabilities;
  std::vector<v1::SparseProbabilities> sparse;
  Drafts drafts;
  Row row;
};

class LocalTest : public ::testing::Test {
 protected:
  LocalTest() : server_(StartServer()), client_(Connect(Options())) {}

  client::ClientOptions Options() const {
    client::ClientOptions options = QuickOptions({server_->address()});
    options.in_process = client::InProcessEngine();
    return options;
  }

  void Open(const char* kind, uint64_t seed, uint32_t vocabulary = kVocabulary) {
    vocabulary_ = vocabulary;
    client::SequenceOptions options;
    options.request_id = absl::StrCat(kind, " ", seed).substr(0, 120);
    options.vocabulary_size = vocabulary;
    options.live_vocabulary_size = vocabulary - (kVocabulary - kLiveVocabulary);
    options.seed = seed;
    options.choice_index = 2;
    options.prompt = {5, 6, 7, 5, 6};
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kind, &options.parameters)) << kind;
    auto remote = client_->Open(options);
    ASSERT_TRUE(remote.ok()) << remote.status();
    remote_ = *std::move(remote);
    auto local = LocalSequence::Open(options);
    ASSERT_TRUE(local.ok()) << local.status();
    local_ = *std::move(local);
    parameters_ = options.parameters;
    greedy_ = options.parameters.has_temperature() && options.parameters.temperature() == 0;
  }

  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }

  // Adds a row in which only some small tokens are likely, so that texts repeat and drafts are often right.
  void AddRow(std::vector<float>* logits) {
    for (uint32_t token = 0; token < kVocabulary; ++token) {
      logits->push_back(static_cast<float>(Below(64)) / 16 + (token < 24 ? static_cast<float>(Below(64)) / 8 : 0));
    }
  }
  uint32_t Likely(const std::vector<float>& logits, size_t position) {
    const auto row = logits.begin() + static_cast<ptrdiff_t>(position * kVocabulary);
    return Below(4) == 0 ? Below(24) : static_cast<uint32_t>(std::max_element(row, row + kLiveVocabulary) - row);
  }

  void SetDrafts(Task* task) {
    const uint32_t count = 1 + Below(5);
    for (uint32_t i = 0; i <= count; ++i) AddRow(&task->logits);
    const bool is_tree = Below(3) == 0;
    for (uint32_t i = 0; i < count; ++i) {
      const auto parent = is_tree ? static_cast<int32_t>(Below(i + 1)) - 1 : static_cast<int32_t>(i) - 1;
      uint32_t token = Likely(task->logits, static_cast<size_t>(parent + 1));
      for (uint32_t k = 0; is_tree && k < i; ++k) {
        if (task->parents[k] == parent && task->tokens[k] == token) token = 100 + i;  // siblings differ
      }
      task->tokens.push_back(token);
      if (is_tree) task->parents.push_back(parent);
    }
    Drafts& drafts = task->drafts;
    const v1::VerifyMode modes[] = {v1::VERIFY_MODE_COUPLED, v1::VERIFY_MODE_REJECTION, v1::VERIFY_MODE_GREEDY};
    drafts.mode = modes[Below(greedy_ ? 3 : 2)];
    drafts.return_probabilities = Below(3) == 0;
    const bool keeps_state = parameters_.has_mirostat() || parameters_.has_adaptive_p();
    if (drafts.mode == v1::VERIFY_MODE_REJECTION) {
      const uint32_t form = Below(3);
      SetProbabilities(form, task);
      if (form != 0 && !is_tree && !keeps_state && !greedy_ && Below(2) == 0) drafts.mode = v1::VERIFY_MODE_BLOCK;
      if (form != 0 && is_tree) drafts.sampling = static_cast<v1::DraftSampling>(1 + Below(2));
    }
    drafts.tokens = task->tokens;
    drafts.parents = task->parents;
    drafts.sparse_probabilities = task->sparse;
    drafts.probabilities = task->probabilities.empty() ? nullptr : task->probabilities.data();
    task->row.drafts = &task->drafts;
  }

  void SetProbabilities(uint32_t form, Task* task) {
    // The drafts of each distribution: in a sequence one, in a tree all with the same parent.
    std::map<int32_t, std::vector<uint32_t>> places;
    for (size_t i = 0; i < task->tokens.size(); ++i) {
      places[task->parents.empty() ? static_cast<int32_t>(i) : task->parents[i]].push_back(task->tokens[i]);
    }
    for (const auto& [parent, tokens] : places) {
      const float each = 0.5f / static_cast<float>(tokens.size());
      if (form == 1) {  // dense
        std::vector<float> row(kVocabulary);
        for (uint32_t i = 0; i < 24; ++i) row[i] = 1.0f / 48;
        for (const uint32_t token : tokens) row[token] += each;
        task->probabilities.insert(task->probabilities.end(), row.begin(), row.end());
      } else if (form == 2) {
        v1::SparseProbabilities& sparse = task->sparse.emplace_back();
        for (const uint32_t token : tokens) {
          sparse.add_tokens(token);
          sparse.add_probabilities(each);
        }
        sparse.add_tokens(200 + tokens[0] % 50);
        sparse.add_probabilities(0.5f);
      }
    }
  }

  std::unique_ptr<Task> RandomTask() {
    auto task = std::make_unique<Task>();
    const uint32_t kind = Below(5);
    if (kind < 3) {
      SetDrafts(task.get());
    } else if (kind == 3) {
      for (uint32_t i = 0, count = 1 + Below(4); i < count; ++i) {
        AddRow(&task->logits);
        task->tokens.push_back(Likely(task->logits, i));
      }
      task->row.scored = task->tokens;
    } else {
      AddRow(&task->logits);
    }
    task->row.draw_salt = Below(4) == 0 ? Below(65536) : 0;
    if (Below(3) == 0) {
      task->masks.resize(kWords * task->row.positions());
      for (uint32_t& word : task->masks) word = static_cast<uint32_t>(random_() | random_() << 1);
      if (Below(4) == 0)
        std::fill_n(task->masks.begin() + static_cast<ptrdiff_t>(task->masks.size() - kWords), kWords, 0u);
      task->row.allowed_bits = task->masks.data();
    }
    if (Below(3) == 0) {
      task->bans.resize(task->row.scored.empty() ? task->row.positions() : 1);
      for (std::vector<uint32_t>& list : task->bans) {
        for (uint32_t i = Below(4); i > 0; --i) list.push_back(Below(24));
      }
      task->row.banned_tokens = task->bans;
    }
    if (Below(8) == 0) {  // one position of it cannot be sampled
      task->logits[Below(static_cast<uint32_t>(task->logits.size()))] = Below(2) == 0 ? NAN : 1e6f;
    }
    task->row.logits = task->logits.data();
    return task;
  }

  RowResult Remote(Row row, v1::DType draft_dtype = v1::DTYPE_F32) {
    row.sequence = remote_.get();
    client::Batch batch{v1::DTYPE_F32, vocabulary_, {row}};
    batch.draft_dtype = draft_dtype;
    auto outcomes = client_->Step(batch);
    if (outcomes.ok()) return std::move(outcomes->front());
    RowError error;
    error.code = outcomes.status().code();
    error.message = std::string(outcomes.status().message());
    return error;
  }

  // The whole answer, except the checkpoint, which no local sequence returns.
  static std::string Said(RowResult outcome) {
    if (const auto* error = std::get_if<RowError>(&outcome)) {
      return absl::StrCat(error->code, " ", client::Describe(*error));
    }
    if (auto* draw = std::get_if<v1::DrawResult>(&outcome)) {
      draw->clear_checkpoint();
      return "draw " + draw->SerializeAsString();
    }
    if (auto* score = std::get_if<v1::ScoreResult>(&outcome)) {
      score->clear_checkpoint();
      return "score " + score->SerializeAsString();
    }
    auto& verify = std::get<v1::VerifyResult>(outcome);
    verify.clear_checkpoint();
    return "verify " + verify.SerializeAsString();
  }

  RowResult ExpectSame(const Row& row, const std::string& what) {
    RowResult local = local_->Step(v1::DTYPE_F32, row);
    EXPECT_EQ(Said(local), Said(Remote(row))) << what;
    EXPECT_EQ(local_->position(), remote_->position()) << what;
    EXPECT_EQ(local_->tokens(), remote_->tokens()) << what;
    return local;
  }

  void RewriteBoth() {
    const uint32_t token = Below(kLiveVocabulary);
    const uint32_t at = remote_->position() - Below(4);
    const auto rewrite = [&](auto& sequence, uint32_t kind) {
      if (kind == 0) return sequence.ReplaceLast(token);
      return kind == 1 ? sequence.Append({&token, 1}) : sequence.Truncate(at);
    };
    const uint32_t kind = Below(3);
    ASSERT_EQ(rewrite(*remote_, kind), rewrite(*local_, kind));
  }

  // A random step of each text.
  void StepAll(const std::string& what) {
    for (Text& text : texts_) {
      remote_ = std::move(text.remote);
      local_ = std::move(text.local);
      greedy_ = text.greedy;
      ExpectSame(RandomTask()->row, absl::StrCat(remote_->request_id(), ", ", what));
      text.remote = std::move(remote_);
      text.local = std::move(local_);
    }
  }

  std::unique_ptr<process::ServerProcess> server_;
  const std::unique_ptr<client::Client> client_;
  std::mt19937_64 random_{810};
  uint32_t vocabulary_ = kVocabulary;  // of the sequences that are open
  std::unique_ptr<client::Sequence> remote_;
  std::unique_ptr<LocalSequence> local_;
  v1::SamplingParameters parameters_;
  bool greedy_ = false;

  struct Text {
    std::unique_ptr<client::Sequence> remote;
    std::unique_ptr<LocalSequence> local;
    bool greedy = false;
    bool keeps_sampler_state = false;
  };
  std::vector<Text> texts_;
};

TEST_F(LocalTest, EqualsServer) {
  uint32_t accepted = 0;
  uint32_t refused = 0;
  uint32_t scored = 0;
  for (const char* const kind : kKinds) {
    ASSERT_NO_FATAL_FAILURE(Open(kind, random_()));
    const size_t steps = Scaled(120);
    for (size_t step = 0; step < steps && !HasFailure(); ++step) {
      if (Below(6) == 0) {
        ASSERT_NO_FATAL_FAILURE(RewriteBoth());
      }
      const auto task = RandomTask();
      const RowResult outcome = ExpectSame(task->row, absl::StrCat(kind, ", step ", step));
      if (const auto* verify = std::get_if<v1::VerifyResult>(&outcome)) accepted += verify->accepted();
      refused += std::holds_alternative<RowError>(outcome);
      scored += std::holds_alternative<v1::ScoreResult>(outcome);
    }
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(scored, 0u);
}

// More kept tokens and probabilities than one message of the service holds.
TEST_F(LocalTest, PartialAnswersAreAssembled) {
  constexpr uint32_t kWide = 70'000;
  ASSERT_NO_FATAL_FAILURE(Open("temperature: 50 kept_set { tokens: true } frequency_penalty: 0.1", 3, kWide));
  std::vector<float> logits(3 * kWide);
  for (float& logit : logits) logit = static_cast<float>(Below(64)) / 16;
  const std::vector<uint32_t> tokens = {7, 8};
  Row row{nullptr, logits.data()};
  const RowResult draw = ExpectSame(row, "a draw");
  EXPECT_GT(std::get<v1::DrawResult>(draw).kept_tokens_size(), 1 << 16);
  row.scored = tokens;
  const RowResult score = ExpectSame(row, "scores");
  for (const v1::Position& position : std::get<v1::ScoreResult>(score).positions()) {
    EXPECT_GT(position.kept_tokens_size(), 1 << 16);
  }
  row.scored = {};
  Drafts drafts;
  drafts.tokens = tokens;
  drafts.return_probabilities = true;
  row.drafts = &drafts;
  const RowResult verify = ExpectSame(row, "drafts");
  for (const v1::Position& position : std::get<v1::VerifyResult>(verify).positions()) {
    EXPECT_EQ(position.probabilities().size(), (kWide - (kVocabulary - kLiveVocabulary)) * sizeof(float));
  }
}

// From the server into this process and back, in the middle of texts, samplers' states included. Sequences with their
// state in this process keep the client here.
TEST_F(LocalTest, ClientsFallbackContinuesIdentically) {
  for (const char* const kind : kKinds) {
    ASSERT_NO_FATAL_FAILURE(Open(kind, random_()));
    const bool keeps = absl::StartsWith(kind, "mirostat") || absl::StartsWith(kind, "adaptive_p");
    texts_.push_back({std::move(remote_), std::move(local_), greedy_, keeps});
  }
  const int port = server_->port();
  for (size_t step = 0; step < Scaled(8) + 1; ++step) StepAll(absl::StrCat("served, step ", step));
  EXPECT_FALSE(client_->in_process());
  server_->process().Signal(SIGKILL);
  ASSERT_TRUE(server_->process().Wait(absl::Seconds(60)).ok());
  for (size_t step = 0; step < Scaled(8) + 1; ++step) StepAll(absl::StrCat("in process, step ", step));
  EXPECT_TRUE(client_->in_process());
  server_ = StartServer({}, port);
  for (size_t step = 0; step < Scaled(4) + 1; ++step) StepAll(absl::StrCat("still in process, step ", step));
  EXPECT_TRUE(client_->in_process());
  std::erase_if(texts_, [](const Text& text) { return text.keeps_sampler_state; });
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (client_->in_process() && absl::Now() < deadline && !HasFailure()) StepAll("on the way back");
  StepAll("back");
  EXPECT_FALSE(client_->in_process());
}

TEST_F(LocalTest, RefusesLikeServer) {
  ASSERT_NO_FATAL_FAILURE(Open(kKinds[5], 1));
  std::vector<float> logits;
  for (int i = 0; i < 200; ++i) AddRow(&logits);
  const std::vector<uint32_t> good = {1, 2};
  const std::vector<uint32_t> unknown = {1, kLiveVocabulary};
  const std::vector<uint32_t> long_list(150, 3);
  const std::vector<int32_t> forward = {-1, 1};
  const std::vector<int32_t> twins = {-1, -1};
  const std::vector<uint32_t> same = {4, 4};
  const std::vector<int32_t> one = {-1};
  const std::vector<float> half(2 * kVocabulary, 0.5f);
  std::vector<v1::SparseProbabilities> sparse(2);
  sparse[0].add_tokens(9);
  sparse[0].add_probabilities(1);
  const auto drafts = [&](std::span<const uint32_t> tokens, v1::VerifyMode mode = v1::VERIFY_MODE_COUPLED,
                          std::span<const int32_t> parents = {}) {
    return Drafts{mode, tokens, parents, nullptr, {}, false};
  };
  std::vector<Drafts> wrong = {
      drafts({}),
      drafts(unknown),
      drafts(long_list),
      drafts(good, v1::VERIFY_MODE_GREEDY),
      drafts(good, v1::VERIFY_MODE_UNSPECIFIED),
      drafts(good, v1::VERIFY_MODE_COUPLED, forward),
      drafts(same, v1::VERIFY_MODE_COUPLED, twins),
      drafts(good, v1::VERIFY_MODE_REJECTION, one),
  };
  for (const v1::VerifyMode mode : {v1::VERIFY_MODE_COUPLED, v1::VERIFY_MODE_REJECTION}) {
    wrong.push_back(drafts(good, mode));
    wrong.back().probabilities = half.data();  // no sum of 1
    wrong.push_back(drafts(good, mode));
    wrong.back().sparse_probabilities = sparse;  // not of the draft
  }
  wrong.push_back(drafts(good, v1::VERIFY_MODE_REJECTION, twins));
  wrong.back().sparse_probabilities = sparse;
  for (size_t i = 0; i < wrong.size(); ++i) {
    Row row{nullptr, logits.data()};
    row.drafts = &wrong[i];
    const RowResult outcome = ExpectSame(row, absl::StrCat("drafts ", i));
    EXPECT_TRUE(std::holds_alternative<RowError>(outcome)) << i;
  }
  for (const auto* tokens : {&unknown, &long_list}) {
    Row row{nullptr, logits.data()};
    row.scored = *tokens;
    EXPECT_TRUE(std::holds_alternative<RowError>(ExpectSame(row, absl::StrCat("scored ", tokens->size()))));
  }
  const std::vector<uint32_t> nothing(kWords);
  Row masked{nullptr, logits.data()};
  masked.allowed_bits = nothing.data();
  const RowResult outcome = ExpectSame(masked, "a mask of nothing");
  EXPECT_EQ(std::get<RowError>(outcome).field, "step.rows[0].mask");
  ExpectSame(Row{nullptr, logits.data(), 65536}, "a salt");
  EXPECT_EQ(local_->position(), 5u);
}

TEST_F(LocalTest, ErrorsNameRowOfCallersStep) {
  ASSERT_NO_FATAL_FAILURE(Open(kKinds[1], 1));
  std::vector<float> logits;
  AddRow(&logits);
  const auto field = [&](const Row& row) {
    return std::get<RowError>(local_->Step(v1::DTYPE_F32, row, {.row = 7})).field;
  };
  EXPECT_EQ(field(Row{nullptr, logits.data(), 65536}), "step.rows[7].draw_salt");
  const std::vector<uint32_t> unknown = {kVocabulary};
  Row scores{nullptr, logits.data()};
  scores.scored = unknown;
  EXPECT_EQ(field(scores), "step.rows[7].score.tokens[0]");
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(field(Row{nullptr, logits.data()}), "step.rows[7]");
  EXPECT_EQ(std::get<RowError>(local_->Step(v1::DTYPE_UNSPECIFIED, Row{nullptr, logits.data()})).field,
            "step.logits.dtype");
}

}  // namespace
}  // namespace sortition::testing::local_test
