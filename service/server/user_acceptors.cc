// Acceptors by user.
#include "service/server/user_acceptors.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::server {
namespace {

// Of a connection's context. Only this process adds properties to it.
constexpr char kProperty[] = "sortition_user";

// Marks the connections of an acceptor. The calls of one connection arrive one after the other, so that the first adds
// the mark before any of them is handed on.
class UserMark final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata&, grpc::AuthContext* context, OutputMetadata*, OutputMetadata*) override {
    if (context->FindPropertyValues(kProperty).empty()) {
      context->AddProperty(kProperty, absl::StrCat(user_.load(std::memory_order_acquire)));
    }
    return grpc::Status::OK;
  }
  void SetUser(uid_t user) { user_.store(user, std::memory_order_release); }

 private:
  std::atomic<uid_t> user_ = 0;
};

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

}  // namespace

class UserAcceptors::Slot {
 public:
  explicit Slot(grpc::ServerBuilder* builder) : mark_(std::make_shared<UserMark>()) {
    // On the wire as in plain text: nothing is exchanged.
    const auto credentials = grpc::experimental::LocalServerCredentials(UDS);
    credentials->SetAuthMetadataProcessor(mark_);
    using Builder = grpc::ServerBuilder::experimental_type;
    acceptor_ =
        builder->experimental().AddExternalConnectionAcceptor(Builder::ExternalConnectionType::FROM_FD, credentials);
  }

  bool TakesFor(uid_t user) {
    if (!user_) {
      user_ = user;
      mark_->SetUser(user);
    }
    return *user_ == user;
  }

  void Take(int listener, service::Descriptor connection) {
    Acceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener;
    parameters.fd = connection.Release();
    acceptor_->HandleNewConnection(&parameters);
  }

 private:
  const std::shared_ptr<UserMark> mark_;
  std::shared_ptr<Acceptor> acceptor_;
  std::optional<uid_t> user_;
};

UserAcceptors::UserAcceptors(grpc::ServerBuilder* builder) {
  for (size_t i = 0; i < kMostUsers; ++i) slots_.push_back(std::make_unique<Slot>(builder));
}

UserAcceptors::~UserAcceptors() = default;

bool UserAcceptors::Take(uid_t user, int listener, service::Descriptor connection) {
  for (const auto& slot : slots_) {
    if (!slot->TakesFor(user)) continue;
    slot->Take(listener, std::move(connection));
    return true;
  }
  return false;
}

std::optional<uid_t> UserOf(const grpc::AuthContext& caller) {
  const std::vector<grpc::string_ref> marks = caller.FindPropertyValues(kProperty);
  if (marks.empty()) return std::nullopt;
  uint32_t user = 0;
  SORTITION_CHECK(absl::SimpleAtoi(absl::string_view(marks.front().data(), marks.front().size()), &user));
  return user;
}

}  // namespace sortition::server
