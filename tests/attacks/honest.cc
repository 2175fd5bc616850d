// Questions and their times.
#include "tests/attacks/honest.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kernels/law/version.h"
#include "sortition/v1/sampling.grpc.pb.h"

namespace sortition::attacks {
namespace {

class StepStream {
 public:
  StepStream(const std::shared_ptr<grpc::Channel>& channel, const StepSize& size)
      : stub_(v1::SamplingService::NewStub(channel)),
        stream_(stub_->Stream(&context_)),
        size_(size),
        logits_(size_t{size.rows} * size.vocabulary, 0.5f) {}
  ~StepStream() { context_.TryCancel(); }

  bool Open() {
    v1::StreamRequest hello;
    hello.mutable_hello()->set_worker_session(absl::StrCat("honest", reinterpret_cast<uintptr_t>(this)));
    v1::StreamResponse response;
    if (!stream_->Write(hello) || !stream_->Read(&response)) return false;
    for (uint32_t row = 0; row < size_.rows; ++row) {
      v1::StreamRequest request;
      v1::OpenSequence* open = request.mutable_open();
      open->set_request_id(absl::StrCat("r", row));
      open->set_epoch(1);
      open->set_law_version(law::kLawVersion);
      open->set_vocabulary_size(size_.vocabulary);
      if (!stream_->Write(request) || !stream_->Read(&response) || !response.has_opened()) return false;
    }
    return true;
  }

  bool Step() {
    ++step_;
    v1::StreamRequest request;
    v1::Step* step = request.mutable_step();
    step->set_batch_id(step_);
    step->mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
    step->mutable_logits()->set_dtype(v1::DTYPE_F32);
    step->mutable_logits()->set_vocabulary_size(size_.vocabulary);
    for (uint32_t i = 0; i < size_.rows; ++i) {
      v1::StepRow* row = step->add_rows();
      row->set_request_id(absl::StrCat("r", i));
      row->set_step_id(step_);
      row->set_position(static_cast<uint32_t>(step_));
    }
    request.add_payloads(logits_.data(), logits_.size() * sizeof(float));
    if (!stream_->Write(request)) return false;
    // Rows are answered as they are done, in one message or in several.
    v1::StreamResponse response;
    for (int drawn = 0; drawn < static_cast<int>(size_.rows); drawn += response.results().rows_size()) {
      if (!stream_->Read(&response) || response.results().rows_size() == 0) return false;
      for (const v1::RowResult& row : response.results().rows()) {
        if (!row.has_draw()) return false;
      }
    }
    return true;
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::SamplingService::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream_;
  const StepSize size_;
  const std::vector<float> logits_;
  uint64_t step_ = 0;
};

}  // namespace

void Answers::NoteSilence() {
  const absl::Time now = absl::Now();
  absl::Duration& silence = times_[static_cast<size_t>(phase_)].silence;
  silence = std::max(silence, now - std::exchange(last_, now));
}

void Answers::Add(absl::Duration latency) {
  absl::MutexLock lock(&mutex_);
  times_[static_cast<size_t>(phase_)].latencies.push_back(latency);
  NoteSilence();
}

void Answers::Begin(Phase phase) {
  absl::MutexLock lock(&mutex_);
  NoteSilence();
  phase_ = phase;
}

uint64_t Answers::count(Phase phase) const {
  absl::MutexLock lock(&mutex_);
  return times_[static_cast<size_t>(phase)].latencies.size();
}

absl::Duration Answers::Percentile99(Phase phase) const {
  absl::MutexLock lock(&mutex_);
  std::vector<absl::Duration> sorted = times_[static_cast<size_t>(phase)].latencies;
  if (sorted.empty()) return absl::InfiniteDuration();
  const auto at = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() * 99 / 100);
  std::nth_element(sorted.begin(), at, sorted.end());
  return *at;
}

absl::Duration Answers::LongestSilence(Phase phase) const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration silence = times_[static_cast<size_t>(phase)].silence;
  return phase == phase_ ? std::max(silence, absl::Now() - last_) : silence;
}

Asker::Asker(std::function<bool()> ask, absl::Duration pause, Answers* answers)
    : thread_([this, ask = std::move(ask), pause, answers] {
        while (!stop_) {
          const absl::Time asked = absl::Now();
          if (!ask()) {
            failed_ = true;
            return;
          }
          answers->Add(absl::Now() - asked);
          absl::SleepFor(pause);
        }
      }) {}

void Asker::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

Asker::~Asker() { Stop(); }

std::function<bool()> StepsOver(const std::shared_ptr<grpc::Channel>& channel, const StepSize& size) {
  std::shared_ptr<StepStream> stream;
  return [channel, size, stream]() mutable {
    if (stream == nullptr) {
      stream = std::make_shared<StepStream>(channel, size);
      if (!stream->Open()) return false;
    }
    return stream->Step();
  };
}

std::function<bool()> NewcomersOver(const std::function<std::shared_ptr<grpc::Channel>()>& connect) {
  return [connect] { return StepStream(connect(), {}).Open(); };
}

std::function<bool()> HealthOver(const std::shared_ptr<grpc::Channel>& channel) {
  auto stub = std::make_shared<grpc::health::v1::Health::Stub>(channel);
  return [stub] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    grpc::health::v1::HealthCheckResponse response;
    return stub->Check(&context, {}, &response).ok();
  };
}

uint64_t ResidentMemory(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/statm"));
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace sortition::attacks
