// The messages of a call to its session, and the session's answers to one response.
#include "service/stream/sample_run.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "kernels/check.h"
#include "service/request/sample_request.h"
#include "service/result/encode.h"
#include "service/result/split_results.h"

namespace sortition::service {
namespace {

Refusal RefusalOf(const v1::Error& error) {
  return {static_cast<Reason>(error.reason()), SampleField(error.field(), 0), error.limit(), error.message(),
          absl::Seconds(error.retry_after().seconds()) + absl::Nanoseconds(error.retry_after().nanos())};
}

Frame FrameOf(v1::StreamRequest message) {
  Frame frame;
  frame.bytes = frame.message_bytes = message.ByteSizeLong();
  frame.message = std::move(message);
  frame.scan.may_have_unknown = false;  // it was made here
  return frame;
}

}  // namespace

// Gathers the session's answers. Thread-safe.
class SampleRun::Collector final : public SessionSink {
 public:
  explicit Collector(int rows) {
    response_.mutable_rows()->Reserve(rows);
    for (int i = 0; i < rows; ++i) response_.add_rows()->set_row(static_cast<uint32_t>(i));
    response_.mutable_seeds()->Resize(rows, 0);
  }

  void Refuse(int row, const Refusal& refusal) {
    absl::MutexLock lock(&mutex_);
    EncodeError(refusal, response_.mutable_rows(row)->mutable_error());
  }

  bool IsRefused(int row) const {
    absl::MutexLock lock(&mutex_);
    return response_.rows(row).has_error();
  }

  // The step has these rows of the call; none: the call is answered.
  void Expect(std::vector<int> rows, Done done) {
    absl::ReleasableMutexLock lock(&mutex_);
    step_rows_ = std::move(rows);
    waiting_ = step_rows_.size();
    done_ = std::move(done);
    if (waiting_ > 0) return;
    lock.Release();
    Finish(std::nullopt);
  }

  void Send(const v1::StreamResponse& message, SentRelease) override {
    std::optional<Refusal> refusal;
    {
      absl::MutexLock lock(&mutex_);
      if (message.has_opened()) TakeOpened(message.opened());
      if (!message.has_results() || waiting_ == 0) return;
      if (message.results().has_error()) {
        refusal = RefusalOf(message.results().error());
        waiting_ = 0;
      }
      for (const v1::RowResult& row : message.results().rows()) TakeResult(row);
      if (waiting_ > 0) return;
    }
    Finish(std::move(refusal));
  }

 private:
  void TakeOpened(const v1::SequenceOpened& opened) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int row;
    SORTITION_CHECK(absl::SimpleAtoi(opened.request_id(), &row));
    if (opened.has_state()) response_.set_seeds(row, opened.state().seed());
    if (opened.has_error()) SetError(opened.error(), row);
    const v1::PolicyEffect& policy = opened.state().policy();
    // The row's own options need no history: those that do were refused before.
    const bool needs_history = opened.error().reason() == v1::HISTORY_REQUIRED;
    if (!needs_history && !policy.has_applied() && policy.removed().empty()) return;
    // The answer has no place that could say so.
    v1::Error error;
    EncodeError({Reason::kContradiction, "open.parameters", "",
                 "the operator's policy changes them, which only the opening of a sequence on a stream can state"},
                &error);
    SetError(error, row);
  }

  void TakeResult(const v1::RowResult& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int row = step_rows_.at(result.row());
    const bool is_last = !Continues(result);
    if (result.has_error()) {
      SetError(result.error(), row);
    } else {
      // Later parts have kept tokens alone, which protobuf appends.
      v1::DrawResult& own = *response_.mutable_rows(row)->mutable_draw();
      own.MergeFrom(result.draw());
      own.clear_continues();
    }
    if (is_last) --waiting_;
  }

  void SetError(const v1::Error& error, int row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::Error& own = *response_.mutable_rows(row)->mutable_error();
    own = error;
    own.set_field(SampleField(error.field(), row));
  }

  void Finish(std::optional<Refusal> refusal) {
    if (refusal) return done_(*std::move(refusal));
    done_(std::move(response_));
  }

  mutable absl::Mutex mutex_;
  // Not changed once the last row is answered.
  v1::SampleResponse response_;
  std::vector<int> step_rows_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  Done done_;
};

SampleRun::SampleRun(Engine* engine, std::string tenant, std::shared_ptr<const v1::SampleRequest> request,
                     uint64_t bytes)
    : request_(std::move(request)),
      bytes_(bytes),
      collector_(std::make_shared<Collector>(request_->rows_size())),
      session_(engine, std::move(tenant), collector_) {}

SampleRun::~SampleRun() = default;

void SampleRun::Start(absl::Duration timeout, Done done) {
  auto translated = TranslateSample(*request_, timeout);
  if (auto* refusal = std::get_if<Refusal>(&translated)) return done(std::move(*refusal));
  auto& messages = std::get<SampleMessages>(translated);
  session_.OnFrame(FrameOf(std::move(messages.hello)));
  v1::StreamRequest step = messages.step;
  step.mutable_step()->clear_rows();
  std::vector<int> rows;
  for (int i = 0; i < request_->rows_size(); ++i) {
    const auto index = static_cast<size_t>(i);
    if (messages.refused[index]) {
      collector_->Refuse(i, *messages.refused[index]);
      continue;
    }
    // An open without a history is answered at once.
    session_.OnFrame(FrameOf(std::move(messages.opens[index])));
    if (collector_->IsRefused(i)) continue;
    rows.push_back(i);
    *step.mutable_step()->add_rows() = std::move(*messages.step.mutable_step()->mutable_rows(i));
  }
  const bool is_empty = rows.empty();
  collector_->Expect(std::move(rows), std::move(done));
  if (is_empty) return;
  Frame frame = FrameOf(std::move(step));
  frame.bytes = bytes_;
  Payload payload;
  const std::string& logits = request_->logits();
  if (!logits.empty()) {
    payload.segments.push_back({reinterpret_cast<const std::byte*>(logits.data()), logits.size()});
  }
  payload.size = logits.size();
  frame.payloads.push_back(std::move(payload));
  frame.owner = request_;
  session_.OnFrame(std::move(frame));
}

}  // namespace sortition::service
