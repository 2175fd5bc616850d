// Streams: a worker's valid messages of every kind and option, some of them damaged, to a session, over a ring and over
// gRPC. Each message is answered, the stream ends when its worker ends it, and nothing stays behind.
#include "tests/costs/scenario.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "devices/cpu/cpu_device.h"
#include "service/calls/ring_stream.h"
#include "service/engine.h"
#include "service/memory/ring.h"
#include "service/process/process.h"
#include "service/receipt/receipt_book.h"
#include "service/server.h"
#include "service/stream/session.h"
#include "tests/costs/script.h"
#include "tests/fuzz/bend.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/fake_clock.h"
#include "tests/support/messages.h"
#include "tests/support/receipt_folder.h"

namespace sortition::fuzz {
namespace {

using costs::Request;
using costs::Scenario;

constexpr char kTenant[] = "default";                       // of all streams
constexpr absl::Duration kLongestWait = absl::Seconds(15);  // for an answer, and for an end
constexpr uint64_t kMostWork = 4096;                        // of DrawScenario; also the largest vocabulary
constexpr uint64_t kRepairs = 12;                           // refusals of a scenario that are mended
// Longer answers end a ring's stream. Planted defect: a limit that some answers pass.
uint64_t LongestAnswer() { return planted ? 4096 : service::kMostRingMessageBytes; }

// Everything behind the streams. Kept between inputs; the clock moves only between them.
class Service {
 public:
  Service() {
    // As sortitiond and the clients of tests do.
    setenv("GRPC_EXPERIMENTS", "-event_engine_client", 0);
    server::ReadOnStreamThreads();
    server::Config config;
    config.listen = {"127.0.0.1:0"};
    config.metrics_listen.clear();
    auto server = server::Server::Start(config, &engine_, &log_, [] {});
    if (!server.ok()) Fail(server.status().ToString());
    server_ = std::move(*server);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(server_->addresses().front().ToString(), grpc::InsecureChannelCredentials(),
                                         arguments);
  }

  service::Engine* engine() { return &engine_; }
  server::Log* log() { return &log_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // One stream at a time has it.
  const std::shared_ptr<const service::Region>& ring_memory() const { return ring_.memory; }

  // The streams have ended: forgets their sequences. Nothing else may be left of them.
  void Forget() {
    const absl::Time end = absl::Now() + kLongestWait;
    while (HasRest()) {
      if (absl::Now() >= end) Fail("a stream that is over still holds something");
      std::this_thread::yield();
    }
    clock_.Advance(absl::Minutes(10));
    engine_.Sweep();
  }

 private:
  bool HasRest() {
    if (engine_.sequences().ForgetAll(kTenant).busy > 0) return true;
    if (engine_.sequences().state_bytes() > 0 || engine_.masks().bytes() > 0 || server_->streams() > 0) return true;
    return std::ranges::any_of(engine_.clients().all(), [](const auto& account) { return account->use().streams > 0; });
  }

  service::MemoryConnection::Ring MakeRing() {
    auto connected = engine_.regions().Connect([] {});
    auto made = std::get<std::shared_ptr<service::MemoryConnection>>(connected)->MakeRing(service::kRingPairBytes);
    return std::move(std::get<service::MemoryConnection::Ring>(made));
  }
  static service::Engine::Options OptionsOf(const service::Clock* clock, service::Observer* observer,
                                            service::ReceiptBook* book) {
    service::Engine::Options options;
    options.devices.push_back(std::make_unique<devices::CpuDevice>(devices::CpuDeviceOptions{.threads = 1}));
    options.clock = clock;
    options.observer = observer;
    options.receipts = book;
    return options;
  }
  std::unique_ptr<service::ReceiptBook> StartBook() {
    const testing::ReceiptFolder folder;
    service::ReceiptSettings settings;
    settings.key_file = folder.key_file();
    auto book = service::ReceiptBook::Start(settings, &observer_, &event_log_);
    if (!book.ok()) Fail(book.status().ToString());
    return *std::move(book);
  }

  testing::FakeClock clock_;
  service::NullObserver observer_;
  service::NullEventLog event_log_;
  server::Log log_{server::LogLevel::kError, [](std::string_view) {}};
  const std::unique_ptr<service::ReceiptBook> book_ = StartBook();
  service::Engine engine_{OptionsOf(&clock_, &observer_, book_.get())};
  const service::MemoryConnection::Ring ring_ = MakeRing();
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// A worker's end of a stream. An answer or an end that does not come is a finding.
class Link {
 public:
  virtual ~Link() = default;
  virtual void Send(const std::string& message) = 0;
  virtual std::string Receive() = 0;
  // Ends the stream when everything is answered. Returns the answers that were left.
  virtual std::vector<std::string> End() = 0;
};

class SessionLink final : public Link {
 public:
  explicit SessionLink(Service* service) : session_(service->engine(), kTenant, sink_) {}

  void Send(const std::string& message) override {
    const testing::Delivery delivery = testing::Deliver(message);
    auto decoded = service::DecodeFrame(delivery.segments, delivery.bytes);
    if (auto* frame = std::get_if<service::Frame>(&decoded)) {
      session_.OnFrame(std::move(*frame));
    } else {
      session_.OnRejectedFrame(std::get<service::Refusal>(decoded));
    }
  }
  std::string Receive() override { return sink_->Take(); }
  std::vector<std::string> End() override {
    const absl::Time end = absl::Now() + kLongestWait;
    while (!session_.Idle()) {
      if (absl::Now() >= end) Fail("a step was never answered");
      std::this_thread::yield();
    }
    session_.Close();
    return sink_->TakeAll();
  }

 private:
  class Sink : public service::SessionSink {
   public:
    void Send(const v1::StreamResponse& message, service::Credit) override {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(message.SerializeAsString());
    }
    std::string Take() {
      absl::MutexLock lock(&mutex_);
      const auto has_one = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !answers_.empty(); };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&has_one), kLongestWait)) Fail("no answer of a session");
      std::string answer = std::move(answers_.front());
      answers_.pop_front();
      return answer;
    }

    std::vector<std::string> TakeAll() {
      absl::MutexLock lock(&mutex_);
      return {answers_.begin(), answers_.end()};
    }

   private:
    absl::Mutex mutex_;
    std::deque<std::string> answers_ ABSL_GUARDED_BY(mutex_);
  };

  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  service::Session session_;
};

class RingLink final : public Link {
 public:
  explicit RingLink(Service* service) : rings_(service->ring_memory()->data()) {
    std::memset(service->ring_memory()->data(), 0, service::kRingWordsBytes);
    stream_.emplace(server::RingStream::Options{.engine = service->engine(),
                                                .log = service->log(),
                                                .peer = "ring",
                                                .tenant = kTenant,
                                                .still_authorized = [] { return true; },
                                                .spin = absl::ZeroDuration(),
                                                .drain_grace = absl::Minutes(1),
                                                .on_ended = [] {}},
                    service->ring_memory());
  }

  void Send(const std::string& message) override {
    const auto bytes = std::as_bytes(std::span(message));
    const absl::Time end = absl::Now() + kLongestWait;
    for (service::RingStatus status;;) {
      status = writer_.Put({&bytes, 1});
      if (status == service::RingStatus::kDone) return;
      if (status == service::RingStatus::kBroken || absl::Now() >= end) Fail("a ring takes no message");
      std::this_thread::yield();
    }
  }
  std::string Receive() override {
    std::string answer;
    if (!Take(&answer)) Fail("a ring's stream ended by itself");
    return answer;
  }
  std::vector<std::string> End() override {
    stream_->Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, absl::Minutes(1));
    bool is_noticed = false;
    std::vector<std::string> answers;
    for (std::string answer; Take(&answer); answers.push_back(answer)) {
      v1::StreamResponse response;
      is_noticed |= response.ParseFromString(answer) && response.has_draining();
    }
    stream_->Stop();
    if (!is_noticed) Fail("a ring's stream ended without its notice");
    return answers;
  }

 private:
  // Returns false if the stream has ended and nothing is left to read.
  bool Take(std::string* answer) {
    const absl::Time end = absl::Now() + kLongestWait;
    for (;;) {
      const bool has_ended = stream_->ended();
      const service::RingStatus status = reader_.Take(answer);
      if (status == service::RingStatus::kBroken) Fail("an answer that no ring can hold");
      if (status == service::RingStatus::kDone) return true;
      if (has_ended) return false;
      if (absl::Now() >= end) Fail("no answer of a ring");
      reader_.Sleep(absl::Milliseconds(1));  // the end of a stream wakes no reader
    }
  }

  const service::RingPair rings_;
  service::RingWriter writer_{rings_.request_words, rings_.request_bytes};
  service::RingReader reader_{rings_.answer_words, rings_.answer_bytes};
  std::optional<server::RingStream> stream_;
};

class GrpcLink final : public Link {
 public:
  explicit GrpcLink(Service* service) : stub_(service->channel()) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kLongestWait));
    call_ = stub_.PrepareCall(&context_, "/sortition.v1.SamplingService/Stream", &queue_);
    call_->StartCall(nullptr);
    Must("a call was refused");
  }

  void Send(const std::string& message) override {
    const grpc::Slice slice(message);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Must("a call takes no message");
  }
  std::string Receive() override {
    std::string answer;
    if (!Take(&answer)) Fail("a call ended by itself: " + Finish().error_message());
    return answer;
  }
  std::vector<std::string> End() override {
    call_->WritesDone(nullptr);
    Must("a call cannot be ended");
    std::vector<std::string> answers;
    for (std::string answer; Take(&answer);) answers.push_back(answer);
    const grpc::Status status = Finish();
    if (!status.ok()) Fail(absl::StrCat("a call ended with ", status.error_code(), ": ", status.error_message()));
    return answers;
  }

 private:
  bool Wait() {
    void* tag;
    bool ok;
    if (!queue_.Next(&tag, &ok)) Fail("the queue is over");
    return ok;
  }
  void Must(const std::string& otherwise) {
    if (!Wait()) Fail(otherwise + ": " + Finish().error_message());
  }
  bool Take(std::string* answer) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    if (!Wait()) return false;
    answer->clear();
    std::vector<grpc::Slice> slices;
    if (!buffer.Dump(&slices).ok()) Fail("an answer without bytes");
    for (const grpc::Slice& part : slices) answer->append(reinterpret_cast<const char*>(part.begin()), part.size());
    return true;
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    return status;
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// Returns true if the message has an answer before the next one is read. The last piece of a history that was refused
// already has none.
bool IsAnswered(const Request& message) {
  return !message.has_step() && !message.has_attach_memory() && !message.has_cancel() && !message.has_bring_answer() &&
         !message.open().history().continues() && message.open().history().offset() == 0;
}

// Plays one scenario on a new stream.
class Play final : public costs::Script {
 public:
  // `damage`: decides which messages are damaged, and how; null: none is.
  Play(Service* service, Link* link, const Scenario& scenario, Input* damage)
      : service_(*service), link_(*link), scenario_(scenario), damage_(damage), messages_(scenario) {}

  // Returns the error of an honest message, if there is one.
  std::optional<v1::Error> Run() {
    if (const auto last = Prepare(scenario_, service_.engine(), &messages_)) Send(*last, HoldsStep(*last));
    // A worker that sends again what it has sent.
    for (uint32_t again = damage_ == nullptr ? 0 : damage_->Below(4); again > 0 && !sent_.empty(); --again) {
      Send(Request(sent_[damage_->Below(uint32_t(sent_.size()))]), true);
    }
    Deliver(std::exchange(held_back_, {}));
    for (const uint64_t batch_id : batches_) Put(testing::MakeCancel(batch_id).SerializeAsString());
    for (const std::string& answer : link_.End()) Take(answer);
    return error_;
  }

 private:
  // Damages. Smaller numbers leave a message as it is.
  enum Way : uint32_t { kDrop = 9, kTruncate, kFlip, kTwice, kHoldBack, kBend };

  // A shard's first half waits for the other one, which another stream would send.
  static bool HoldsStep(const Request& message) { return message.step().logits().has_shard(); }

  bool Send(const Request& message, bool holds) override {
    answers_.clear();
    if (message.has_step()) batches_.push_back(message.step().batch_id());
    if (damage_ == nullptr) {
      if (!Deliver(message.SerializeAsString())) return false;
      if (message.has_step() && !holds) AwaitRows(message.step());
      return !error_;
    }
    if (sent_.size() < 16) sent_.push_back(message);
    SendDamaged(message);
    return true;
  }

  void SendDamaged(Request message) {
    const uint32_t way = damage_->Below(16);
    if (way == kDrop) return;
    for (uint32_t times = way >= kBend ? 1 + damage_->Below(3) : 0; times > 0; --times) Bend(damage_, &message);
    std::string bytes = message.SerializeAsString();
    if (way == kTruncate) bytes.resize(damage_->Word() % (bytes.size() + 1));
    for (uint32_t times = way == kFlip ? 1 + damage_->Below(4) : 0; times > 0 && !bytes.empty(); --times) {
      const size_t most = damage_->OneIn(4) ? bytes.size() : std::min<size_t>(bytes.size(), 256);
      bytes[damage_->Word() % most] ^= char(1 + damage_->Below(255));
    }
    if (way == kHoldBack) bytes.swap(held_back_);
    for (int times = way == kTwice ? 2 : 1; times > 0; --times) Deliver(bytes);
  }

  // Sends a message, and takes the answers that come before that to a message behind it. Returns false if no ring can
  // hold the message; then no transport gets it.
  bool Deliver(const std::string& bytes) {
    if (bytes.empty() || bytes.size() > service::kMostRingMessageBytes) return false;
    Request parsed;
    const bool is_message = parsed.ParseFromString(bytes);
    if (is_message && parsed.has_step()) batches_.push_back(parsed.step().batch_id());
    Put(bytes);
    const std::string fence = absl::StrCat("fence", ++fences_);
    Put(testing::MakeClose(fence, 1).SerializeAsString());
    const size_t before = answers_.size();
    while (Receive().closed().request_id() != fence) {
    }
    answers_.pop_back();
    // The rows of a step may be answered later: the stream does not end before.
    if (answers_.size() == before && (!is_message || IsAnswered(parsed)))
      Fail("not answered: " + parsed.ShortDebugString());
    // The answers to damaged messages tell an honest worker nothing.
    if (damage_ != nullptr) std::erase_if(answers_, [](const auto& answer) { return answer.has_results(); });
    return true;
  }

  // Takes answers until each row of an honest step has its last part.
  void AwaitRows(const v1::Step& step) {
    const auto done = [&] {
      int rows = 0;
      for (const v1::StreamResponse& answer : answers_) {
        if (answer.results().has_error()) return true;
        rows += int(std::ranges::count_if(answer.results().rows(), [](const v1::RowResult& row) {
          return !row.draw().continues() && !row.score().continues() && !row.verify().continues();
        }));
      }
      return rows >= step.rows_size();
    };
    while (!done()) Receive();
  }

  void Put(const std::string& bytes) { link_.Send(bytes); }

  const v1::StreamResponse& Receive() { return Take(link_.Receive()); }
  const v1::StreamResponse& Take(const std::string& bytes) {
    if (bytes.size() > LongestAnswer()) Fail(absl::StrCat("an answer of ", bytes.size(), " bytes"));
    v1::StreamResponse& answer = answers_.emplace_back();
    if (!answer.ParseFromString(bytes)) Fail("an answer that is no message");
    for (const v1::Error* const error : costs::ErrorsOf(answer)) Look(*error);
    return answer;
  }

  void Look(const v1::Error& error) {
    const bool is_named = error.reason() != v1::ERROR_REASON_UNSPECIFIED && v1::ErrorReason_IsValid(error.reason());
    if (!is_named || error.code() == 0 || error.message().empty()) Fail("not a reason: " + error.ShortDebugString());
    if (damage_ != nullptr) return;
    if (error.reason() == v1::MALFORMED_MESSAGE) Fail("an honest message is malformed: " + error.ShortDebugString());
    if (!error_ && error.reason() != v1::STEP_CANCELLED) error_ = error;
  }

  Service& service_;
  Link& link_;
  const Scenario& scenario_;
  Input* const damage_;
  costs::Messages messages_;
  std::vector<Request> sent_;
  std::string held_back_;
  std::vector<uint64_t> batches_;
  uint32_t fences_ = 0;
  std::optional<v1::Error> error_;
};

std::unique_ptr<Link> MakeLink(uint32_t transport, Service* service) {
  if (transport == 0) return std::make_unique<SessionLink>(service);
  if (transport == 1) return std::make_unique<RingLink>(service);
  return std::make_unique<GrpcLink>(service);
}

std::optional<v1::Error> PlayOn(uint32_t transport, Service* service, const Scenario& scenario, Input* damage) {
  std::optional<v1::Error> error;
  {
    const std::unique_ptr<Link> link = MakeLink(transport, service);
    error = Play(service, link.get(), scenario, damage).Run();
  }
  service->Forget();
  return error;
}

}  // namespace

// The first byte names the transport. Then come scenarios: four bytes that choose one, and those of its damage.
void Run(Bytes bytes) {
  static Service& service = *new Service;
  const testing::QuietProtobuf quiet;
  Input input(bytes);
  const uint32_t transport = input.Below(3);
  for (int scenarios = 0; scenarios < 3 && !input.empty(); ++scenarios) {
    const uint64_t seed = input.Byte();
    const uint64_t index = uint64_t{input.Byte()} << 8 | input.Byte();
    const uint64_t work = std::min(uint64_t{16} << input.Below(9), kMostWork);
    Scenario scenario = costs::DrawScenario(seed, index, work);
    // A unary call has no stream.
    if (scenario.kind == costs::Kind::kSample) scenario.kind = costs::Kind::kDraw;
    uint64_t& vocabulary = scenario.sizes["vocabulary"];
    vocabulary = std::min(vocabulary, kMostWork);
    // Honest messages first, and without what is refused.
    auto error = PlayOn(transport, &service, scenario, nullptr);
    for (uint64_t attempt = 0; error && attempt < kRepairs; ++attempt) {
      const auto repaired = costs::Repaired(scenario, *error, attempt);
      if (!repaired) break;
      scenario = *repaired;
      error = PlayOn(transport, &service, scenario, nullptr);
    }
    // The messages behind an open that is refused cannot be made.
    if (error) scenario.kind = costs::Kind::kOpen;
    PlayOn(transport, &service, scenario, &input);
  }
}

}  // namespace sortition::fuzz
