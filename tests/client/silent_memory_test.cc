// A server whose memory socket takes connections and does not answer: only the stream that wants its memory waits, for
// a limited time, and not after it is cancelled.
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/message.h"
#include "client/cpp/transport/grpc_transport.h"
#include "gtest/gtest.h"
#include "kernels/law/version.h"
#include "service/memory/descriptor.h"
#include "sortition/client.h"
#include "sortition/v1/sampling.grpc.pb.h"

namespace sortition::testing::silent_memory_test {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

class SilentMemorySocket {
 public:
  SilentMemorySocket() {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
  }
  ~SilentMemorySocket() { unlink(path_.c_str()); }
  std::string address() const { return "unix:" + path_; }

 private:
  const std::string path_ = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_silent_memory");
  const service::Descriptor listener_{socket(AF_UNIX, SOCK_SEQPACKET, 0)};
};

// Welcomes streams, the first `offers` of them with the silent socket.
class FakeSamplingService final : public v1::SamplingService::Service {
 public:
  explicit FakeSamplingService(int offers) : offers_(offers) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeSamplingService() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }

  absl::Notification offered;  // notified at the last offer

 private:
  grpc::Status Stream(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream) override {
    v1::StreamRequest request;
    stream->Read(&request);
    v1::StreamResponse response;
    response.mutable_welcome()->add_law_versions(law::kLawVersion);
    const int offer = offers_--;
    if (offer > 0) response.mutable_welcome()->set_memory_address(memory_.address());
    stream->Write(response);
    if (offer == 1) offered.Notify();
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }

  const SilentMemorySocket memory_;
  std::atomic<int> offers_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

struct Events final : client::StreamEvents {
  void OnResponse(uint64_t stream, const v1::StreamResponse&) override { welcomed.at(stream).Notify(); }
  void OnEnded(uint64_t stream, absl::Status) override { ended.at(stream).Notify(); }
  std::array<absl::Notification, 2> welcomed, ended;
};

TEST(SilentMemoryTest, OnlyItsStreamWaitsUntilCancelled) {
  FakeSamplingService service(/*offers=*/1);
  client::ClientOptions options;
  options.targets = {service.target()};
  options.retry.connect_timeout = absl::Hours(1);
  Events events;
  auto connector = std::make_unique<client::GrpcConnector>(options);
  std::array<std::shared_ptr<client::Transport>, 2> streams;
  for (uint64_t stream = 0; stream < 2; ++stream) {
    streams[stream] = connector->Start(0, stream, &events);
    v1::StreamRequest hello;
    hello.mutable_hello()->set_worker_session("worker");
    streams[stream]->Send(client::EncodeMessage(hello, {}, nullptr));
    streams[stream]->Flush(/*polls=*/false);
    if (stream == 0) service.offered.WaitForNotification();
  }
  EXPECT_TRUE(events.welcomed[1].WaitForNotificationWithTimeout(kLong));
  EXPECT_FALSE(events.welcomed[0].HasBeenNotified());
  streams = {};
  for (const absl::Notification& ended : events.ended) EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
  connector.reset();  // waits for its threads
}

TEST(SilentMemoryTest, OptionalMemoryThatHangsIsSkipped) {
  FakeSamplingService service(/*offers=*/100);
  client::ClientOptions options;
  options.targets = {service.target()};
  options.retry.connect_timeout = absl::Seconds(2);
  const auto client = client::Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->transport_in_use().kind, client::TransportKind::kGrpc);
  EXPECT_FALSE((*client)->transport_in_use().row_memory);
  EXPECT_NE((*client)->transport_in_use().note.find("no answer in time"), std::string::npos)
      << (*client)->transport_in_use().note;
}

}  // namespace
}  // namespace sortition::testing::silent_memory_test
