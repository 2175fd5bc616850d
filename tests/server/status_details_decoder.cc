// The messages of google.rpc as descriptors, and their decoding by reflection.
#include "tests/server/status_details_decoder.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>

#include <memory>

#include "kernels/check.h"

namespace sortition::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The public definitions of these three messages, without their comments.
constexpr char kRpcFile[] = R"pb(
  name: "rpc.proto"
  package: "google.rpc"
  syntax: "proto3"
  dependency: "google/protobuf/any.proto"
  dependency: "google/protobuf/duration.proto"
  message_type {
    name: "Status"
    field { name: "code" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "message" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "details" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_REPEATED }
  }
  message_type {
    name: "ErrorInfo"
    field { name: "reason" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "domain" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
    field {
      name: "metadata"
      number: 3
      type: TYPE_MESSAGE
      type_name: ".google.rpc.ErrorInfo.Entry"
      label: LABEL_REPEATED
    }
    nested_type {
      name: "Entry"
      field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
    }
  }
  message_type {
    name: "RetryInfo"
    field {
      name: "retry_delay"
      number: 1
      type: TYPE_MESSAGE
      type_name: ".google.protobuf.Duration"
      label: LABEL_OPTIONAL
    }
  }
)pb";

class Decoder {
 public:
  Decoder() : pool_(google::protobuf::DescriptorPool::generated_pool()) {
    // Links the two files in.
    (void)google::protobuf::Any::descriptor();
    (void)google::protobuf::Duration::descriptor();
    google::protobuf::FileDescriptorProto file;
    SORTITION_CHECK(google::protobuf::TextFormat::ParseFromString(kRpcFile, &file));
    pool_.BuildFile(file);
  }

  // Null if the bytes are no such message or hold fields it does not have.
  std::unique_ptr<Message> Parse(const std::string& type, const std::string& bytes) {
    const auto* descriptor = pool_.FindMessageTypeByName(type);
    if (descriptor == nullptr) return nullptr;
    std::unique_ptr<Message> message(factory_.GetPrototype(descriptor)->New());
    if (!message->ParseFromString(bytes)) return nullptr;
    if (message->GetReflection()->GetUnknownFields(*message).field_count() > 0) return nullptr;
    return message;
  }

 private:
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_;
};

const FieldDescriptor* Field(const Message& message, const char* name) {
  return message.GetDescriptor()->FindFieldByName(name);
}

std::string Text(const Message& message, const char* name) {
  return message.GetReflection()->GetString(message, Field(message, name));
}

}  // namespace

DecodedDetails DecodeStatusDetails(const std::string& bytes) {
  Decoder decoder;
  DecodedDetails decoded;
  const auto status = decoder.Parse("google.rpc.Status", bytes);
  if (status == nullptr) return decoded;
  const auto* reflection = status->GetReflection();
  decoded.code = reflection->GetInt32(*status, Field(*status, "code"));
  decoded.message = Text(*status, "message");
  const FieldDescriptor* details = Field(*status, "details");
  for (int i = 0; i < reflection->FieldSize(*status, details); ++i) {
    const Message& any = reflection->GetRepeatedMessage(*status, details, i);
    const std::string url = Text(any, "type_url");
    const auto detail = decoder.Parse(url.substr(url.find('/') + 1), Text(any, "value"));
    if (detail == nullptr) return decoded;
    if (url == "type.googleapis.com/google.rpc.ErrorInfo") {
      decoded.reason = Text(*detail, "reason");
      decoded.domain = Text(*detail, "domain");
      const FieldDescriptor* metadata = Field(*detail, "metadata");
      for (int j = 0; j < detail->GetReflection()->FieldSize(*detail, metadata); ++j) {
        const Message& entry = detail->GetReflection()->GetRepeatedMessage(*detail, metadata, j);
        decoded.metadata[Text(entry, "key")] = Text(entry, "value");
      }
      decoded.valid = true;
    } else if (url == "type.googleapis.com/google.rpc.RetryInfo") {
      const Message& delay = detail->GetReflection()->GetMessage(*detail, Field(*detail, "retry_delay"));
      decoded.retry_seconds = static_cast<double>(delay.GetReflection()->GetInt64(delay, Field(delay, "seconds"))) +
                              1e-9 * delay.GetReflection()->GetInt32(delay, Field(delay, "nanos"));
    }
  }
  return decoded;
}

}  // namespace sortition::server
