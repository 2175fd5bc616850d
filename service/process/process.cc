// Settings, signals and files of the process.
#include "service/process/process.h"

#include <grpcpp/version_info.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/followed_files.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace sortition::server {

#ifdef __GLIBC__
namespace {

// Returns the bytes of the process's own memory that the allocator has not given out, and those it never had: stacks,
// data, what drivers hold.
uint64_t FreeBytes() {
  uint64_t size = 0, resident = 0, shared = 0;  // in pages
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  const uint64_t own = (resident - std::min(shared, resident)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const struct mallinfo2 info = mallinfo2();
  return own - std::min<uint64_t>(info.uordblks + info.hblkhd, own);
}

}  // namespace
#endif

void TuneAllocator() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, static_cast<int>(2 * std::max(1u, std::thread::hardware_concurrency())));
#endif
}

void FreedMemory::Look() {
#ifdef __GLIBC__
  const absl::Time begun = clock_.Now();
  if (begun < next_) return;
  const uint64_t free = FreeBytes();
  least_ = std::min(least_, free);
  looks_ = free - least_ > kMostFree ? looks_ + 1 : 0;
  if (looks_ == kLooks) {
    malloc_trim(0);
    least_ = FreeBytes();
    looks_ = 0;
  }
  next_ = begun + kRest * (clock_.Now() - begun);
#endif
}

void ReadOnStreamThreads() {
#if GRPC_CPP_VERSION_MAJOR > 1 || GRPC_CPP_VERSION_MINOR >= 60
  const char* set = std::getenv("GRPC_EXPERIMENTS");
  const std::string experiments = set == nullptr ? "" : set;
  if (absl::StrContains(experiments, "event_engine_listener")) return;
  setenv("GRPC_EXPERIMENTS",
         absl::StrCat(experiments, experiments.empty() ? "" : ",", "-event_engine_listener").c_str(),
         /*overwrite=*/1);
#endif
}

Signals::Signals() {
  sigemptyset(&signals_);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) sigaddset(&signals_, signal);
  SORTITION_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
  // SIGPIPE comes when the reader of standard error has gone, SIGXFSZ when a file may not grow, such as shared memory
  // under ulimit -f: the call that meets it returns an error.
  for (const int signal : {SIGALRM, SIGIO, SIGPIPE, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

int Signals::AwaitStop(const std::function<void()>& look) const {
  for (;;) {
    int signal;
    SORTITION_CHECK(sigwait(&signals_, &signal) == 0);
    if (signal != SIGHUP) return signal;
    look();
  }
}

void Signals::RequestStop() const { kill(getpid(), SIGTERM); }

void Signals::ExitOnNext() const {
  std::thread([signals = *this] {
    signals.AwaitStop([] {});
    _exit(1);
  }).detach();
}

absl::Status WritePortFile(const std::string& path, uint16_t port) {
  const std::string unfinished = absl::StrCat(path, ".new");
  std::ofstream file(unfinished, std::ios::trunc);
  file << port << "\n";
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("--port_file: cannot write ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<service::CheckpointKey>> ReadCheckpointKey(const std::string& path) {
  if (path.empty()) return std::optional<service::CheckpointKey>();
  const auto secret = service::ReadRegularFile(path);
  auto key = secret.ok() ? service::CheckpointKey::Of(*secret) : secret.status();
  if (!key.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_key: ", path, ": ", key.status().message()));
  }
  return std::optional(*std::move(key));
}

}  // namespace sortition::server
