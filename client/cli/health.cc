// sortitionctl health: the standard gRPC health check (grpc.health.v1), whose two small messages are coded by hand.
#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace sortition::cli {
namespace {

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr const char* kServices[] = {"", "sortition.v1.SamplingService", "sortition.v1.InformationService"};
// HealthCheckResponse.ServingStatus, by number.
constexpr const char* kStatuses[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
constexpr uint32_t kServing = 1;

// HealthCheckRequest{string service = 1}
grpc::ByteBuffer EncodeRequest(const std::string& service) {
  std::string bytes;
  if (!service.empty()) {
    bytes += '\x0a';
    bytes += static_cast<char>(service.size());  // every name is shorter than 128 bytes: one byte of varint
    bytes += service;
  }
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// HealthCheckResponse{ServingStatus status = 1}; UNKNOWN if it is absent.
absl::StatusOr<uint32_t> DecodeResponse(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.TrySingleSlice(&slice).ok() && !buffer.DumpToSingleSlice(&slice).ok())
    return absl::DataLossError("no bytes");
  google::protobuf::io::CodedInputStream input(slice.begin(), static_cast<int>(slice.size()));
  uint32_t status = 0;
  if (const uint32_t key = input.ReadTag(); key == 0) return status;
  if (!input.ReadVarint32(&status) || status >= std::size(kStatuses)) {
    return absl::DataLossError("the answer is no grpc.health.v1.HealthCheckResponse");
  }
  return status;
}

grpc::Status Check(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                   grpc::ByteBuffer* response) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + Timeout()));
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, kCheck, EncodeRequest(service), &queue);
  call->StartCall();
  call->Finish(response, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  return status;
}

}  // namespace

Outcome Health() {
  const auto channel = MakeChannel();
  if (!channel.ok()) return Fail(channel.status());
  bool all_serve = true;
  for (const std::string service : kServices) {
    grpc::ByteBuffer response;
    const grpc::Status status = Check(*channel, service, &response);
    if (!status.ok()) return Fail(status);
    const absl::StatusOr<uint32_t> serving = DecodeResponse(response);
    if (!serving.ok()) return Fail(serving.status());
    all_serve = all_serve && *serving == kServing;
    std::printf("%-36s %s\n", service.empty() ? "server" : service.c_str(), kStatuses[*serving]);
  }
  return all_serve ? Outcome::kDone : Outcome::kRefused;
}

}  // namespace sortition::cli
