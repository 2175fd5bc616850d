// A worker that sends steps and never reads an answer, until the server ends the stream.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "sortition/v1/sampling.grpc.pb.h"

ABSL_FLAG(std::string, target, "", "server");

namespace sortition::testing {
namespace {

constexpr uint32_t kVocabulary = 4096;
constexpr uint32_t kRows = 64;  // of a step

v1::StreamRequest MakeStep(uint64_t number) {
  v1::StreamRequest request;
  v1::Step& step = *request.mutable_step();
  step.set_batch_id(number);
  step.mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
  step.mutable_logits()->set_dtype(v1::DTYPE_BF16);
  step.mutable_logits()->set_vocabulary_size(kVocabulary);
  for (uint32_t i = 0; i < kRows; ++i) {
    v1::StepRow& row = *step.add_rows();
    row.set_request_id(std::to_string(i));
    row.set_step_id(number);
  }
  request.add_payloads(std::string(size_t{kRows} * kVocabulary * 2, '\1'));
  return request;
}

int Main() {
  const auto channel = grpc::CreateChannel(absl::GetFlag(FLAGS_target), grpc::InsecureChannelCredentials());
  const auto stub = v1::SamplingService::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->Stream(&context);
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session("deaf");
  bool open = stream->Write(request);
  for (uint32_t i = 0; open && i < kRows; ++i) {
    v1::OpenSequence& sequence = *request.mutable_open();
    sequence.set_request_id(std::to_string(i));
    sequence.set_epoch(1);
    sequence.set_law_version(1);
    sequence.set_vocabulary_size(kVocabulary);
    // Large answers, which fill the buffers on the way to a reader.
    sequence.mutable_parameters()->mutable_raw_logprobs()->set_top(1000);
    open = stream->Write(request);
  }
  uint64_t steps = 0;
  while (open) open = stream->Write(MakeStep(++steps));
  std::printf("%llu steps\n", static_cast<unsigned long long>(steps));
  return 0;
}

}  // namespace
}  // namespace sortition::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::testing::Main();
}
