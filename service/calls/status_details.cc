// The wire form of google.rpc.Status, ErrorInfo and RetryInfo, written by hand: five messages of a few fields each.
#include "service/calls/status_details.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstdint>
#include <string_view>

#include "absl/time/time.h"

namespace sortition::server {
namespace {

// Appends the fields of one message to a string.
class Fields {
 public:
  explicit Fields(std::string* out) : string_(out), coded_(&string_) {}

  void Number(uint32_t field, uint64_t value) {
    if (value == 0) return;
    coded_.WriteTag(field << 3);
    coded_.WriteVarint64(value);
  }
  void Bytes(uint32_t field, std::string_view value) {
    if (value.empty()) return;
    coded_.WriteTag(field << 3 | 2);
    coded_.WriteVarint32(static_cast<uint32_t>(value.size()));
    coded_.WriteRaw(value.data(), static_cast<int>(value.size()));
  }

 private:
  google::protobuf::io::StringOutputStream string_;
  google::protobuf::io::CodedOutputStream coded_;
};

template <typename Write>
std::string Message(Write write) {
  std::string out;
  {
    Fields fields(&out);
    write(fields);
  }
  return out;
}

std::string MapEntry(std::string_view key, std::string_view value) {
  return Message([&](Fields& entry) {
    entry.Bytes(1, key);
    entry.Bytes(2, value);
  });
}

std::string Any(std::string_view type, std::string_view value) {
  return Message([&](Fields& any) {
    any.Bytes(1, type);
    any.Bytes(2, value);
  });
}

std::string ErrorInfo(const service::Refusal& refusal) {
  return Message([&](Fields& info) {
    info.Bytes(1, service::ReasonName(refusal.reason));
    info.Bytes(2, kErrorDomain);
    if (!refusal.field.empty()) info.Bytes(3, MapEntry("field", refusal.field));
    if (!refusal.limit.empty()) info.Bytes(3, MapEntry("limit", refusal.limit));
  });
}

std::string RetryInfo(absl::Duration delay) {
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  const std::string duration = Message([&](Fields& fields) {
    fields.Number(1, static_cast<uint64_t>(seconds));
    fields.Number(2, static_cast<uint64_t>(absl::ToInt64Nanoseconds(delay)));
  });
  return Message([&](Fields& info) { info.Bytes(1, duration); });
}

}  // namespace

std::string EncodeStatusDetails(const service::Refusal& refusal) {
  return Message([&](Fields& status) {
    status.Number(1, static_cast<uint64_t>(service::ToStatusCode(refusal.reason)));
    status.Bytes(2, refusal.message);
    status.Bytes(3, Any("type.googleapis.com/google.rpc.ErrorInfo", ErrorInfo(refusal)));
    if (refusal.retry_after > absl::ZeroDuration()) {
      status.Bytes(3, Any("type.googleapis.com/google.rpc.RetryInfo", RetryInfo(refusal.retry_after)));
    }
  });
}

grpc::Status RefusedStatus(const service::Refusal& refusal) {
  return grpc::Status(static_cast<grpc::StatusCode>(service::ToStatusCode(refusal.reason)), refusal.message,
                      EncodeStatusDetails(refusal));
}

}  // namespace sortition::server
