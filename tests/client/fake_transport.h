// A fake connector, whose streams end in the test. Nothing runs by itself: the test reads the sent messages and makes
// the answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/transport/shared_memory.h"
#include "client/cpp/transport/transport.h"
#include "kernels/check.h"
#include "service/wire/frame.h"

namespace sortition::testing {

// A received message. Its payloads refer to the sender's memory, which is held as long as the message lives.
using SentMessage = service::Frame;

struct FakeStream {
  size_t target = 0;
  uint64_t number = 0;
  bool cancelled = false;
  std::deque<SentMessage> sent;  // in order; the test takes messages from the front
  std::shared_ptr<client::SharedMemory> memory = nullptr;
  std::string memory_dropped = "";  // the reason
  client::TransportInUse in_use = {};
  client::LocalSampler* sampler = nullptr;
};

class FakeConnector final : public client::Connector {
 public:
  std::vector<std::shared_ptr<FakeStream>> streams;  // all started streams, in order
  std::shared_ptr<client::SharedMemory> memory;      // shared memory of later streams
  client::LocalSampler* sampler = nullptr;           // of streams to target number `sampler_target`
  size_t sampler_target = 0;

  std::shared_ptr<client::Transport> Start(size_t target, uint64_t stream, client::StreamEvents*) override {
    streams.push_back(std::make_shared<FakeStream>(FakeStream{target, stream, false, {}, memory}));
    if (target == sampler_target) streams.back()->sampler = sampler;
    return std::make_shared<FakeTransport>(streams.back());
  }

 private:
  class FakeTransport final : public client::Transport {
   public:
    explicit FakeTransport(std::shared_ptr<FakeStream> stream) : stream_(std::move(stream)) {}
    ~FakeTransport() override { Cancel(); }
    void Send(client::OutgoingMessage message) override {
      if (stream_->cancelled) return;
      auto owner = std::make_shared<const client::OutgoingMessage>(std::move(message));
      std::vector<devices::ByteSegment> segments;
      for (const client::Segment& segment : owner->segments) {
        segments.push_back(
            segment.borrowed.empty()
                ? devices::ByteSegment{reinterpret_cast<const std::byte*>(segment.owned.data()), segment.owned.size()}
                : devices::ByteSegment{segment.borrowed.data(), segment.borrowed.size()});
      }
      auto frame = service::DecodeFrame(segments, owner);
      SORTITION_CHECK(std::holds_alternative<service::Frame>(frame));
      stream_->sent.push_back(std::move(std::get<service::Frame>(frame)));
    }
    void Flush(bool) override {}
    client::LocalSampler* sampler() override { return stream_->sampler; }
    std::shared_ptr<client::SharedMemory> memory() override { return stream_->memory; }
    client::TransportInUse in_use() override { return stream_->in_use; }
    void DropMemory(const std::string& why) override {
      stream_->memory.reset();
      stream_->memory_dropped = why;
    }
    // Releases the messages that were not taken, as a transport does.
    void Cancel() override {
      stream_->cancelled = true;
      stream_->sent.clear();
    }

   private:
    const std::shared_ptr<FakeStream> stream_;
  };
};

}  // namespace sortition::testing
