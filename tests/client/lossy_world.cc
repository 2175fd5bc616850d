// Servers, streams and the draw of what happens next.
#include "tests/client/lossy_world.h"

#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "kernels/law/reference.h"
#include "service/stream/frame.h"

namespace sortition::testing {

void ManualDevice::RunOne() {
  SORTITION_CHECK(!batches_.empty());
  Batch batch = std::move(batches_.front());
  batches_.pop_front();
  devices::BatchResult result;
  for (devices::DeviceRow& row : batch.rows) {
    std::vector<std::byte> bytes;
    for (const devices::ByteSegment& segment : row.segments)
      bytes.insert(bytes.end(), segment.data, segment.data + segment.size);
    row.request.logits = bytes.data();
    result.answers.push_back(law::SampleRowReference(row.request));
  }
  std::move(batch.done)(std::move(result));
}

// Both directions of one stream. Either end may be gone while the other does not know it yet.
struct LossyWorld::Stream {
  size_t target = 0;
  uint64_t number = 0;
  bool client_gone = false;
  bool broken = false;  // nothing travels any more
  std::deque<client::OutgoingMessage> requests;
  struct Answer {
    v1::StreamResponse response;
    service::SentRelease release;
  };
  std::deque<Answer> answers;
  std::optional<service::Session> session;
};

class LossyWorld::StreamSink final : public service::SessionSink {
 public:
  explicit StreamSink(std::weak_ptr<Stream> stream) : stream_(std::move(stream)) {}
  void Send(v1::StreamResponse response, service::SentRelease release) override {
    if (const auto stream = stream_.lock()) stream->answers.push_back({std::move(response), release});
  }

 private:
  const std::weak_ptr<Stream> stream_;
};

class LossyWorld::WorldTransport final : public client::Transport {
 public:
  explicit WorldTransport(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~WorldTransport() override { Cancel(); }
  void Send(client::OutgoingMessage message) override {
    if (!stream_->client_gone) stream_->requests.push_back(std::move(message));
  }
  void Flush() override {}
  void Cancel() override { stream_->client_gone = true; }

 private:
  const std::shared_ptr<Stream> stream_;
};

LossyWorld::LossyWorld(size_t servers, const service::Limits& limits, uint64_t seed)
    : limits_(limits), random_(seed), servers_(servers) {
  for (Server& server : servers_) server.engine = MakeEngine(&server.device);
}

LossyWorld::~LossyWorld() {
  for (Server& server : servers_) Kill(&server);
}

std::unique_ptr<service::Engine> LossyWorld::MakeEngine(ManualDevice** device) {
  service::Engine::Options options;
  options.limits = limits_;
  auto manual = std::make_unique<ManualDevice>();
  *device = manual.get();
  options.devices.push_back(std::move(manual));
  options.clock = &clock_;
  options.observer = &observer_;
  return std::make_unique<service::Engine>(std::move(options));
}

std::shared_ptr<client::Transport> LossyWorld::Start(size_t target, uint64_t stream, client::StreamEvents*) {
  auto started = std::make_shared<Stream>();
  started->target = target;
  started->number = stream;
  if (servers_[target].up) {
    started->session.emplace(servers_[target].engine.get(), "test", std::make_shared<StreamSink>(started));
  } else {
    started->broken = true;
  }
  streams_.push_back(started);
  return std::make_shared<WorldTransport>(std::move(started));
}

void LossyWorld::EndAtServer(Stream* stream) {
  if (!stream->session) return;
  stream->session->Close();
  stream->session.reset();
}

void LossyWorld::EndAtClient(Stream* stream) {
  stream->requests.clear();
  faults_.lost_answers += stream->answers.size();
  stream->answers.clear();
  if (std::exchange(stream->client_gone, true)) return;
  state_->OnEnded(stream->number, absl::UnavailableError("the world broke the stream"), clock_.time);
}

// All that the server knew is lost; what its device still computes reaches nobody.
void LossyWorld::Kill(Server* server) {
  for (const auto& stream : streams_) {
    if (&servers_[stream->target] != server) continue;
    stream->broken = true;
    EndAtServer(stream.get());
  }
  while (!server->device->idle()) server->device->RunOne();
  server->engine.reset();
  server->engine = MakeEngine(&server->device);
}

bool LossyWorld::DeliverRequest(Stream* stream) {
  if (stream->broken || !stream->session || stream->requests.empty() || !stream->session->WantsFrames()) return false;
  // The bytes as a network delivers them: a copy, so that the sender's memory is free.
  auto bytes = std::make_shared<std::vector<std::byte>>();
  for (const client::Segment& segment : stream->requests.front().segments) {
    const auto* own = reinterpret_cast<const std::byte*>(segment.owned.data());
    bytes->insert(bytes->end(), own, own + segment.owned.size());
    bytes->insert(bytes->end(), segment.borrowed.begin(), segment.borrowed.end());
  }
  stream->requests.pop_front();
  const devices::ByteSegment segment{bytes->data(), bytes->size()};
  auto frame = service::DecodeFrame({&segment, 1}, bytes);
  SORTITION_CHECK(std::holds_alternative<service::Frame>(frame));
  stream->session->OnFrame(std::move(std::get<service::Frame>(frame)));
  return true;
}

bool LossyWorld::DeliverAnswer(Stream* stream, bool faults) {
  if (stream->broken || stream->answers.empty()) return false;
  const Stream::Answer answer = std::move(stream->answers.front());
  stream->answers.pop_front();
  if (stream->session) stream->session->OnSent(answer.release);
  if (stream->client_gone) return true;
  state_->OnResponse(stream->number, answer.response, clock_.time);
  if (faults && random_() % 8 == 0 && !stream->client_gone) {
    ++faults_.repeated_answers;
    state_->OnResponse(stream->number, answer.response, clock_.time);
  }
  return true;
}

void LossyWorld::Reap() {
  std::erase_if(streams_,
                [](const std::shared_ptr<Stream>& stream) { return stream->client_gone && !stream->session; });
}

void LossyWorld::Step(bool faults) {
  Reap();
  const uint64_t draw = random_() % 1000;
  if (faults && draw < 6) {
    Server& server = servers_[random_() % servers_.size()];
    ++faults_.killed_servers;
    Kill(&server);
    server.up = random_() % 3 != 0;
    return;
  }
  if (!faults || draw < 40) {
    for (Server& server : servers_) server.up = true;
  }
  if (!streams_.empty()) {
    const std::shared_ptr<Stream> stream = streams_[random_() % streams_.size()];
    // One end at a time: a server may work on after its client has left, and a client may wait for a server that is
    // gone.
    if (stream->client_gone && (draw % 4 == 0 || !faults)) EndAtServer(stream.get());
    if (stream->broken && (draw % 4 == 1 || !faults)) EndAtClient(stream.get());
    if (faults && draw < 55) {
      if (!stream->broken) ++faults_.broken_streams;
      stream->broken = true;
      stream->client_gone ? EndAtServer(stream.get()) : EndAtClient(stream.get());
    } else if (faults && draw < 60 && stream->session) {
      ++faults_.drained_streams;
      stream->session->Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, absl::Seconds(1));
    } else if (draw % 2 == 0 ? DeliverRequest(stream.get()) : DeliverAnswer(stream.get(), faults)) {
      return;
    }
  }
  Server& server = servers_[random_() % servers_.size()];
  if (!server.device->idle()) return server.device->RunOne();
  if (draw % 3 == 0) {
    clock_.time = std::max(clock_.time + absl::Milliseconds(1),
                           std::min(state_->next_event(clock_.time), clock_.time + absl::Milliseconds(20)));
    state_->OnTime(clock_.time);
  }
}

}  // namespace sortition::testing
