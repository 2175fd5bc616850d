// Starting, measuring and judging.
#include "tests/attacks/trial.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "service/net/frame_meter.h"
#include "service/receipt/receipt_key.h"
#include "tests/attacks/honest.h"
#include "tests/server/client_list_file.h"
#include "tests/server/server_process.h"
#include "tests/server/test_certificates.h"

namespace sortition::attacks {
namespace {

constexpr int kHonestStreams = 3;
constexpr absl::Duration kThinkTime = absl::Milliseconds(2);
constexpr absl::Duration kProbePeriod = absl::Milliseconds(20);
constexpr absl::Duration kNewcomerPeriod = absl::Milliseconds(200);
constexpr absl::Duration kLongestLargeSteps = absl::Seconds(60);
constexpr absl::Duration kWarmUp = absl::Milliseconds(300);
constexpr absl::Duration kLook = absl::Milliseconds(20);

std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetSslTargetNameOverride("localhost");
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

// False once the process has ended.
bool IsAlive(pid_t process) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

int EndedConnections(const std::string& metrics) {
  int ended = 0;
  for (size_t i = 1; i < server::kFrameExcesses; ++i) {
    const auto name = server::FrameExcessName(static_cast<server::FrameExcess>(i));
    ended += std::max(0, server::Metric(metrics, absl::StrCat("sortition_connections_ended_total{excess=\"",
                                                              std::string(name), "\"}")));
  }
  return ended;
}

void Judge(TrialResult* result) {
  const auto miss = [&](bool is_missed, const char* what) {
    if (is_missed) result->missed.push_back(what);
  };
  miss(result->died, "the process ended");
  miss(result->memory_peak > result->memory_before + kMostGrowth, "memory");
  miss(result->memory_after > result->memory_before + kMostKept, "memory kept");
  miss(result->p99 > kMostSlowdown * result->p99_quiet, "p99");
  miss(result->silence > kMostSilence, "silence");
  miss(result->health_silence > kMostSilence, "health");
  miss(result->stop > kMostStop, "stop");
}

// A server under attack, on all kinds of listeners. `token`: of the honest clients, if it has a list; only with TLS.
class Target {
 public:
  Target(std::string_view name, Wire wire, bool guarded, const std::vector<std::string>& more = {},
         const std::string& token = "")
      : certificates_(absl::StrCat("attack_", std::string(name))),
        path_(server::TestPath(absl::StrCat("attack_", std::string(WireName(wire)), ".sock"))),
        wire_(wire),
        token_(token),
        process_({Arguments(guarded, more), {}, 0}),
        listen_(absl::StrSplit(process_.Serving("listen"), ',')),
        health_(process_.Serving("health")),
        metrics_(process_.Serving("metrics")) {}

  server::ServerProcess& process() { return process_; }
  const std::string& health() const { return health_; }
  const std::string& metrics() const { return metrics_; }
  // The address that is attacked.
  const std::string& address() const {
    return wire_ == Wire::kHealth ? health_ : listen_.at(wire_ == Wire::kUnix ? 1 : 0);
  }
  std::shared_ptr<grpc::Channel> ConnectHonest() const {
    const auto plain = grpc::InsecureChannelCredentials();
    if (wire_ == Wire::kUnix) return Connect(listen_.at(1), plain);
    if (wire_ != Wire::kTls) return Connect(listen_.at(0), plain);
    auto credentials = certificates_.ClientCredentials("");
    if (!token_.empty()) {
      credentials = grpc::CompositeChannelCredentials(credentials, grpc::AccessTokenCredentials(token_));
    }
    return Connect(listen_.at(0), credentials);
  }
  const server::TestCertificates& certificates() const { return certificates_; }

 private:
  std::vector<std::string> Arguments(bool guarded, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {absl::StrCat("--listen=127.0.0.1:0,unix:", path_),
                                          "--health_listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                          "--cpu_threads=1", absl::StrCat("--unguarded_http2=", !guarded)};
    if (wire_ == Wire::kTls) {
      arguments.push_back(absl::StrCat("--tls_certificate=", certificates_.server_certificate_path()));
      arguments.push_back(absl::StrCat("--tls_key=", certificates_.server_key_path()));
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  const server::TestCertificates certificates_;
  const std::string path_;
  const Wire wire_;
  const std::string token_;
  server::ServerProcess process_;
  const std::vector<std::string> listen_;
  const std::string health_;
  const std::string metrics_;
};

}  // namespace

TrialResult RunLargeSteps(Wire wire, const TrialOptions& options) {
  constexpr StepSize kLarge = {16, 131'072};
  constexpr uint64_t kStepBytes = uint64_t{kLarge.rows} * kLarge.vocabulary * sizeof(float);
  constexpr int kStreams = 6;
  Target target("large_steps", wire, options.guarded);
  const std::shared_ptr<grpc::Channel> channel = target.ConnectHonest();
  TrialResult result;
  result.sent.connections = 1;
  result.memory_before = ResidentMemory(target.process().pid());
  Answers answers;
  {
    std::vector<std::unique_ptr<Asker>> askers;
    for (int i = 0; i < kStreams; ++i) {
      askers.push_back(std::make_unique<Asker>(StepsOver(channel, kLarge), absl::ZeroDuration(), &answers));
    }
    const absl::Time end = absl::Now() + kLongestLargeSteps;
    while (answers.count(Phase::kBefore) * kStepBytes < kLargeBytes && absl::Now() < end &&
           IsAlive(target.process().pid())) {
      result.memory_peak = std::max(result.memory_peak, ResidentMemory(target.process().pid()));
      absl::SleepFor(kLook);
    }
  }
  result.sent.bytes = answers.count(Phase::kBefore) * kStepBytes;
  result.p99 = result.p99_quiet = answers.Percentile99(Phase::kBefore);
  result.silence = answers.LongestSilence(Phase::kBefore);
  absl::SleepFor(options.after);
  if (result.sent.bytes < kLargeBytes) result.missed.push_back("steps");
  if (!StepsOver(channel)()) result.missed.push_back("the step after the pause");
  result.memory_after = ResidentMemory(target.process().pid());
  result.died = !IsAlive(target.process().pid());
  if (result.died) {
    result.missed.push_back("the process ended");
    return result;
  }
  result.ended = options.guarded ? EndedConnections(target.metrics()) : 0;
  if (result.ended != 0) result.missed.push_back("an honest client was cut");
  target.process().Signal(SIGTERM);
  if (target.process().Wait() != 0) result.missed.push_back("the process ended");
  return result;
}

TrialResult Run(const Attack& attack, Wire wire, const TrialOptions& options) {
  Target target(attack.name, wire, options.guarded);
  server::ServerProcess& process = target.process();
  TrialResult result;
  Answers answers;
  Answers probes;
  std::vector<std::unique_ptr<Asker>> honest;
  for (int i = 0; i < kHonestStreams; ++i) {
    honest.push_back(std::make_unique<Asker>(StepsOver(target.ConnectHonest()), kThinkTime, &answers));
  }
  Asker prober(HealthOver(Connect(target.health(), grpc::InsecureChannelCredentials())), kProbePeriod, &probes);
  absl::SleepFor(kWarmUp);
  std::atomic<bool> stop = false;
  const auto look = [&](absl::Time until) {
    while (absl::Now() < until && !stop) {
      result.memory_peak = std::max(result.memory_peak, ResidentMemory(process.pid()));
      if (!IsAlive(process.pid())) stop = true;
      absl::SleepFor(kLook);
    }
  };
  for (int turn = 0; turn < options.turns && !stop; ++turn) {
    answers.Begin(Phase::kQuiet);
    absl::SleepFor(options.quiet / options.turns);
    if (turn == 0) result.memory_before = ResidentMemory(process.pid());
    answers.Begin(Phase::kAttacked);
    probes.Begin(Phase::kAttacked);
    const absl::Time end = absl::Now() + options.length / options.turns;
    std::vector<AttackCount> sent(static_cast<size_t>(options.connections));
    std::vector<std::thread> attackers;
    for (AttackCount& count : sent) {
      attackers.emplace_back(
          [&] { count = Send(attack, target.address(), wire == Wire::kTls, end, stop, options.idle); });
    }
    look(end);
    answers.Begin(Phase::kAfter);
    for (std::thread& attacker : attackers) attacker.join();
    for (const AttackCount& count : sent) {
      result.sent.bytes += count.bytes;
      result.sent.connections += count.connections;
    }
  }
  look(absl::Now() + options.after);
  result.p99_quiet = answers.Percentile99(Phase::kQuiet);
  result.p99 = answers.Percentile99(Phase::kAttacked);
  result.silence = std::max(answers.LongestSilence(Phase::kAttacked), answers.LongestSilence(Phase::kAfter));
  result.health_silence = probes.LongestSilence(Phase::kAttacked);
  result.memory_after = ResidentMemory(process.pid());
  result.died = !IsAlive(process.pid());
  if (!result.died) {
    result.ended = options.guarded ? EndedConnections(target.metrics()) : 0;
    const absl::Time asked = absl::Now();
    process.Signal(SIGTERM);
    honest.clear();
    prober.Stop();
    result.died = process.Wait() != 0;
    result.stop = absl::Now() - asked;
  }
  Judge(&result);
  return result;
}

void JudgeScenario(TrialResult* result) {
  const auto miss = [&](bool is_missed, const char* what) {
    if (is_missed) result->missed.push_back(what);
  };
  const Traffic& traffic = result->traffic;
  miss(result->died, "the process ended");
  miss(result->lost, "an honest stream was ended");
  miss(result->memory_peak > result->memory_before + kMostScenarioGrowth, "memory");
  miss(result->memory_after > result->memory_before + kMostKept, "memory kept");
  miss(result->p99 > kMostWait + 2 * result->p99_quiet, "p99");
  miss(result->health_silence > kMostHealth + kProbePeriod + result->health_quiet, "health");
  miss(result->newcomer_silence > kMostGreeting + kNewcomerPeriod, "newcomer");
  miss(traffic.answered > kMostAnswer * traffic.sent + traffic.asked, "answers");
  miss(result->stop > kMostStop, "stop");
}

TrialResult RunScenario(const Scenario& scenario, const TrialOptions& options) {
  const bool has_files = scenario.group == "files";
  const std::string token = "attacked";
  const std::string key = server::TestPath("attack_receipts.key");
  const std::string policies = server::TestPath("attack_policies");
  const server::ClientListFile clients(absl::StrCat("honest sample ", server::Sha256(token)));
  SORTITION_CHECK(service::WriteNewKey(key).ok());
  server::WriteFile(policies, "{\"policies\": []}");
  Attacked attacked;
  attacked.memory = absl::StrCat("unix:", server::TestPath("attack_memory.sock"));
  std::vector<std::string> more = {absl::StrCat("--memory_listen=", attacked.memory),
                                   absl::StrCat("--receipt_key=", key)};
  if (has_files) {
    more.insert(more.end(), {absl::StrCat("--clients=", clients.path()), absl::StrCat("--policies=", policies),
                             "--tls_refresh=1s"});
  }
  TrialResult result;
  {
    Target target(scenario.name, has_files ? Wire::kTls : Wire::kTcp, /*guarded=*/true, more, has_files ? token : "");
    server::ServerProcess& process = target.process();
    attacked.address = target.address();
    attacked.health = target.health();
    attacked.metrics = target.metrics();
    attacked.clients = clients.path();
    attacked.policies = policies;
    attacked.tls_key = target.certificates().server_key_path();
    attacked.tls_certificate = target.certificates().server_certificate_path();

    Answers answers, probes, greetings;
    std::vector<std::unique_ptr<Asker>> honest;
    for (int i = 0; i < kHonestStreams; ++i) {
      honest.push_back(std::make_unique<Asker>(StepsOver(target.ConnectHonest()), kThinkTime, &answers));
    }
    Asker prober(HealthOver(Connect(target.health(), grpc::InsecureChannelCredentials())), kProbePeriod, &probes);
    Asker newcomer(NewcomersOver([&] { return target.ConnectHonest(); }), kNewcomerPeriod, &greetings);
    const auto begin = [&](Phase phase) {
      for (Answers* times : {&answers, &probes, &greetings}) times->Begin(phase);
    };
    absl::SleepFor(kWarmUp);
    begin(Phase::kQuiet);
    absl::SleepFor(options.quiet);
    result.memory_before = ResidentMemory(process.pid());
    begin(Phase::kAttacked);
    std::atomic<bool> stop = false;
    std::atomic<bool> is_over = false;
    attacked.end = absl::Now() + options.length;
    attacked.stop = &stop;
    std::thread attacker([&] {
      result.traffic = scenario.run(attacked);
      is_over = true;
    });
    const auto look = [&](const auto& is_done) {
      while (!is_done() && !stop) {
        result.memory_peak = std::max(result.memory_peak, ResidentMemory(process.pid()));
        if (!IsAlive(process.pid())) stop = true;
        absl::SleepFor(kLook);
      }
    };
    look([&] { return is_over.load(); });
    begin(Phase::kAfter);
    attacker.join();
    const absl::Time after = absl::Now() + options.after;
    look([&] { return absl::Now() >= after; });
    result.sent = {result.traffic.sent, 1};
    result.p99_quiet = answers.Percentile99(Phase::kQuiet);
    result.p99 = answers.Percentile99(Phase::kAttacked);
    result.silence = std::max(answers.LongestSilence(Phase::kAttacked), answers.LongestSilence(Phase::kAfter));
    result.health_quiet = probes.LongestSilence(Phase::kQuiet);
    result.health_silence = probes.LongestSilence(Phase::kAttacked);
    result.newcomer_silence = greetings.LongestSilence(Phase::kAttacked);
    for (const auto& asker : honest) result.lost |= asker->failed();
    result.memory_after = ResidentMemory(process.pid());
    result.died = !IsAlive(process.pid());
    if (!result.died) {
      const absl::Time asked = absl::Now();
      process.Signal(SIGTERM);
      honest.clear();
      prober.Stop();
      newcomer.Stop();
      result.died = process.Wait() != 0;
      result.stop = absl::Now() - asked;
    }
  }
  std::filesystem::remove(key);
  std::filesystem::remove(policies);
  JudgeScenario(&result);
  return result;
}

}  // namespace sortition::attacks
