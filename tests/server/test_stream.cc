// Messages of a test client.
#include "tests/server/test_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/law/version.h"
#include "tests/server/test_server.h"

namespace sortition::server {

TestStream::TestStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization)
    : stub_(v1::SamplingService::NewStub(channel)) {
  if (!authorization.empty()) context_.AddMetadata("authorization", authorization);
  context_.set_deadline(CallDeadline());
  stream_ = stub_->Stream(&context_);
}

v1::StreamResponse TestStream::ReceiveOne() {
  v1::StreamResponse response;
  EXPECT_TRUE(Receive(&response));
  return response;
}

grpc::Status TestStream::Finish() {
  v1::StreamResponse response;
  while (Receive(&response)) {
  }
  return stream_->Finish();
}

void TestStream::Greet(const std::string& worker_session) {
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session(worker_session);
  request.mutable_hello()->set_client("test/1");
  EXPECT_TRUE(Send(request));
  EXPECT_TRUE(ReceiveOne().has_welcome());
}

void TestStream::OpenSequence(const std::string& request_id) {
  v1::StreamRequest request;
  v1::OpenSequence* open = request.mutable_open();
  open->set_request_id(request_id);
  open->set_epoch(1);
  open->set_law_version(law::kLawVersion);
  open->set_seed(7);
  open->set_vocabulary_size(kTestVocabulary);
  EXPECT_TRUE(Send(request));
  const v1::StreamResponse response = ReceiveOne();
  EXPECT_TRUE(response.opened().has_state()) << response.ShortDebugString();
}

bool TestStream::SendStep(const std::string& request_id, uint64_t step_id, const std::string& traceparent,
                          std::chrono::milliseconds timeout) {
  v1::StreamRequest request;
  v1::Step* step = request.mutable_step();
  step->set_batch_id(step_id);
  step->mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
  step->mutable_logits()->set_dtype(v1::DTYPE_F32);
  step->mutable_logits()->set_vocabulary_size(kTestVocabulary);
  if (!traceparent.empty()) step->mutable_trace()->set_traceparent(traceparent);
  if (timeout.count() > 0) step->mutable_timeout()->set_nanos(static_cast<int32_t>(timeout.count()) * 1'000'000);
  v1::StepRow* row = step->add_rows();
  row->set_request_id(request_id);
  row->set_step_id(step_id);
  row->set_position(static_cast<uint32_t>(step_id));
  const std::vector<float> logits(kTestVocabulary, 0.5f);
  request.add_payloads(logits.data(), logits.size() * sizeof(float));
  return Send(request);
}

}  // namespace sortition::server
