// A completion queue of the server, and the two kinds of methods that run on it besides sampling streams.
//
// Only the threads of these queues may wait for sockets in this process. If another gRPC thread (for callbacks or
// synchronous calls) reads a socket, it hands the data to the queue's thread, which costs a stream a sixth of its
// throughput (docs/benchmarks/wire.md).
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/status.h>

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sortition::server {

// The end of one operation on a queue.
class QueueEvent {
 public:
  // The tag to begin the operation with.
  void* tag() { return this; }
  // `ok` comes from CompletionQueue::Next. May destroy the event.
  virtual void Run(bool ok) = 0;

 protected:
  ~QueueEvent() = default;
};

// Thread-safe. Life: constructed with a builder -> Serve in a thread, or Poll periodically -> AwaitNoCalls once the
// server has shut down -> ShutDown -> destroyed. If the server was never started, the destructor does all this.
class CallQueue {
 public:
  // `takes_connections`: a thread serves the queue, and reads the sockets of a share of the connections.
  explicit CallQueue(grpc::ServerBuilder* builder, bool takes_connections = true);
  // Called when no thread serves the queue and its server is destroyed.
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  grpc::ServerCompletionQueue* get() const { return queue_.get(); }

  // Runs events as they come. Blocks until the queue has been shut down.
  void Serve();
  // True if no other event was there when the running one was taken. Called by events that Serve runs.
  bool was_alone() const { return was_alone_; }
  // Runs the events that have come. Does not block. For a queue without a thread: its calls may wait for the next Poll.
  void Poll();

  // Runs `event` with true once no other event waits, or after kEventsBefore of them. So the events of streams do not
  // wait for many long ones. Called by events of this queue.
  void Defer(QueueEvent* event) { deferred_.push_back(event); }

  // Counts a call, from before its first operation until its last event.
  void AddCall();
  void RemoveCall();
  // Blocks until no call is counted. Another thread must run events meanwhile.
  void AwaitNoCalls();

  // Called once, when no operation is outstanding. None may begin after it.
  void ShutDown();

 private:
  static constexpr int kEventsBefore = 64;

  void RunDeferred();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  bool shut_down_ = false;
  // Used by the thread that runs events.
  bool was_alone_ = false;
  int events_before_ = 0;  // events that ran while the first deferred one waited
  std::deque<QueueEvent*> deferred_;
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Calls that were answered and whose answer has not been read to its end. Thread-safe.
class UnreadAnswers {
 public:
  using Place = std::list<std::pair<absl::Time, grpc::ServerContext*>>::iterator;

  // Keeps a call, whose answer is about to be written, until Remove.
  Place Add(grpc::ServerContext* call);
  void Remove(Place place);
  // Cancels the calls that earlier ticks have seen, the first of them longer than `stalled_write` ago.
  void Tick(absl::Time now, absl::Duration stalled_write);

 private:
  absl::Mutex mutex_;
  std::list<std::pair<absl::Time, grpc::ServerContext*>> calls_ ABSL_GUARDED_BY(mutex_);  // and their first ticks
};

// A method of one request and one response: waits for a call, answers it, and waits for the next. Thread-safe.
// Outlives its calls: CallQueue::AwaitNoCalls waits for their end.
template <typename Request, typename Response>
class UnaryMethod {
 public:
  using Responder = grpc::ServerAsyncResponseWriter<Response>;
  // The generated service's Request... function.
  using Await = std::function<void(grpc::ServerContext*, Request*, Responder*, grpc::CompletionQueue*,
                                   grpc::ServerCompletionQueue*, void*)>;
  // Must not block: other calls' events wait behind it. `response` is sent if the status is OK.
  using Answer = std::function<grpc::Status(const grpc::ServerContext&, const Request&, Response* response)>;

  UnaryMethod(Await await, Answer answer) : await_(std::move(await)), answer_(std::move(answer)) {}

  // Begins to wait on `queue` for calls. The server has been started.
  void Start(CallQueue* queue) { new Call(this, queue); }

  // Ends calls whose answer has not been read for `stalled_write`. Called every few milliseconds.
  void Tick(absl::Time now, absl::Duration stalled_write) { unread_.Tick(now, stalled_write); }

 private:
  // Deletes itself after its last event.
  class Call final : public QueueEvent {
   public:
    Call(UnaryMethod* method, CallQueue* queue) : method_(*method), queue_(*queue) {
      queue_.AddCall();
      method_.await_(&context_, &request_, &responder_, queue_.get(), queue_.get(), tag());
    }

    void Run(bool ok) override {
      // Not ok before the answer: the server has shut down. Not ok after it: the client has gone.
      if (!ok || unread_) {
        CallQueue& queue = queue_;
        if (unread_) method_.unread_.Remove(*unread_);
        delete this;
        queue.RemoveCall();
        return;
      }
      unread_ = method_.unread_.Add(&context_);
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
    std::optional<UnreadAnswers::Place> unread_;  // once it is answered
  };

  const Await await_;
  const Answer answer_;
  UnreadAnswers unread_;
};

// The messages of one call of a WatchMethod.
template <typename Response>
class Watch {
 public:
  virtual ~Watch() = default;
  // Returns the message to send now, or nothing. Called by one thread at a time; must not block.
  virtual std::optional<Response> Next(absl::Time now) = 0;
  // Returns the time from which Next has the next message; InfiniteFuture if no time brings one. Called likewise.
  virtual absl::Time due() const = 0;
};

// A method that answers one request with a stream of messages, sent as time passes. Thread-safe. Calls last until the
// client or the server's shutdown cancels them.
template <typename Request, typename Response>
class WatchMethod {
 public:
  using Writer = grpc::ServerAsyncWriter<Response>;
  // The generated service's Request... function.
  using Await = std::function<void(grpc::ServerContext*, Request*, Writer*, grpc::CompletionQueue*,
                                   grpc::ServerCompletionQueue*, void*)>;
  // Begins a call, or returns the status that ends it. Must not block.
  using Begin = std::function<std::variant<grpc::Status, std::unique_ptr<Watch<Response>>>(const grpc::ServerContext&,
                                                                                           const Request&)>;

  WatchMethod(Await await, Begin begin) : await_(std::move(await)), begin_(std::move(begin)) {}

  // Begins to wait on `queue` for calls. The server has been started.
  void Start(CallQueue* queue) {
    auto call = std::make_shared<Call>(this, queue);
    {
      absl::MutexLock lock(&mutex_);
      calls_.emplace(call.get(), call);
    }
    queue->AddCall();
    call->Expect();
  }

  // Sends the messages that are due. Called every few milliseconds. Other calls cost nothing.
  void Tick(absl::Time now) {
    std::vector<std::shared_ptr<Call>> calls;
    {
      absl::MutexLock lock(&mutex_);
      while (!due_.empty() && due_.begin()->first <= now) {
        calls.push_back(calls_.find(due_.begin()->second)->second);
        due_.erase(due_.begin());
      }
    }
    for (const auto& call : calls) call->Tick(now);
  }

  // Asks every call for its next message: what they watch has changed before its time.
  void TickAll(absl::Time now) {
    std::vector<std::shared_ptr<Call>> calls;
    {
      absl::MutexLock lock(&mutex_);
      calls.reserve(calls_.size());
      for (const auto& [pointer, call] : calls_) calls.push_back(call);
    }
    for (const auto& call : calls) call->Tick(now);
  }

 private:
  class Call {
   public:
    Call(WatchMethod* method, CallQueue* queue) : method_(*method), queue_(*queue) {}

    // Waits on the queue for a client. Called once.
    void Expect() {
      absl::MutexLock lock(&mutex_);
      outstanding_ = 1;
      context_.AsyncNotifyWhenDone(done_.tag());
      method_.await_(&context_, &request_, &writer_, queue_.get(), queue_.get(), requested_.tag());
    }

    void Tick(absl::Time now) {
      absl::MutexLock lock(&mutex_);
      if (watch_ == nullptr || writing_) return;
      const std::optional<Response> response = watch_->Next(now);
      if (!response) {
        method_.Schedule(this, watch_->due());
        return;
      }
      writing_ = true;
      ++outstanding_;
      writer_.Write(*response, written_.tag());
    }

    absl::Time scheduled = absl::InfiniteFuture();  // of its entry in due_; under the method's lock

   private:
    using Handler = void (Call::*)(bool ok);

    class Event final : public QueueEvent {
     public:
      Event(Call* call, Handler handler) : call_(*call), handler_(handler) {}
      void Run(bool ok) override { call_.Run(handler_, ok); }

     private:
      Call& call_;
      const Handler handler_;
    };

    void Run(Handler handler, bool ok) {
      {
        absl::MutexLock lock(&mutex_);
        --outstanding_;
        (this->*handler)(ok);
        if (outstanding_ != 0) return;
      }
      method_.OnOver(this, &queue_);
    }

    void OnRequested(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (!ok) return;  // the server has shut down; no other event follows
      ++outstanding_;   // the event of OnDone
      method_.Start(&queue_);
      auto begun = method_.begin_(context_, request_);
      Request().Swap(&request_);  // frees its memory: the call may last for days
      if (auto* watch = std::get_if<std::unique_ptr<Watch<Response>>>(&begun)) {
        watch_ = std::move(*watch);
        method_.Schedule(this, watch_->due());
        return;
      }
      ++outstanding_;
      writer_.Finish(std::get<grpc::Status>(begun), finished_.tag());
    }

    void OnWritten(bool ok) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      writing_ = false;
      if (!ok) watch_ = nullptr;  // the client has gone
      if (watch_ != nullptr) method_.Schedule(this, watch_->due());
    }
    void OnFinished(bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}
    void OnDone(bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { watch_ = nullptr; }

    WatchMethod& method_;
    CallQueue& queue_;
    Event requested_{this, &Call::OnRequested};
    Event written_{this, &Call::OnWritten};
    Event finished_{this, &Call::OnFinished};
    Event done_{this, &Call::OnDone};

    absl::Mutex mutex_;
    grpc::ServerContext context_;
    Request request_;
    Writer writer_{&context_};
    int outstanding_ ABSL_GUARDED_BY(mutex_) = 0;  // events yet to come
    bool writing_ ABSL_GUARDED_BY(mutex_) = false;
    std::unique_ptr<Watch<Response>> watch_
        ABSL_GUARDED_BY(mutex_);  // null before the client comes and after it has gone
  };

  // Has the call ticked at `due`, and not at another time that was set before.
  void Schedule(Call* call, absl::Time due) {
    absl::MutexLock lock(&mutex_);
    due_.erase({call->scheduled, call});
    call->scheduled = due;
    if (due != absl::InfiniteFuture()) due_.emplace(due, call);
  }

  void OnOver(Call* call, CallQueue* queue) {
    {
      std::shared_ptr<Call> last;  // destroyed after the lock is released
      absl::MutexLock lock(&mutex_);
      due_.erase({call->scheduled, call});
      const auto it = calls_.find(call);
      last = std::move(it->second);
      calls_.erase(it);
    }
    queue->RemoveCall();
  }

  const Await await_;
  const Begin begin_;
  absl::Mutex mutex_;  // taken after a call's
  // The open calls, and the one that waits for a client.
  absl::flat_hash_map<Call*, std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, Call*>> due_ ABSL_GUARDED_BY(mutex_);  // some of calls_
};

}  // namespace sortition::server
