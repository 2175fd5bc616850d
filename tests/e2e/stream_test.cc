// The stream as any gRPC client sees it: late duplicates, and a stream that ends half way.
#include <memory>
#include <string>

#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "kernels/law/version.h"
#include "sortition/v1/sampling.grpc.pb.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"

namespace sortition::testing::stream_test {
namespace {

constexpr uint32_t kVocabulary = 64;

// One stream over the generated stub, one message at a time.
class RawStream {
 public:
  explicit RawStream(const std::string& address)
      : stub_(v1::SamplingService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Stream(&context_)) {
    context_.set_wait_for_ready(false);
    v1::StreamRequest hello;
    hello.mutable_hello()->set_worker_session("raw");
    EXPECT_TRUE(stream_->Write(hello));
    EXPECT_TRUE(Read().has_welcome());
  }

  v1::OpenedState Open(uint64_t epoch, bool with_history) {
    v1::StreamRequest request;
    v1::OpenSequence& open = *request.mutable_open();
    open.set_request_id("r");
    open.set_epoch(epoch);
    open.set_law_version(law::kLawVersion);
    open.set_seed(9);
    open.set_vocabulary_size(kVocabulary);
    open.mutable_parameters()->set_presence_penalty(0.5f);
    if (with_history) open.mutable_history();
    EXPECT_TRUE(stream_->Write(request));
    const v1::StreamResponse response = Read();
    EXPECT_TRUE(response.opened().has_state()) << response.ShortDebugString();
    return response.opened().state();
  }

  void SendStep(uint64_t batch_id, uint64_t step_id, uint32_t position, uint64_t hash) {
    v1::StreamRequest request;
    v1::Step& step = *request.mutable_step();
    step.set_batch_id(batch_id);
    step.mutable_logits()->set_dtype(v1::DTYPE_F32);
    step.mutable_logits()->set_vocabulary_size(kVocabulary);
    step.mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
    v1::StepRow& row = *step.add_rows();
    row.set_request_id("r");
    row.set_step_id(step_id);
    row.set_position(position);
    row.set_history_hash(hash);
    const auto logits = MakeRow(v1::DTYPE_F32, kVocabulary, step_id);
    request.add_payloads(logits.data(), logits.size());
    EXPECT_TRUE(stream_->Write(request));
  }

  v1::RowResult Answer(uint64_t batch_id) {
    const v1::StreamResponse response = Read();
    EXPECT_EQ(response.results().batch_id(), batch_id) << response.ShortDebugString();
    EXPECT_EQ(response.results().rows_size(), 1);
    return response.results().rows_size() == 1 ? response.results().rows(0) : v1::RowResult();
  }

  v1::StreamResponse Read() {
    v1::StreamResponse response;
    EXPECT_TRUE(stream_->Read(&response)) << "the stream has ended";
    return response;
  }
  bool AtEnd() {
    v1::StreamResponse response;
    return !stream_->Read(&response);
  }
  void WritesDone() { EXPECT_TRUE(stream_->WritesDone()); }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  std::unique_ptr<v1::SamplingService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream_;
};

TEST(StreamTest, RepeatGetsSameAnswerOlderStepIsStale) {
  const auto server = StartServer();
  RawStream stream(server->address());
  const v1::OpenedState opened = stream.Open(1, /*with_history=*/true);
  stream.SendStep(1, 1, 0, opened.history_hash());
  const v1::RowResult first = stream.Answer(1);
  ASSERT_TRUE(first.has_draw()) << first.ShortDebugString();
  stream.SendStep(2, 2, 1, first.draw().history_hash());
  const v1::RowResult second = stream.Answer(2);
  ASSERT_TRUE(second.has_draw()) << second.ShortDebugString();

  stream.SendStep(3, 2, 1, first.draw().history_hash());
  EXPECT_EQ(stream.Answer(3).SerializeAsString(), second.SerializeAsString());
  stream.SendStep(4, 1, 0, opened.history_hash());
  EXPECT_EQ(stream.Answer(4).error().reason(), v1::STALE_STEP);
  stream.SendStep(5, 3, 2, second.draw().history_hash());
  EXPECT_TRUE(stream.Answer(5).has_draw()) << "duplicates have changed nothing";
}

TEST(StreamTest, HalfClosedStreamStillGetsAnswers) {
  const auto server = StartServer();
  RawStream stream(server->address());
  const v1::OpenedState opened = stream.Open(1, true);
  stream.SendStep(1, 1, 0, opened.history_hash());
  stream.WritesDone();
  EXPECT_TRUE(stream.Answer(1).has_draw());
  EXPECT_TRUE(stream.AtEnd());
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(StreamTest, CancelledStreamLeavesSequenceUsable) {
  const auto server = StartServer();
  v1::RowResult first;
  uint64_t hash = 0;
  {
    RawStream stream(server->address());
    hash = stream.Open(1, true).history_hash();
    stream.SendStep(1, 1, 0, hash);
    first = stream.Answer(1);
    ASSERT_TRUE(first.has_draw());
    stream.SendStep(2, 2, 1, first.draw().history_hash());
    stream.Cancel();
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  RawStream stream(server->address());
  const v1::OpenedState state = stream.Open(2, /*with_history=*/false);
  // The second step was answered or not; sent again it has its one answer either way.
  EXPECT_TRUE(state.position() == 1 || state.position() == 2) << state.ShortDebugString();
  stream.SendStep(1, 2, 1, first.draw().history_hash());
  const v1::RowResult second = stream.Answer(1);
  ASSERT_TRUE(second.has_draw()) << second.ShortDebugString();
  stream.SendStep(2, 3, 2, second.draw().history_hash());
  EXPECT_TRUE(stream.Answer(2).has_draw());
}

}  // namespace
}  // namespace sortition::testing::stream_test
