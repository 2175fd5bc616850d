// Sessions: a worker that steps, repeats, cuts, forks and comes back as the input says, against the plain sequence.
#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/messages.h"
#include "tests/support/plain_sequence.h"
#include "tests/support/recording_sink.h"
#include "tests/support/test_engine.h"

namespace sortition::fuzz {
namespace {

using testing::PlainSequence;
using testing::RecordingSink;
using testing::StepBuilder;

constexpr uint32_t kVocabulary = 24;
constexpr uint32_t kSequences = 3;
constexpr uint32_t kMostTokens = 200;  // of a history

v1::OpenSequence MakeOpen(std::string_view request_id, Input* input) {
  v1::OpenSequence open = testing::MakeOpen(request_id, 1, kVocabulary);
  v1::SamplingParameters& parameters = *open.mutable_parameters();
  const uint32_t set = input->Byte();
  if (set & 1) parameters.set_frequency_penalty(0.75f);
  if (set & 2) parameters.set_presence_penalty(-0.5f);
  if (set & 4) parameters.set_repetition_penalty(1.25f);
  if (set & 8) parameters.set_top_k(5);
  if (set & 16) parameters.set_top_p(0.9f);
  if (set & 32) parameters.mutable_raw_logprobs()->set_top(2);
  if (set & 64) parameters.mutable_processed_logprobs();
  if (set & 128) parameters.add_banned_token_ids(3);
  std::vector<uint32_t> prompt(input->Below(8));
  for (uint32_t& token : prompt) token = input->Below(kVocabulary);
  if ((set & 7) == 0) return open;
  open.mutable_history()->mutable_tokens()->Assign(prompt.begin(), prompt.end());
  open.mutable_history()->set_prompt_length(uint32_t(prompt.size()));
  return open;
}

// One worker, its stream, and the expected state of its sequences.
class World {
 public:
  explicit World(Input* input) : input_(*input) { Connect(); }
  ~World() { session_->Close(); }

  void Act() {
    Sequence& sequence = sequences_[input_.Below(kSequences)];
    if (!sequence.plain) return Open(&sequence);
    switch (input_.Below(10)) {
      case 0:
        return Repeat(&sequence);
      case 1:
        return ComeBack();
      case 2:
        return ForgetAndReplay(&sequence);
      case 3:
        return StepOfThePast(&sequence);
      case 4:
        return StepWithWrongHash(&sequence);
      case 5:
        return Fork(sequence);
      default:
        return Step(&sequence);
    }
  }

 private:
  struct Sequence {
    v1::OpenSequence open;  // without its history
    bool is_stateful = false;
    std::optional<PlainSequence> plain;
    uint64_t step_id = 0;
    v1::StreamRequest last;  // step
    std::string last_answer;
  };

  void Connect() {
    if (session_ != nullptr) session_->Close();
    sink_ = std::make_shared<RecordingSink>();
    session_ = std::make_unique<service::Session>(engine_.get(), "fuzz", sink_);
    Ask(testing::Hello("worker"));
    ++epoch_;
  }

  // Sends a message, whose answer comes at once.
  v1::StreamResponse Ask(const v1::StreamRequest& message) {
    const testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
    auto frame = service::DecodeFrame(delivery.segments, delivery.bytes);
    if (!std::holds_alternative<service::Frame>(frame)) Fail("a message was refused as malformed");
    session_->OnFrame(std::move(std::get<service::Frame>(frame)));
    auto answer = sink_->Take([](const v1::StreamResponse&) { return true; });
    if (!answer) Fail("no answer");
    if (sink_->size() != 0) Fail("two answers");
    sink_->LetLeave();
    if (!session_->Idle()) Fail("the window is not empty");
    return *std::move(answer);
  }

  v1::OpenedState MustOpen(const v1::OpenSequence& open) {
    const v1::StreamResponse answer = Ask(testing::Message(open));
    if (!answer.opened().has_state()) Fail("not opened: " + answer.ShortDebugString());
    return answer.opened().state();
  }

  void Open(Sequence* sequence) {
    const auto index = size_t(sequence - sequences_);
    v1::OpenSequence open = MakeOpen(absl::StrCat("request", index, ".", forks_), &input_);
    open.set_epoch(epoch_);
    const v1::OpenedState state = MustOpen(open);
    sequence->is_stateful = state.stateful();
    sequence->plain.emplace(open);
    sequence->open = open;
    sequence->open.clear_history();
    Expect(*sequence, state);
  }

  void Expect(const Sequence& sequence, const v1::OpenedState& state) {
    if (!sequence.is_stateful) return;
    if (state.position() != sequence.plain->position() || state.history_hash() != sequence.plain->hash()) {
      Fail(absl::StrCat("a sequence at ", state.position(), " that should be at ", sequence.plain->position()));
    }
  }

  v1::RowResult Run(const v1::StreamRequest& step) {
    const v1::StreamResponse answer = Ask(step);
    if (answer.results().rows_size() != 1) Fail("not answered: " + answer.ShortDebugString());
    return answer.results().rows(0);
  }

  v1::StreamRequest NextStep(const Sequence& sequence, const std::string& logits, uint32_t salt) {
    StepBuilder step(++batch_id_, kVocabulary);
    v1::StepRow& row =
        step.AddRow(sequence.open.request_id(), sequence.step_id + 1, sequence.plain->position(), logits);
    if (sequence.is_stateful) row.set_history_hash(sequence.plain->hash());
    if (salt != 0) row.set_draw_salt(salt);
    return step.Build();
  }

  void Step(Sequence* sequence) {
    if (sequence->plain->position() >= kMostTokens) return;
    std::mt19937_64 random(input_.Word());
    const std::string logits = testing::RandomLogits(kernels::DType::kF32, kVocabulary, &random);
    const uint32_t salt = input_.Below(3);
    PlainSequence& plain = *sequence->plain;
    std::optional<uint32_t> cut;
    const uint32_t appended = input_.Below(3);
    if (sequence->is_stateful && input_.OneIn(4) && plain.position() > 1) {
      cut = plain.position() - 1 - input_.Below(std::min(plain.position() - 1, 20u));
      plain.TruncateTo(*cut);
    }
    std::vector<uint32_t> append;
    if (sequence->is_stateful) {
      for (uint32_t i = 0; i < appended; ++i) {
        append.push_back(input_.Below(kVocabulary));
        plain.Append(append.back());
      }
    }
    v1::StreamRequest step = NextStep(*sequence, logits, salt);
    v1::StepRow& row = *step.mutable_step()->mutable_rows(0);
    if (cut) row.set_truncate_to(*cut);
    for (const uint32_t token : append) row.add_append_tokens(token);

    v1::DrawResult expected = plain.Draw({.logits = logits, .draw_salt = salt});
    plain.Append(expected.token());
    if (sequence->is_stateful) expected.set_history_hash(plain.hash());
    const v1::RowResult result = Run(step);
    if (result.draw().SerializeAsString() != expected.SerializeAsString()) {
      Fail(absl::StrCat("answered ", result.ShortDebugString(), ", expected ", expected.ShortDebugString()));
    }
    ++sequence->step_id;
    sequence->last = step;
    sequence->last_answer = result.SerializeAsString();
    // Planted defect: a sequence counts a token twice.
    if (planted && sequence->is_stateful && plain.position() % 7 == 0) plain.Append(expected.token());
  }

  void Repeat(Sequence* sequence) {
    if (sequence->step_id == 0 || !sequence->is_stateful) return;
    sequence->last.mutable_step()->set_batch_id(++batch_id_);
    if (Run(sequence->last).SerializeAsString() != sequence->last_answer) Fail("another answer to the same step");
  }

  // Continues every sequence on a new stream from the service's state.
  void ComeBack() {
    Connect();
    for (Sequence& sequence : sequences_) {
      if (!sequence.plain) continue;
      sequence.open.set_epoch(epoch_);
      Expect(sequence, MustOpen(sequence.open));
    }
  }

  void ForgetAndReplay(Sequence* sequence) {
    Ask(testing::MakeClose(sequence->open.request_id(), epoch_));
    v1::OpenSequence open = sequence->open;
    open.set_epoch(epoch_);
    if (sequence->is_stateful) {
      const v1::StreamResponse answer = Ask(testing::Message(open));
      if (answer.opened().error().reason() != v1::HISTORY_REQUIRED) Fail("a closed sequence is still known");
      const std::vector<uint32_t>& tokens = sequence->plain->tokens();
      open.mutable_history()->mutable_tokens()->Assign(tokens.begin(), tokens.end());
      open.mutable_history()->set_prompt_length(sequence->plain->prompt_length());
    }
    Expect(*sequence, MustOpen(open));
    sequence->last_answer.clear();
    sequence->step_id = 0;
  }

  void StepOfThePast(Sequence* sequence) {
    if (sequence->step_id < 2 || !sequence->is_stateful) return;
    v1::StreamRequest step = NextStep(*sequence, testing::F32Peak(kVocabulary, 1), 0);
    step.mutable_step()->mutable_rows(0)->set_step_id(sequence->step_id - 1);
    if (Run(step).error().reason() != v1::STALE_STEP) Fail("a step of the past was not refused");
  }

  void StepWithWrongHash(Sequence* sequence) {
    if (!sequence->is_stateful) return;
    v1::StreamRequest step = NextStep(*sequence, testing::F32Peak(kVocabulary, 1), 0);
    step.mutable_step()->mutable_rows(0)->set_history_hash(sequence->plain->hash() ^ (1u << input_.Below(32)));
    if (Run(step).error().reason() != v1::HISTORY_REQUIRED) Fail("a step of another history was not refused");
  }

  void Fork(const Sequence& parent) {
    Sequence& child = sequences_[input_.Below(kSequences)];
    if (&child == &parent || !parent.is_stateful) return;
    const std::string before = child.plain ? child.open.request_id() : "";
    v1::StreamRequest message;
    v1::ForkSequence& fork = *message.mutable_fork();
    fork.set_parent_request_id(parent.open.request_id());
    *fork.mutable_child() = parent.open;
    fork.mutable_child()->set_request_id(absl::StrCat("fork", ++forks_));
    fork.mutable_child()->set_epoch(epoch_);
    fork.mutable_child()->set_choice_index(forks_);
    const v1::StreamResponse answer = Ask(message);
    if (!answer.forked().has_state()) Fail("not forked: " + answer.ShortDebugString());
    v1::OpenSequence open = fork.child();
    const std::vector<uint32_t>& tokens = parent.plain->tokens();
    open.mutable_history()->mutable_tokens()->Assign(tokens.begin(), tokens.end());
    open.mutable_history()->set_prompt_length(parent.plain->prompt_length());
    if (!before.empty()) Ask(testing::MakeClose(before, epoch_));
    child.step_id = 0;
    child.last_answer.clear();
    child.open = fork.child();
    child.is_stateful = true;
    child.plain.emplace(open);
    Expect(child, answer.forked().state());
  }

  Input& input_;
  testing::TestEngine engine_ = testing::TestEngine::OnFake({}, {.synchronous = true});
  std::shared_ptr<RecordingSink> sink_;
  std::unique_ptr<service::Session> session_;
  uint64_t epoch_ = 0;
  uint64_t batch_id_ = 0;
  uint32_t forks_ = 0;
  Sequence sequences_[kSequences];
};

}  // namespace

void Run(Bytes bytes) {
  Input input(bytes);
  World world(&input);
  for (int acts = 0; acts < 400 && !input.empty(); ++acts) world.Act();
}

}  // namespace sortition::fuzz
