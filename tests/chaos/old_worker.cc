// A worker that knows the contract of one release alone: it builds and reads its messages by the descriptors in
// proto/released, and everything that came later is unknown to it. It opens sequences and draws.
//
//   old_worker --target=ADDRESS --contract=FILE [--steps=N]
//
// Prints as JSON how many tokens were drawn, and how many differ from the law's reference.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/released_contract.h"
#include "tests/client/rows.h"

ABSL_FLAG(std::string, target, "", "server");
ABSL_FLAG(std::string, contract, "", "the release's descriptors, a FileDescriptorSet");
ABSL_FLAG(uint32_t, steps, 200, "of two sequences");

namespace sortition::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr uint32_t kVocabulary = 512;

const FieldDescriptor* FieldOf(const Message& message, const char* name) {
  const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(name);
  SORTITION_CHECK(field != nullptr);
  return field;
}

bool Has(const Message& message, const char* name) {
  return message.GetReflection()->HasField(message, FieldOf(message, name));
}

const Message& Part(const Message& message, const char* name) {
  return message.GetReflection()->GetMessage(message, FieldOf(message, name));
}

uint64_t Number(const Message& message, const char* name) {
  const FieldDescriptor* const field = FieldOf(message, name);
  return field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ? message.GetReflection()->GetUInt32(message, field)
                                                              : message.GetReflection()->GetUInt64(message, field);
}

// A stream of bytes, one operation at a time.
class RawStream {
 public:
  explicit RawStream(const std::string& target)
      : stub_(grpc::CreateChannel(target, grpc::InsecureChannelCredentials())),
        call_(stub_.PrepareCall(&context_, "/sortition.v1.SamplingService/Stream", &queue_)) {
    call_->StartCall(this);
    Await();
  }
  ~RawStream() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, this);
    Await();
  }
  void Write(const Message& message) {
    const grpc::Slice slice(message.SerializeAsString());
    call_->Write(grpc::ByteBuffer(&slice, 1), this);
    SORTITION_CHECK(Await());
  }
  void Read(Message* message) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, this);
    SORTITION_CHECK(Await());
    grpc::Slice slice;
    SORTITION_CHECK(buffer.DumpToSingleSlice(&slice).ok());
    SORTITION_CHECK(message->ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
  }

 private:
  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    SORTITION_CHECK(queue_.Next(&tag, &ok));
    return ok;
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// A sequence, and its tokens by the law.
struct Text {
  std::string parameters;  // as text
  v1::SamplingParameters same;
  bool stateful = false;
  uint64_t hash = 0;
  std::unique_ptr<ReferenceSequence> reference = nullptr;
};

class OldWorker {
 public:
  OldWorker() : contract_(absl::GetFlag(FLAGS_contract)), stream_(absl::GetFlag(FLAGS_target)) {
    Send("hello { worker_session: 'old' client: 'old_worker/0' }", "");
    SORTITION_CHECK(Has(*Receive(), "welcome"));
    v1::SamplingParameters plain;
    plain.set_temperature(0.9f);
    plain.set_top_k(40);
    v1::SamplingParameters penalized = plain;
    penalized.set_repetition_penalty(1.2f);
    texts_.push_back({"temperature: 0.9 top_k: 40", plain, false});
    texts_.push_back({"temperature: 0.9 top_k: 40 repetition_penalty: 1.2", penalized, true});
    for (uint64_t i = 0; i < texts_.size(); ++i) Open(i);
  }

  void Step(uint64_t number) {
    std::string text = absl::StrCat(
        "step { batch_id: ", number,
        " logits { source { inline { payload: 0 } } dtype: DTYPE_BF16 vocabulary_size: ", kVocabulary, " } ");
    std::string payload;
    for (uint64_t i = 0; i < texts_.size(); ++i) {
      const auto row = MakeRow(v1::DTYPE_BF16, kVocabulary, number << 8 | i);
      payload.append(reinterpret_cast<const char*>(row.data()), row.size());
      absl::StrAppend(&text, "rows { request_id: '", i, "' step_id: ", number, " position: ", 2 + number);
      if (texts_[i].stateful) absl::StrAppend(&text, " history_hash: ", texts_[i].hash);
      absl::StrAppend(&text, " } ");
    }
    Send(text + "}", payload);
    for (size_t answered = 0; answered < texts_.size();) {
      const std::unique_ptr<Message> response = Receive();
      const Message& results = Part(*response, "results");
      SORTITION_CHECK(Has(*response, "results") && !Has(results, "error"));
      const FieldDescriptor* const rows = FieldOf(results, "rows");
      for (int r = 0; r < results.GetReflection()->FieldSize(results, rows); ++r, ++answered) {
        const Message& row = results.GetReflection()->GetRepeatedMessage(results, rows, r);
        const uint64_t i = Number(row, "row");
        SORTITION_CHECK(Has(row, "draw"));
        const Message& draw = Part(row, "draw");
        texts_[i].hash = Number(draw, "history_hash");
        const auto logits = MakeRow(v1::DTYPE_BF16, kVocabulary, number << 8 | i);
        different_ += texts_[i].reference->Step(v1::DTYPE_BF16, logits.data()).token() != Number(draw, "token");
        ++tokens_;
      }
    }
  }

  int Report() const {
    std::printf("{\"tokens\":%u,\"failed\":0,\"different\":%u}\n", tokens_, different_);
    return different_ == 0 ? 0 : 1;
  }

 private:
  void Send(const std::string& text, const std::string& payload) {
    const std::unique_ptr<Message> request = contract_.New("StreamRequest");
    SORTITION_CHECK(google::protobuf::TextFormat::ParseFromString(text, request.get()));
    if (!payload.empty()) request->GetReflection()->AddString(request.get(), FieldOf(*request, "payloads"), payload);
    stream_.Write(*request);
  }
  std::unique_ptr<Message> Receive() {
    std::unique_ptr<Message> response = contract_.New("StreamResponse");
    stream_.Read(response.get());
    return response;
  }
  void Open(uint64_t i) {
    Text& text = texts_[i];
    Send(absl::StrCat("open { request_id: '", i, "' epoch: 1 law_version: 1 seed: ", i,
                      " vocabulary_size: ", kVocabulary, " parameters { ", text.parameters, " } ",
                      text.stateful ? "history { tokens: 1 tokens: 2 tokens: 3 prompt_length: 3 } " : "", "}"),
         "");
    const std::unique_ptr<Message> response = Receive();
    SORTITION_CHECK(Has(*response, "opened") && Has(Part(*response, "opened"), "state"));
    text.hash = Number(Part(Part(*response, "opened"), "state"), "history_hash");
    text.reference =
        std::make_unique<ReferenceSequence>(text.same, i, 0, kVocabulary, kVocabulary, std::vector<uint32_t>{1, 2, 3});
  }

  ReleasedContract contract_;
  RawStream stream_;
  std::vector<Text> texts_;
  uint32_t tokens_ = 0;
  uint32_t different_ = 0;
};

int Main() {
  OldWorker worker;
  for (uint64_t number = 1; number <= absl::GetFlag(FLAGS_steps); ++number) worker.Step(number);
  return worker.Report();
}

}  // namespace
}  // namespace sortition::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::testing::Main();
}
