// A collector of traces for tests: trace_collector MODE [ADDRESS [FOLDER]]. It prints its address, then each span as a
// line of JSON, until its standard input ends. MODE "take" takes spans, "drop" takes them and prints none, "refuse"
// answers with an error, and "sleep" takes none in time. ADDRESS is 127.0.0.1:0 by default. FOLDER has tls.crt and
// tls.key, by which it serves TLS.
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "otlp.grpc.pb.h"

namespace sortition::testing {
namespace {

namespace otlp = opentelemetry::proto::collector::trace::v1;

std::string JsonOf(const google::protobuf::Message& message) {
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text);
  return text;
}

class Collector final : public otlp::TraceService::Service {
 public:
  explicit Collector(std::string mode) : mode_(std::move(mode)) {}

  grpc::Status Export(grpc::ServerContext* context, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse*) override {
    if (mode_ == "drop") return grpc::Status::OK;
    if (mode_ == "refuse") return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the collector is full"};
    std::unique_lock lock(mutex_);
    if (mode_ == "sleep") never_.wait_until(lock, context->deadline(), [] { return false; });
    for (const otlp::ResourceSpans& resource : request->resource_spans()) {
      for (const otlp::ScopeSpans& scope : resource.scope_spans()) {
        for (const otlp::Span& span : scope.spans()) {
          std::cout << "{\"span\":" << JsonOf(span) << ",\"resource\":" << JsonOf(resource.resource()) << "}"
                    << std::endl;
        }
      }
    }
    return grpc::Status::OK;
  }

 private:
  const std::string mode_;
  std::mutex mutex_;
  std::condition_variable never_;
};

std::string ContentOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const std::string& folder) {
  if (folder.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({ContentOf(folder + "/tls.key"), ContentOf(folder + "/tls.crt")});
  return grpc::SslServerCredentials(options);
}

int Main(const std::string& mode, const std::string& address, const std::string& folder) {
  Collector collector(mode);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, CredentialsOf(folder), &port);
  builder.RegisterService(&collector);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::cout << "127.0.0.1:" << port << std::endl;
  while (std::cin.get() != std::char_traits<char>::eof()) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace sortition::testing

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) return 2;
  return sortition::testing::Main(argv[1], argc > 2 ? argv[2] : "127.0.0.1:0", argc > 3 ? argv[3] : "");
}
