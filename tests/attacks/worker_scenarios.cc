// Messages of an authorised worker that are small for what they make the server do.
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "kernels/law/compact.h"
#include "sortition/client.h"
#include "sortition/v1/sampling.grpc.pb.h"
#include "tests/attacks/scenario.h"
#include "tests/support/compact_step.h"
#include "tests/support/messages.h"

namespace sortition::attacks {
namespace {

constexpr uint32_t kWide = 1'000'000;      // the vocabulary
constexpr uint32_t kListed = 65'536;       // of max_listed_tokens
constexpr uint32_t kKept = 4'096;          // of max_compact_tokens
constexpr uint32_t kStepRows = 15;         // with 64 drafts each, of max_step_positions
constexpr uint32_t kDrafted = 64;          // of max_draft_tokens
constexpr size_t kHistoryPiece = 500'000;  // tokens of one message
constexpr uint32_t kAskedIds = 1'000;      // of max_top_logprobs
constexpr uint64_t kRowAnswerBytes = 256;  // of a row without distributions, and of each position
constexpr absl::Duration kLongestAnswer = absl::Seconds(60);

using Parameters = std::function<void(v1::SamplingParameters*)>;

// The first tokens of a row of kWide logits, and its sum.
struct ListedRow {
  std::string pairs;
  v1::CompactRow row;
};

// Token 0 is so far above all others that no noise draws another one. The next `count` - 1 follow it in order.
ListedRow ListRow(uint32_t count) {
  std::vector<float> logits(kWide, -60);
  for (uint32_t i = 0; i < count; ++i) logits[i] = -20 - 0.001f * static_cast<float>(i);
  logits[0] = 30;
  const kernels::RowParameters parameters;
  kernels::RowRequest request;
  request.logits = logits.data();
  request.dtype = kernels::DType::kF32;
  request.live_vocabulary = kWide;
  request.parameters = &parameters;
  const auto stated = law::StateRowReference(request, count, {});
  SORTITION_CHECK(stated.has_value());
  ListedRow listed;
  testing::AppendCompact(*stated, kernels::DType::kF32, &listed.pairs, &listed.row);
  return listed;
}

void SetPenalties(v1::SamplingParameters* parameters) {
  parameters->set_repetition_penalty(1.1f);
  parameters->set_frequency_penalty(0.1f);
}

template <uint32_t kSize>
void SetNgrams(v1::SamplingParameters* parameters) {
  parameters->set_no_repeat_ngram_size(kSize);
}

void SetAskedIds(v1::SamplingParameters* parameters) {
  parameters->mutable_raw_logprobs();
  for (uint32_t id = 0; id < kAskedIds; ++id) parameters->add_logprob_token_ids(id);
}

void SetHeldBackStops(v1::SamplingParameters* parameters) {
  for (uint32_t id = 0; id < kListed; ++id) parameters->add_stop_token_ids(id);
  parameters->set_min_tokens(100'000);
}

void SetBiases(v1::SamplingParameters* parameters) {
  for (uint32_t id = 0; id < kListed; ++id) {
    v1::LogitBias& bias = *parameters->add_logit_bias();
    bias.set_token(kWide - 1 - id);
    bias.set_bias(0.5f);
  }
}

// Token 1 begins it, and token 2 ends it.
void SetPhase(v1::SamplingParameters* parameters) {
  parameters->set_frequency_penalty(0.1f);
  v1::Phase& phase = *parameters->add_phases();
  phase.add_begin(1);
  phase.add_end(2);
  phase.mutable_parameters()->set_frequency_penalty(0.2f);
}

std::vector<uint32_t> Alternating() {
  std::vector<uint32_t> drafts;
  for (uint32_t i = 0; i < kDrafted; ++i) drafts.push_back(1 + i % 2);
  return drafts;
}

// A text of `tokens` different tokens.
v1::OpenSequence MakeText(const std::string& id, uint32_t tokens, const Parameters& set) {
  v1::OpenSequence open = testing::MakeOpen(id, 1, kWide);
  set(open.mutable_parameters());
  if (open.parameters().has_min_tokens()) open.mutable_history();  // such a text has a state from its beginning
  if (tokens == 0) return open;
  for (uint32_t i = 0; i < tokens; ++i) open.mutable_history()->add_tokens(i);
  open.mutable_history()->set_prompt_length(tokens);
  return open;
}

// A stream of messages, each sent once the last one is answered. No more is sent if the server ends the stream.
class Assailant {
 public:
  explicit Assailant(const Attacked& attacked) : attacked_(attacked) {
    context_.set_deadline(absl::ToChronoTime(attacked.end + kLongestAnswer));
    stream_ = stub_->Stream(&context_);
    Ask(testing::Hello("assailant"), 1);
  }
  ~Assailant() { context_.TryCancel(); }

  bool GoesOn() const { return is_open_ && attacked_.GoesOn(); }
  Traffic& traffic() { return traffic_; }

  void Open(v1::OpenSequence open) {
    const std::vector<uint32_t> tokens(open.history().tokens().begin(), open.history().tokens().end());
    texts_.push_back({open.request_id(), static_cast<uint32_t>(tokens.size())});
    size_t at = 0;
    for (size_t left = tokens.size(); left > kHistoryPiece; left -= kHistoryPiece, at += kHistoryPiece) {
      AskPiece({tokens.data() + at, kHistoryPiece}, static_cast<uint32_t>(at), true, &open);
    }
    if (at > 0) return AskPiece({tokens.data() + at, tokens.size() - at}, static_cast<uint32_t>(at), false, &open);
    Ask(testing::Message(std::move(open)), 1);
  }
  void Close(const std::string& id) {
    Ask(testing::MakeClose(id, 1), 1);
    Forget(id);
  }
  void CloseAll() {
    while (!texts_.empty()) Close(std::string(texts_.back().id));
  }
  void Fork(const std::string& parent, v1::OpenSequence child, uint32_t position) {
    v1::StreamRequest request;
    request.mutable_fork()->set_parent_request_id(parent);
    request.mutable_fork()->set_position(position);
    texts_.push_back({child.request_id(), position});
    *request.mutable_fork()->mutable_child() = std::move(child);
    Ask(request, 1);
  }
  // Leaves the text out of steps.
  void Forget(const std::string& id) {
    std::erase_if(texts_, [&](const Text& text) { return text.id == id; });
  }

  // Steps every text with `listed` at each position. `drafts`: empty for a draw. `asked`: bytes of an answer to a
  // position.
  void Step(const ListedRow& listed, const std::vector<uint32_t>& drafts, uint64_t asked,
            const std::function<void(v1::StepRow*)>& change) {
    v1::StreamRequest request;
    v1::Step& step = *request.mutable_step();
    step.set_batch_id(++batch_);
    step.mutable_logits()->set_dtype(v1::DTYPE_F32);
    step.mutable_logits()->set_vocabulary_size(kWide);
    step.mutable_logits()->mutable_pairs()->mutable_inline_()->set_payload(0);
    for (const Text& text : texts_) {
      v1::StepRow& row = *step.add_rows();
      row.set_request_id(text.id);
      row.set_step_id(batch_);
      row.set_position(text.position);
      if (text.history_hash) row.set_history_hash(*text.history_hash);
      for (const uint32_t draft : drafts) row.mutable_verify_draft()->add_draft_tokens(draft);
      if (!drafts.empty()) row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
      for (size_t i = 0; i <= drafts.size(); ++i) *row.add_compact() = listed.row;
      if (change) change(&row);
    }
    request.add_payloads(listed.pairs);
    traffic_.asked += texts_.size() * (drafts.size() + 1) * asked;
    Ask(request, static_cast<int>(texts_.size()));
  }

 private:
  struct Text {
    std::string id;
    uint32_t position = 0;
    std::optional<uint64_t> history_hash = std::nullopt;  // with a state
    bool continues = false;                               // a part of its result is to come
  };

  template <typename Result>
  static void TakeHash(const Result& result, Text* text) {
    if (result.has_history_hash()) text->history_hash = result.history_hash();
  }

  static std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  // Sends a piece of the open's history. The last one is answered.
  void AskPiece(std::span<const uint32_t> tokens, uint32_t offset, bool continues, v1::OpenSequence* open) {
    v1::History& history = *open->mutable_history();
    history.mutable_tokens()->Assign(tokens.begin(), tokens.end());
    history.set_offset(offset);
    history.set_continues(continues);
    Ask(testing::Message(*open), continues ? 0 : 1);
  }

  void Ask(const v1::StreamRequest& request, int answers) {
    if (!is_open_) return;
    traffic_.sent += request.ByteSizeLong();
    is_open_ = stream_->Write(request);
    v1::StreamResponse response;
    while (is_open_ && answers > 0 && (is_open_ = stream_->Read(&response))) {
      traffic_.answered += response.ByteSizeLong();
      answers -= Take(response);
    }
    if (!is_open_) NoteRefusal("the stream has ended");
  }

  // Returns the number of answers that the message ends; a thousand if there will be no more.
  int Take(const v1::StreamResponse& response) {
    constexpr int kAll = 1000;
    if (response.has_rejected()) return NoteError(response.rejected().error()), kAll;
    if (response.has_opened() && response.opened().has_error()) return NoteError(response.opened().error()), 1;
    if (response.has_forked() && response.forked().has_error()) return NoteError(response.forked().error()), 1;
    if (response.has_opened() || response.has_forked()) {
      const v1::OpenedState& state = response.has_opened() ? response.opened().state() : response.forked().state();
      TakeHash(state, &texts_.back());
      return state.continues() ? 0 : 1;
    }
    if (!response.has_results()) return response.has_welcome() || response.has_closed();
    if (response.results().has_error()) return NoteError(response.results().error()), kAll;
    int answers = 0;
    for (const v1::RowResult& row : response.results().rows()) {
      Text& text = texts_[row.row()];
      if (row.has_error()) NoteError(row.error());
      if (row.has_draw()) TakeHash(row.draw(), &text);
      if (row.has_verify()) TakeHash(row.verify(), &text);
      // The first part of a result says how far the text has come.
      if (!text.continues && (row.has_draw() || row.has_verify())) text.position += row.verify().accepted() + 1;
      text.continues = row.verify().continues() || row.draw().continues();
      answers += !text.continues;
    }
    return answers;
  }

  void NoteError(const v1::Error& error) {
    NoteRefusal(absl::StrCat(v1::ErrorReason_Name(error.reason()), " ", error.field(), " ", error.limit()));
  }
  void NoteRefusal(std::string text) {
    if (traffic_.refusal.empty()) traffic_.refusal = std::move(text);
  }

  const Attacked& attacked_;
  Traffic traffic_;
  grpc::ClientContext context_;
  const std::unique_ptr<v1::SamplingService::Stub> stub_ = v1::SamplingService::NewStub(MakeChannel(attacked_.address));
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream_;
  std::vector<Text> texts_;
  uint64_t batch_ = 0;
  bool is_open_ = true;
};

// Steps of the same shape, again and again.
struct StepAttack {
  uint32_t rows = kStepRows;
  uint32_t tokens = 0;  // different ones of each text
  Parameters parameters;
  bool forked = false;  // the texts are forks of one
  uint32_t listed = 64;
  std::vector<uint32_t> drafts = {};
  uint64_t asked = kRowAnswerBytes;  // bytes of an answer to a position
  bool receipts = false;
  std::function<void(v1::StepRow*)> change = nullptr;
};

using ScenarioRun = std::function<Traffic(const Attacked&)>;

Traffic RunSteps(const StepAttack& attack, const Attacked& attacked) {
  const ListedRow listed = ListRow(attack.listed);
  Assailant assailant(attacked);
  if (attack.forked) assailant.Open(MakeText("parent", attack.tokens, attack.parameters));
  for (uint32_t i = 0; i < attack.rows && assailant.GoesOn(); ++i) {
    v1::OpenSequence text = MakeText(absl::StrCat("text", i), attack.forked ? 0 : attack.tokens, attack.parameters);
    if (attack.receipts) text.mutable_receipts();
    if (attack.forked) {
      assailant.Fork("parent", std::move(text), attack.tokens);
    } else {
      assailant.Open(std::move(text));
    }
  }
  assailant.Forget("parent");
  while (assailant.GoesOn()) assailant.Step(listed, attack.drafts, attack.asked, attack.change);
  // Operators let workers keep texts: their memory is no finding.
  assailant.CloseAll();
  if (attack.forked) assailant.Close("parent");
  return assailant.traffic();
}

ScenarioRun Steps(StepAttack attack) {
  return [attack = std::move(attack)](const Attacked& attacked) { return RunSteps(attack, attacked); };
}

ScenarioRun Opens(uint32_t tokens, const Parameters& parameters) {
  return [=](const Attacked& attacked) {
    Assailant assailant(attacked);
    const v1::OpenSequence open = MakeText("text", tokens, parameters);
    while (assailant.GoesOn()) {
      assailant.Open(open);
      assailant.Close("text");
    }
    return assailant.traffic();
  };
}

Traffic RunForks(const Attacked& attacked) {
  Assailant assailant(attacked);
  assailant.Open(MakeText("parent", 300'000, SetNgrams<3>));
  while (assailant.GoesOn()) {
    assailant.Fork("parent", MakeText("fork", 0, SetNgrams<3>), 1);
    assailant.Close("fork");
  }
  return assailant.traffic();
}

// Uses the client library, as an engine does.
Traffic RunRing(const Attacked& attacked) {
  constexpr uint32_t kTokens = 60'000;
  constexpr size_t kDrafts = 16;
  Traffic traffic;
  client::ClientOptions options;
  options.targets = {attacked.memory};
  options.transport.kind = client::TransportKind::kRing;
  options.rows.form = client::RowFormOptions::Form::kCompact;
  const auto client = client::Client::Connect(options);
  if (!client.ok()) return {.refusal = std::string(client.status().message())};
  client::SequenceOptions text;
  text.request_id = "text";
  text.vocabulary_size = kTokens;
  text.parameters.set_repetition_penalty(1.1f);
  text.parameters.set_top_p(0.9f);
  for (uint32_t i = 0; i < kTokens; ++i) text.prompt.push_back(i);
  const auto sequence = (*client)->Open(text);
  if (!sequence.ok()) return {.refusal = std::string(sequence.status().message())};
  std::vector<float> logits((kDrafts + 1) * kTokens);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 1009) * 0.01f;
  const std::vector<uint32_t> drafted(kDrafts, 7);
  client::Drafts drafts;
  drafts.tokens = drafted;
  client::Batch batch;
  batch.vocabulary_size = kTokens;
  batch.rows.push_back({.sequence = sequence->get(), .logits = logits.data(), .drafts = &drafts});
  while (attacked.GoesOn()) {
    const auto results = (*client)->Step(batch);
    if (!results.ok()) {
      traffic.refusal = std::string(results.status().message());
      break;
    }
  }
  return traffic;
}

std::vector<Scenario> MakeScenarios() {
  const std::vector<uint32_t> drafts(kDrafted, 0);
  const auto add_ban = [](v1::StepRow* row) { row->mutable_mask()->add_banned_tokens(7); };
  return {
      {"worker", "forks", "forks at position 1 of 300,000 different tokens, with n-grams", &RunForks},
      {"worker", "ngram_drafts", "15 rows of 64 drafts, n-grams of 1, 100,000 different tokens",
       Steps({.tokens = 100'000, .parameters = SetNgrams<1>, .drafts = drafts})},
      {"worker", "stop_drafts", "15 rows of 64 drafts, 65,536 stop tokens that min_tokens holds back",
       Steps({.parameters = SetHeldBackStops, .drafts = drafts})},
      {"worker", "biased_bans", "15 rows, 65,536 biases, one banned token a row",
       Steps({.parameters = SetBiases, .change = add_ban})},
      {"worker", "forked_drafts", "15 rows of 64 drafts, penalties, forks of one text of 900,000 different tokens",
       Steps({.tokens = 900'000, .parameters = SetPenalties, .forked = true, .drafts = drafts})},
      {"worker", "forked_draft", "one row of 64 drafts, penalties, a fork of a text of 900,000 different tokens",
       Steps({.rows = 1, .tokens = 900'000, .parameters = SetPenalties, .forked = true, .drafts = drafts})},
      {"worker", "phase_drafts", "15 rows of 64 drafts by which a phase begins and ends, forks of 900,000 tokens",
       Steps({.tokens = 900'000, .parameters = SetPhase, .forked = true, .drafts = Alternating()})},
      {"worker", "penalty_opens", "openings of 900,000 different tokens with penalties", Opens(900'000, SetPenalties)},
      {"worker", "ngram1_opens", "openings of 100,000 different tokens with n-grams of 1",
       Opens(100'000, SetNgrams<1>)},
      {"worker", "ngram_opens", "openings of 900,000 different tokens with n-grams", Opens(900'000, SetNgrams<3>)},
      {"worker", "asked_ids", "128 rows of 4,096 listed tokens, with 1,000 ids asked for",
       Steps({.rows = 128, .parameters = SetAskedIds, .listed = kKept, .asked = kRowAnswerBytes + kAskedIds * 8})},
      {"worker", "named_tokens", "ten small rows whose refusals name 65,536 tokens each",
       Steps({.rows = 10, .parameters = SetBiases, .listed = 1})},
      {"worker", "receipts", "a row of 64 accepted drafts, and receipts of 4,096 kept tokens each",
       Steps({.rows = 1,
              .parameters = [](auto* parameters) { parameters->set_top_k(kKept); },
              .listed = kKept,
              .drafts = drafts,
              .asked = kRowAnswerBytes + kKept * 8,
              .receipts = true})},
      {"worker", "ring", "16 drafts over a ring, repetition penalty, top-p, 60,000 different tokens", &RunRing},
  };
}

}  // namespace

std::span<const Scenario> WorkerScenarios() {
  static const auto* const scenarios = new std::vector<Scenario>(MakeScenarios());
  return *scenarios;
}

}  // namespace sortition::attacks
