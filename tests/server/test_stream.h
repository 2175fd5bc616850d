// One sampling stream as a client holds it, through the generated stub.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "sortition/v1/sampling.grpc.pb.h"

namespace sortition::server {

inline constexpr uint32_t kTestVocabulary = 512;

// Blocking. Not thread-safe, but one thread may send while another receives.
class TestStream {
 public:
  // `authorization`: for the call's metadata; empty: none.
  explicit TestStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization = "");

  bool Send(const v1::StreamRequest& request) { return stream_->Write(request); }
  bool Receive(v1::StreamResponse* response) { return stream_->Read(response); }
  v1::StreamResponse ReceiveOne();  // fails the test if the stream has ended
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  // Reads the remaining messages, then returns the status with which the stream ended.
  grpc::Status Finish();

  // Hello, and its welcome.
  void Greet(const std::string& worker_session = "worker");
  // Opens a sequence of kTestVocabulary tokens that needs no state.
  void OpenSequence(const std::string& request_id);
  // Sends a step of one row of `request_id`; `step_id` is also its batch's id. An empty `traceparent` and a
  // `timeout` of zero are not sent.
  bool SendStep(const std::string& request_id, uint64_t step_id, const std::string& traceparent = "",
                std::chrono::milliseconds timeout = {});

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::SamplingService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream_;
};

}  // namespace sortition::server
