// Random sequences, their drafts, and two engines that get the same messages.
#include "tests/support/device_texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "devices/cpu/cpu_device.h"
#include "service/engine.h"
#include "tests/support/fake_clock.h"
#include "tests/support/messages.h"
#include "tests/support/plain_sequence.h"
#include "tests/support/stream_worker.h"

namespace sortition::testing {
namespace {

constexpr uint32_t kVocabulary = 80;
constexpr uint32_t kSteps = 6;

struct CountByDevice : service::NullObserver {
  void BatchStarted(std::string_view device, uint32_t, service::RouteReason) override {
    absl::MutexLock lock(&mutex);
    ++batches[std::string(device)];
  }
  absl::Mutex mutex;
  std::map<std::string, uint64_t> batches ABSL_GUARDED_BY(mutex);
};

std::unique_ptr<devices::Device> Cpu(std::string name) {
  devices::CpuDeviceOptions options;
  options.name = std::move(name);
  options.threads = 1;
  return std::make_unique<devices::CpuDevice>(options);
}

service::Engine::Options MakeOptions(std::unique_ptr<devices::Device> first, std::unique_ptr<devices::Device> second,
                                     const service::Clock* clock, service::Observer* observer) {
  service::Engine::Options options;
  options.devices.push_back(std::move(first));
  if (second != nullptr) options.devices.push_back(std::move(second));
  options.clock = clock;
  options.observer = observer;
  return options;
}

// Writes texts on two streams.
class Writer {
 public:
  Writer(service::Engine* mixed, service::Engine* alone) : mixed_(mixed), alone_(alone) {}

  void Write(uint64_t number) {
    random_.seed(number);
    open_ = OpenNumber(number);
    PlainSequence plain(open_);
    plain_cut_.reset();
    ASSERT_EQ(mixed_.MustOpen(open_).history_hash(), alone_.MustOpen(open_).history_hash());
    for (uint64_t step = 1; step <= kSteps; ++step) {
      StepBuilder builder(number * kSteps + step, kVocabulary);
      AddStep(step, &plain, &builder);
      const v1::StreamRequest message = builder.Build();
      const std::vector<v1::RowResult> results[] = {mixed_.Run(message), alone_.Run(message)};
      ASSERT_EQ(results[0].size(), 1u);
      ASSERT_EQ(results[1].size(), 1u);
      const v1::RowResult& result = results[0][0];
      ASSERT_EQ(result.SerializeAsString(), results[1][0].SerializeAsString()) << number << ", step " << step;
      ASSERT_TRUE(result.has_verify()) << result.ShortDebugString();
      Count(result.verify());
      for (const uint32_t token : TokensOf(result.verify())) plain.Append(token);
      if (result.verify().has_rewind()) plain_cut_ = result.verify().rewind().position();
      mixed_.LetLeave();
      alone_.LetLeave();
    }
    for (StreamWorker* const worker : {&mixed_, &alone_}) worker->Send(MakeClose(open_.request_id(), 1));
  }

  void ExpectMet(uint64_t texts) const {
    EXPECT_GT(accepted_, texts);
    EXPECT_GT(crossed_, texts / 4);
    EXPECT_GT(repetitions_, texts / 16);
    EXPECT_GT(rewinds_, texts / 16);
    for (const uint64_t count : modes_) EXPECT_GT(count, texts / 4);
  }

 private:
  uint32_t Below(uint32_t end) { return uint32_t(random_() % end); }
  uint32_t Token() { return Below(8); }  // one that texts use

  v1::OpenSequence OpenNumber(uint64_t number) {
    v1::OpenSequence open = MakeOpen(absl::StrCat("text", number), 1, kVocabulary);
    open.set_seed(number);
    v1::SamplingParameters& p = *open.mutable_parameters();
    p.set_temperature(0.5f + 0.1f * float(Below(10)));
    if (Below(2) == 0) p.set_top_k(3 + Below(40));
    if (Below(2) == 0) p.set_top_p(0.9f);
    if (Below(2) == 0) p.mutable_min_k()->set_tau(3);
    if (Below(4) == 0) p.set_min_keep(2 + Below(4));
    if (Below(2) == 0) p.mutable_processed_logprobs()->set_top(2);
    p.set_presence_penalty(0.25f);
    v1::RepetitionStop& stop = *p.mutable_repetition_stop();
    stop.set_repeats(2);
    stop.set_max_period(3);
    stop.set_min_length(0);
    v1::TokenSequence& phrase = *p.add_banned_phrases();
    for (int i = 0; i < 2; ++i) phrase.add_tokens(Token());
    v1::Phase& phase = *p.add_phases();
    phase.add_begin(1);
    phase.add_end(2);
    phase.set_max_tokens(2 + Below(3));
    phase.add_then(Token());
    phase.add_then(2);
    phase.mutable_parameters()->set_temperature(0.4f);
    phase.mutable_parameters()->set_top_k(2 + Below(10));
    phase.mutable_parameters()->set_frequency_penalty(0.5f);
    for (uint32_t i = Below(4); i > 0; --i) open.mutable_history()->add_tokens(Token());
    open.mutable_history()->set_prompt_length(uint32_t(open.history().tokens_size()));
    return open;
  }

  std::vector<float> Logits() {
    std::vector<float> logits(kVocabulary);
    for (uint32_t id = 0; id < kVocabulary; ++id) logits[id] = float(Below(64)) / 16 + (id < 8 ? 4 : 0);
    return logits;
  }

  // A drafter's distribution: the small tokens alone.
  static void SetDrafter(v1::SparseProbabilities* sparse) {
    for (uint32_t id = 0; id < 8; ++id) {
      sparse->add_tokens(id);
      sparse->add_probabilities(0.125f);
    }
  }

  // Adds a step with one row with drafts. Cuts the text before if the last answer demands it, or by chance.
  void AddStep(uint64_t step, PlainSequence* plain, StepBuilder* builder) {
    std::optional<uint32_t> cut = std::exchange(plain_cut_, std::nullopt);
    if (!cut && plain->position() > open_.history().prompt_length() + 2 && Below(4) == 0) cut = plain->position() - 2;
    const bool bans = cut.has_value();
    if (cut) plain->TruncateTo(*cut);
    v1::StepRow& row = builder->AddRow(open_.request_id(), step, plain->position(), F32Bytes(Logits()));
    row.set_history_hash(plain->hash());
    if (cut) row.set_truncate_to(*cut);
    const uint32_t mode = Below(4);
    ++modes_[mode];
    const uint32_t drafts = 1 + Below(5);
    for (uint32_t i = 0; i < drafts; ++i) builder->AddTensorRow(F32Bytes(Logits()));
    if (mode == 3) {
      v1::VerifyTree& tree = *row.mutable_verify_tree();
      tree.set_mode(v1::VERIFY_MODE_REJECTION);
      tree.set_draft_sampling(v1::DRAFT_SAMPLING_WITH_REPLACEMENT);
      for (uint32_t i = 0; i < drafts; ++i) {
        tree.add_draft_tokens(Token());
        tree.add_parents(int32_t(Below(std::min(i + 1, 2u))) - 1);
      }
      const bool two = std::ranges::count(tree.parents(), 0) > 0;
      for (int i = 0; i < (two ? 2 : 1); ++i) SetDrafter(tree.add_sparse_probabilities());
    } else {
      v1::VerifyDraft& chain = *row.mutable_verify_draft();
      static constexpr v1::VerifyMode kModes[] = {v1::VERIFY_MODE_COUPLED, v1::VERIFY_MODE_REJECTION,
                                                  v1::VERIFY_MODE_BLOCK};
      chain.set_mode(kModes[mode]);
      for (uint32_t i = 0; i < drafts; ++i) {
        chain.add_draft_tokens(Token());
        if (mode != 0) SetDrafter(chain.add_sparse_probabilities());
      }
    }
    if (bans) row.mutable_mask()->add_banned_tokens(Token());
  }

  void Count(const v1::VerifyResult& verify) {
    accepted_ += verify.accepted();
    repetitions_ += verify.finish_reason() == v1::FINISH_REASON_REPETITION;
    rewinds_ += verify.has_rewind();
    for (int i = 1; i < verify.positions_size(); ++i) {
      crossed_ += verify.positions(i).phase() != verify.positions(i - 1).phase();
    }
  }

  StreamWorker mixed_;
  StreamWorker alone_;
  std::mt19937_64 random_;
  v1::OpenSequence open_;
  std::optional<uint32_t> plain_cut_;  // the last answer's rewind
  uint64_t accepted_ = 0;
  uint64_t crossed_ = 0;
  uint64_t repetitions_ = 0;
  uint64_t rewinds_ = 0;
  std::array<uint64_t, 4> modes_ = {};
};

}  // namespace

void MakeAlike(std::initializer_list<devices::Device*> devices, service::DeviceKeeper* keeper) {
  for (const devices::Device* device : devices) {
    keeper->SetSelfTested(device, {absl::OkStatus(), 0, {{.rows = 1, .bytes = 1, .time = absl::ZeroDuration()}}});
  }
}

void CompareTexts(std::unique_ptr<devices::Device> device, uint64_t texts) {
  const FakeClock clock;
  CountByDevice observer;
  const std::string name = device->description().name;
  service::Engine mixed(MakeOptions(std::move(device), Cpu("cpu"), &clock, &observer));
  MakeAlike({mixed.devices()[0].get(), mixed.devices()[1].get()}, &mixed.batcher().keeper());
  service::Engine alone(MakeOptions(Cpu("alone"), nullptr, &clock, &observer));
  Writer writer(&mixed, &alone);
  for (uint64_t number = 1; number <= texts && !::testing::Test::HasFailure(); ++number) writer.Write(number);
  if (::testing::Test::HasFailure()) return;
  writer.ExpectMet(texts);
  absl::MutexLock lock(&observer.mutex);
  EXPECT_GT(observer.batches[name], texts);
  EXPECT_GT(observer.batches["cpu"], texts);
}

}  // namespace sortition::testing
