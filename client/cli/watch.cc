// sortitionctl watch: the server's counters, one line an interval.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/flags/flag.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "sortition/v1/information.grpc.pb.h"

ABSL_FLAG(absl::Duration, interval, absl::Seconds(1), "watch, bench: time between lines, 0.1 s to 60 s");
ABSL_FLAG(uint64_t, count, 0, "watch: lines to print; 0 = until stopped");

namespace sortition::cli {
namespace {

absl::Duration Uptime(const v1::Counters& counters) {
  return absl::Seconds(counters.uptime().seconds()) + absl::Nanoseconds(counters.uptime().nanos());
}

void PrintHeader() {
  std::printf("%10s %10s %10s %12s %8s %8s %10s %10s %8s %10s %12s %8s\n", "UPTIME/s", "STEPS/s", "TOKENS/s", "TOKENS",
              "ERRORS", "ROW/BATCH", "COMPACT/s", "REQUIRED/s", "STREAMS", "SEQUENCES", "STATE/bytes", "QUEUED");
}

// Rates are since `before`, or since the server's start if there is none.
void PrintLine(const v1::Counters& before, const v1::Counters& now) {
  const double seconds = absl::ToDoubleSeconds(Uptime(now) - Uptime(before));
  const auto rate = [&](uint64_t from, uint64_t to) {
    return seconds > 0 ? static_cast<double>(to - from) / seconds : 0.0;
  };
  const uint64_t batches = now.batches() - before.batches();
  const uint64_t compact = now.compact_rows() - before.compact_rows();  // run in no batch
  const double in_batches = static_cast<double>(now.rows() - before.rows()) - static_cast<double>(compact);
  const double rows_a_batch = batches > 0 ? std::max(in_batches, 0.0) / static_cast<double>(batches) : 0;
  std::printf("%10.1f %10.1f %10.1f %12llu %8llu %9.1f %10.1f %10.1f %8u %10u %12llu %8u\n",
              absl::ToDoubleSeconds(Uptime(now)), rate(before.steps(), now.steps()),
              rate(before.tokens(), now.tokens()), static_cast<unsigned long long>(now.tokens()),
              static_cast<unsigned long long>(now.errors()), rows_a_batch,
              rate(before.compact_rows(), now.compact_rows()), rate(before.rows_required(), now.rows_required()),
              now.streams(), now.sequences(), static_cast<unsigned long long>(now.state_bytes()), now.queued_rows());
}

// Reads the counters as they come, with a bound on each wait.
class CounterReader {
 public:
  CounterReader(v1::InformationService::Stub* stub, grpc::ClientContext* context,
                const v1::WatchCountersRequest& request, absl::Duration timeout)
      : context_(*context),
        stream_(stub->AsyncWatchCounters(context, request, &queue_, nullptr)),
        started_(Wait(timeout)) {}

  // Returns false if none came within `timeout`, or the call has ended. Finish is called next and returns the reason.
  bool Read(v1::Counters* counters, absl::Duration timeout) {
    if (!started_) return false;
    stream_->Read(counters, nullptr);
    return Wait(timeout);
  }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    Wait(absl::InfiniteDuration());
    return silent_ ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no counters in time") : status;
  }

 private:
  // The tag of the only operation in progress.
  bool Wait(absl::Duration timeout) {
    void* tag;
    bool ok;
    if (queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + timeout)) == grpc::CompletionQueue::TIMEOUT) {
      silent_ = true;
      context_.TryCancel();
      queue_.Next(&tag, &ok);
      return false;
    }
    return ok;
  }

  grpc::ClientContext& context_;
  grpc::CompletionQueue queue_;
  bool silent_ = false;
  std::unique_ptr<grpc::ClientAsyncReader<v1::Counters>> stream_;
  const bool started_;
};

}  // namespace

Outcome Watch() {
  const auto channel = MakeChannel();
  if (!channel.ok()) return Fail(channel.status());
  const auto stub = v1::InformationService::NewStub(*channel);
  const absl::Duration interval = absl::GetFlag(FLAGS_interval);
  const uint64_t count = absl::GetFlag(FLAGS_count);
  v1::WatchCountersRequest request;
  request.mutable_interval()->set_seconds(absl::ToInt64Seconds(interval));
  request.mutable_interval()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(interval - absl::Seconds(request.interval().seconds()))));

  grpc::ClientContext context;
  if (absl::Status status = Prepare(&context); !status.ok()) return Fail(status);
  CounterReader reader(stub.get(), &context, request, Timeout());
  v1::Counters before;
  v1::Counters now;
  uint64_t lines = 0;
  while (reader.Read(&now, interval + Timeout())) {
    if (WantsJson()) {
      std::printf("%s", ToJson(now, /*one_line=*/true).c_str());
    } else {
      if (lines % 20 == 0) PrintHeader();
      PrintLine(before, now);
    }
    std::fflush(stdout);
    before = now;
    if (++lines == count) {
      context.TryCancel();
      reader.Finish();  // CANCELLED, as requested
      return Outcome::kDone;
    }
  }
  return Fail(reader.Finish());
}

}  // namespace sortition::cli
