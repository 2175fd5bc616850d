// One thread writes, another reads.
#include "tests/chaos/load_stream.h"

#include <random>
#include <utility>

#include "kernels/check.h"

namespace sortition::testing {
namespace {

double Milliseconds(LoadStream::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

template <typename T>
void Append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

void Found::Add(const Found& other) {
  offered += other.offered;
  tokens += other.tokens;
  refused += other.refused;
  failed += other.failed;
  different += other.different;
  Append(&answered_ms, other.answered_ms);
  Append(&refused_ms, other.refused_ms);
  Append(&overslept_ms, other.overslept_ms);
  if (first_error.empty()) first_error = other.first_error;
}

LoadStream::LoadStream(const std::string& target, const LoadText* text, uint32_t rows)
    : text_(*text), rows_(rows), stub_(v1::SamplingService::NewStub(OwnChannel(target))) {
  stream_ = stub_->Stream(&context_);
  v1::StreamRequest hello;
  hello.mutable_hello()->set_worker_session("load");
  SORTITION_CHECK(stream_->Write(hello));
  for (uint32_t i = 0; i < rows; ++i) SORTITION_CHECK(stream_->Write(text->MakeOpen(i)));
  reader_ = std::thread([this] { Read(); });
}

LoadStream::~LoadStream() {
  context_.TryCancel();
  reader_.join();
  stream_->Finish();
}

void LoadStream::RunClosed(uint32_t rows, Clock::time_point until) {
  while (Clock::now() < until) {
    {
      const auto wanted = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return sent_.size() * rows_ < rows || over_; };
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&wanted));
    }
    Send();
  }
}

void LoadStream::RunOpen(Clock::duration every, uint64_t seed, Clock::time_point until) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> part(0.5, 1.5);
  for (Clock::time_point due = Clock::now(); due < until && Clock::now() < until;
       due += std::chrono::duration_cast<Clock::duration>(every * part(random))) {
    if (Clock::now() < due) {
      std::this_thread::sleep_until(due);
      absl::MutexLock lock(&mutex_);
      found_.overslept_ms.push_back(Milliseconds(Clock::now() - due));
    }
    // A late start is the machine's fault and is not counted against the server. A write that the server holds back is
    // counted.
    Send();
  }
}

void LoadStream::Drain() {
  const auto drained = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return sent_.empty() || over_; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&drained));
}

Found LoadStream::TakeFound() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(found_, {});
}

void LoadStream::Send() {
  const uint64_t number = next_++;
  {
    absl::MutexLock lock(&mutex_);
    sent_[number] = {Clock::now(), rows_};
    found_.offered += rows_;
  }
  SORTITION_CHECK(stream_->Write(text_.MakeStep(number, rows_)));
}

void LoadStream::Read() {
  v1::StreamResponse response;
  while (stream_->Read(&response)) {
    absl::MutexLock lock(&mutex_);
    if (response.has_results()) {
      OnResults(response.results());
    } else if (response.has_rejected() || response.opened().has_error()) {
      found_.first_error =
          (response.has_rejected() ? response.rejected().error() : response.opened().error()).message();
      ++found_.failed;
    }
  }
  absl::MutexLock lock(&mutex_);
  over_ = true;
}

void LoadStream::OnResults(const v1::StepResults& results) {
  Sent& sent = sent_.at(results.batch_id());
  const auto fail = [&](const v1::Error& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (found_.first_error.empty()) found_.first_error = error.message();
  };
  for (const v1::RowResult& row : results.rows()) {
    if (row.has_draw()) {
      ++found_.tokens;
      found_.different += row.draw().token() != text_.TokenOf(results.batch_id(), row.row());
    } else {
      ++found_.failed;
      fail(row.error());
    }
  }
  sent.unanswered -= static_cast<uint32_t>(results.rows_size());
  const double took = Milliseconds(Clock::now() - sent.at);
  if (results.has_error()) {
    sent.unanswered = 0;
    const bool overloaded = results.error().reason() == v1::OVERLOADED && results.error().has_retry_after();
    (overloaded ? found_.refused : found_.failed) += rows_;
    if (!overloaded) fail(results.error());
    found_.refused_ms.push_back(took);
  } else if (sent.unanswered == 0) {
    found_.answered_ms.push_back(took);
  }
  if (sent.unanswered == 0) sent_.erase(results.batch_id());
}

}  // namespace sortition::testing
