// A method of one request and one response on a completion queue: waits for a call, answers it, and waits for the next.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <utility>

#include "service/server/call_queue.h"

namespace sortition::server {

// Thread-safe. Outlives its calls, whose end CallQueue::AwaitNoCalls awaits.
template <typename Request, typename Response>
class UnaryMethod {
 public:
  using Responder = grpc::ServerAsyncResponseWriter<Response>;
  // The generated service's Request... function.
  using Await = std::function<void(grpc::ServerContext*, Request*, Responder*, grpc::CompletionQueue*,
                                   grpc::ServerCompletionQueue*, void*)>;
  // Does not block: other calls' events wait behind it. `response` counts where the status is OK.
  using Answer = std::function<grpc::Status(const grpc::ServerContext&, const Request&, Response* response)>;

  UnaryMethod(Await await, Answer answer) : await_(std::move(await)), answer_(std::move(answer)) {}

  // Waits on `queue` for calls from now on. The server has been started.
  void Start(CallQueue* queue) { new Call(this, queue); }

 private:
  // Deletes itself after its last event.
  class Call final : public QueueEvent {
   public:
    Call(UnaryMethod* method, CallQueue* queue) : method_(*method), queue_(*queue) {
      queue_.AddCall();
      method_.await_(&context_, &request_, &responder_, queue_.get(), queue_.get(), tag());
    }

    void Run(bool ok) override {
      // Not ok before the answer: the server has shut down. After it: the client has gone.
      if (!ok || answered_) {
        CallQueue& queue = queue_;
        delete this;
        queue.RemoveCall();
        return;
      }
      answered_ = true;
      method_.Start(&queue_);
      Response response;
      const grpc::Status status = method_.answer_(context_, request_, &response);
      if (status.ok()) {
        responder_.Finish(response, status, tag());
      } else {
        responder_.FinishWithError(status, tag());
      }
    }

   private:
    UnaryMethod& method_;
    CallQueue& queue_;
    grpc::ServerContext context_;
    Request request_;
    Responder responder_{&context_};
    bool answered_ = false;
  };

  const Await await_;
  const Answer answer_;
};

}  // namespace sortition::server
