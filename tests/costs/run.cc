// Sends a scenario's messages to a session, or its one message to a call of Sample, and measures the last one.
#include "tests/costs/run.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/descriptor.h"
#include "kernels/check.h"
#include "service/engine.h"
#include "service/receipt/receipt_book.h"
#include "service/stream/sample_run.h"
#include "service/stream/session.h"
#include "service/wire/encode.h"
#include "service/wire/frame.h"
#include "service/wire/sample_request.h"
#include "tests/costs/heap.h"
#include "tests/costs/messages.h"
#include "tests/costs/script.h"
#include "tests/support/messages.h"
#include "tests/support/receipt_folder.h"
#include "tests/support/test_engine.h"

namespace sortition::costs {
namespace {

// Prices of what the ledger leaves to the limits on bytes, in nanoseconds.
constexpr uint64_t kByte = 10;
constexpr uint64_t kPayloadByte = 1;

constexpr uint64_t kMostBusy = 300'000'000;  // nanoseconds of a plant

uint64_t ClockOf(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}
uint64_t ThreadTime() { return ClockOf(CLOCK_THREAD_CPUTIME_ID); }

// Writes answers to bytes, as a stream does, and says at once that they have left.
class AnswerSink : public service::SessionSink {
 public:
  struct Answers {
    std::vector<std::string> messages;
    uint64_t credit = 0;  // bytes that they gave back to the window
  };

  void Send(const v1::StreamResponse& message, service::Credit credit) override {
    std::string bytes = message.SerializeAsString();
    const uint64_t given_back = credit.bytes();
    { const service::Credit left = std::move(credit); }
    absl::MutexLock lock(&mutex_);
    answers_.messages.push_back(std::move(bytes));
    answers_.credit += given_back;
  }
  // Waits until there are answers, or more of them; for a millisecond at most, since a step may end without one.
  void AwaitAnswers() {
    absl::MutexLock lock(&mutex_);
    const size_t before = answers_.messages.size();
    const auto has_more = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answers_.messages.size() > before; };
    mutex_.AwaitWithTimeout(absl::Condition(&has_more), absl::Milliseconds(1));
  }
  bool has_answers() {
    absl::MutexLock lock(&mutex_);
    return !answers_.messages.empty();
  }
  Answers Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(answers_, {});
  }

 private:
  absl::Mutex mutex_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
};

void AddFields(const google::protobuf::Message& message, std::set<std::string>* fields) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  const auto& reflection = *message.GetReflection();
  reflection.ListFields(message, &set);
  for (const auto* const field : set) {
    fields->emplace(field->full_name());
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      AddFields(reflection.GetMessage(message, field), fields);
    } else {
      // All elements of a list have the fields of its first.
      AddFields(reflection.GetRepeatedMessage(message, field, 0), fields);
    }
  }
}

class World : public Script {
 public:
  World(const Scenario& scenario, Plant plant, std::set<std::string>* sent)
      : scenario_(scenario), plant_(plant), sent_(sent) {
    if (scenario.Has("receipts")) {
      static auto* const folder = new testing::ReceiptFolder();
      service::ReceiptSettings settings;
      settings.key_file = folder->key_file();
      book_ = *service::ReceiptBook::Start(settings, &observer_, &log_);
    }
    engine_.emplace(book_ != nullptr ? testing::TestEngine::OnCpuWith(book_.get()) : testing::TestEngine::OnCpu({}, 1));
    held_at_start_ = HeapHeld();
    messages_.emplace(scenario);
    session_ = std::make_unique<service::Session>(engine_->get(), "default", sink_);
  }

  Measurement Play() {
    if (scenario_.kind == Kind::kSample) {
      MeasureCall(messages_->Sample());
    } else if (const auto message = Prepare(scenario_, engine_->get(), &*messages_)) {
      MeasureMessage(*message);
    }
    session_.reset();
    sink_->Take();
    answers_ = {};
    messages_.reset();
    measured_.left_charged_bytes = ChargedBytes();
    measured_.left_bytes = HeldSince(held_at_start_, measured_.left_charged_bytes);
    return measured_;
  }

 private:
  bool Send(const Request& message, bool holds) override {
    testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
    if (holds) measured_.shard_bytes += delivery.bytes->size();
    if (auto frame = Decode(std::move(delivery))) session_->OnFrame(*std::move(frame));
    if (!holds) AwaitIdle();
    TakeAnswers();
    return Note(message);
  }

  // Returns none if the message is refused as it is read, which the session then answers.
  std::optional<service::Frame> Decode(testing::Delivery delivery) {
    auto decoded = service::DecodeFrame(delivery.segments, std::move(delivery.bytes));
    if (auto* const frame = std::get_if<service::Frame>(&decoded)) return std::move(*frame);
    session_->OnRejectedFrame(std::get<service::Refusal>(decoded));
    return std::nullopt;
  }

  void AwaitIdle() {
    // Shards wait on if the last one was refused.
    const absl::Time end = absl::Now() + absl::Seconds(scenario_.is_sharded() ? 1 : 60);
    while (!(call_ ? sink_->has_answers() : session_->Idle()) && absl::Now() < end) sink_->AwaitAnswers();
  }

  // A device's thread may hold a step for a moment after its answers.
  static int64_t HeldSince(int64_t before, int64_t charged) {
    const absl::Time end = absl::Now() + absl::Milliseconds(50);
    while (HeapHeld() - before > charged + (64 << 10) && absl::Now() < end) std::this_thread::yield();
    return HeapHeld() - before;
  }

  AnswerSink::Answers TakeAnswers() {
    AnswerSink::Answers taken = sink_->Take();
    answers_.clear();
    for (const std::string& answer : taken.messages) SORTITION_CHECK(answers_.emplace_back().ParseFromString(answer));
    return taken;
  }

  bool Note(const google::protobuf::Message& message) {
    for (const v1::StreamResponse& answer : answers_) {
      for (const v1::Error* const error : ErrorsOf(answer)) {
        if (scenario_.kind == Kind::kCancel && error->reason() == v1::STEP_CANCELLED) continue;
        measured_.error = *error;
        return false;
      }
    }
    if (sent_ != nullptr) AddFields(message, sent_);
    return true;
  }

  int64_t ChargedBytes() {
    service::Engine& engine = *engine_->get();
    return static_cast<int64_t>(engine.sequences().state_bytes() + engine.masks().bytes() +
                                engine.shards().kept_bytes());
  }

  void MeasureMessage(const Request& message) {
    uint64_t payload_bytes = 0;
    for (const std::string& payload : message.payloads()) payload_bytes += payload.size();
    const auto begin = [&](testing::Delivery delivery) {
      if (auto frame = Decode(std::move(delivery))) session_->BeginFrame(*std::move(frame));
    };
    const auto go_on = [&] {
      if (session_->back_off() == absl::ZeroDuration()) return false;
      session_->Continue();
      return true;
    };
    Measure(message, payload_bytes, begin, go_on);
  }

  // The answer of a call becomes that to a step with the same rows.
  void MeasureCall(const v1::SampleRequest& message) {
    const auto answer = [sink = sink_](service::SampleRun::Answer given) {
      v1::StreamResponse response;
      if (const auto* refusal = std::get_if<service::Refusal>(&given)) {
        service::EncodeError(*refusal, response.mutable_results()->mutable_error());
      } else {
        response.mutable_results()->mutable_rows()->Swap(std::get<v1::SampleResponse>(given).mutable_rows());
      }
      sink->Send(response, service::Credit());
    };
    const auto begin = [&](testing::Delivery delivery) {
      const std::string whole(*delivery.bytes);  // the network's pieces are joined
      auto decoded = service::DecodeSample(whole);
      if (const auto* refusal = std::get_if<service::Refusal>(&decoded)) return answer(*refusal);
      auto request = std::get<std::shared_ptr<const v1::SampleRequest>>(std::move(decoded));
      call_.emplace(engine_->get(), "default", std::move(request), whole.size());
      call_->Start(absl::InfiniteDuration(), answer);
    };
    const auto go_on = [&] {
      if (!call_ || !call_->has_pieces()) return false;
      call_->Continue();
      return true;
    };
    Measure(message, message.logits().size(), begin, go_on);
  }

  // Both are called on the stream's thread. `begin` takes a testing::Delivery. `go_on` returns false, and does nothing,
  // once all is done.
  template <typename Begin, typename GoOn>
  void Measure(const google::protobuf::Message& message, uint64_t payload_bytes, Begin begin, GoOn go_on) {
    service::Engine& engine = *engine_->get();
    measured_.positions = messages_->all_positions();
    measured_.asked_bytes = AskedBytes(scenario_, *messages_);
    measured_.message_bytes = message.SpaceUsedLong();
    const int64_t charged = ChargedBytes();
    const uint64_t work = engine.ledger().work();
    const int64_t held = HeapHeld();
    {
      testing::Delivery delivery = testing::Deliver(message.SerializeAsString());
      measured_.request_bytes = delivery.bytes->size();
      const int64_t before = HeapHeld();
      ResetHeapPeak();
      const uint64_t process_start = ClockOf(CLOCK_PROCESS_CPUTIME_ID);
      const uint64_t start = ThreadTime();
      BeBusy();
      begin(std::move(delivery));
      uint64_t called = ThreadTime();
      measured_.longest_call = called - start;
      while (go_on()) {
        const uint64_t now = ThreadTime();
        measured_.longest_call = std::max(measured_.longest_call, now - called);
        called = now;
      }
      measured_.time = called - start;
      measured_.charged_bytes = ChargedBytes() - charged;
      AwaitIdle();
      const uint64_t process_time = ClockOf(CLOCK_PROCESS_CPUTIME_ID) - process_start;
      measured_.device_time = process_time - std::min(process_time, ThreadTime() - start);
      measured_.peak_bytes = HeapPeak() - before;
      call_.reset();
    }
    // The accounts have had the options of a sequence that is opened anew since it was opened, for stream and table.
    const int64_t accounted = ChargedBytes() - (scenario_.kind == Kind::kReopen ? 0 : charged);
    measured_.charged_bytes = std::max(measured_.charged_bytes, accounted);
    // A step that waits is charged to the stream's window.
    if (!session_->Idle()) measured_.charged_bytes += static_cast<int64_t>(measured_.request_bytes);
    const AnswerSink::Answers taken = TakeAnswers();
    for (const std::string& answer : taken.messages) measured_.answer_bytes += answer.size();
    measured_.window_bytes = std::max<int64_t>(static_cast<int64_t>(taken.credit - measured_.request_bytes), 0);
    Note(message);
    answers_ = {};
    measured_.kept_bytes = HeldSince(held, measured_.charged_bytes);
    measured_.is_measured = true;
    const uint64_t bytes =
        kByte * (measured_.request_bytes - payload_bytes + measured_.answer_bytes) + kPayloadByte * payload_bytes;
    measured_.price = bytes + engine.ledger().work() - work;
    if (plant_ == Plant::kTenthPrice) measured_.price /= 10;
  }

  // Does what the plant stands for.
  void BeBusy() const {
    const uint64_t end = ThreadTime() + std::min(WorkOf(plant_, scenario_, *messages_), kMostBusy);
    while (ThreadTime() < end) {
    }
  }

  const Scenario& scenario_;
  const Plant plant_;
  std::set<std::string>* const sent_;
  int64_t held_at_start_ = 0;
  testing::CountingObserver observer_;
  testing::RecordingEventLog log_;
  std::unique_ptr<service::ReceiptBook> book_;
  std::optional<testing::TestEngine> engine_;
  std::optional<Messages> messages_;
  const std::shared_ptr<AnswerSink> sink_ = std::make_shared<AnswerSink>();
  std::unique_ptr<service::Session> session_;
  std::optional<service::SampleRun> call_;
  Measurement measured_;
};

}  // namespace

Measurement Run(const Scenario& scenario, Plant plant, std::set<std::string>* sent) {
  CountHeapOfThisThread();
  return World(scenario, plant, sent).Play();
}

}  // namespace sortition::costs
