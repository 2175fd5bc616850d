// Settings: refusals, and the order of sources.
#include "service/process/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "service/process/flags.h"

namespace sortition::server::config_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct BadConfig {
  const char* flag;  // that the error must begin with
  const char* why;   // that it must contain
  std::function<void(Config&)> change;
};

TEST(ConfigTest, DefaultsAreValid) { EXPECT_TRUE(Validate(Config()).ok()) << Validate(Config()); }

TEST(ConfigTest, ErrorsNameTheFlagAndTheRange) {
  const std::vector<BadConfig> bad = {
      {"listen", "at least one", [](Config& c) { c.listen.clear(); }},
      {"listen", "numeric address", [](Config& c) { c.listen = {"localhost:1"}; }},
      {"listen", "--insecure",
       [](Config& c) {
         c.listen = {"127.0.0.1:1", "0.0.0.0:1"};
       }},
      {"listen", "--tls_certificate", [](Config& c) { c.listen = {"[::]:1"}; }},
      {"metrics_listen", "numeric address", [](Config& c) { c.metrics_listen = "everywhere"; }},
      {"metrics_listen", "TCP", [](Config& c) { c.metrics_listen = "unix:/x"; }},
      {"health_listen", "TCP", [](Config& c) { c.health_listen = "unix:/health"; }},
      {"memory_listen", "Unix socket", [](Config& c) { c.memory_listen = "127.0.0.1:1"; }},
      {"memory_listen", "1 to 107 bytes", [](Config& c) { c.memory_listen = "unix:"; }},
      {"max_memory_bytes", "--connection_memory_bytes", [](Config& c) { c.limits.max_memory_bytes = 1 << 20; }},
      {"connection_device_bytes", "--memory_listen", [](Config& c) { c.limits.connection_device_bytes = 1 << 20; }},
      {"port_file", "TCP",
       [](Config& c) {
         c.port_file = "port.txt";
         c.listen = {"unix:/x"};
       }},
      {"tls_key", "together", [](Config& c) { c.tls_certificate = "server.pem"; }},
      {"tls_certificate", "together", [](Config& c) { c.tls_key = "server.key"; }},
      {"tls_client_ca", "--tls_certificate", [](Config& c) { c.tls_client_ca = "clients.pem"; }},
      {"recheck_share", "0..1", [](Config& c) { c.recheck_share = -0.1; }},
      {"drain_grace", "0..24h", [](Config& c) { c.drain_grace = absl::InfiniteDuration(); }},
      {"max_message_bytes", "1024..1073741823", [](Config& c) { c.limits.max_message_bytes = uint64_t{1} << 30; }},
      {"max_vocabulary", "1..1048575", [](Config& c) { c.limits.max_vocabulary = 1u << 20; }},
      {"max_step_positions", "1..32768", [](Config& c) { c.limits.max_step_positions = 32769; }},
      {"max_listed_tokens", "0..131072", [](Config& c) { c.limits.max_listed_tokens = 131073; }},
      {"stalled_write", "100ms..24h", [](Config& c) { c.limits.stalled_write = absl::ZeroDuration(); }},
      {"stream_unanswered_bytes", "--max_message_bytes", [](Config& c) { c.limits.stream_unanswered_bytes = 1 << 20; }},
      {"stream_unanswered_rows", "--max_step_positions", [](Config& c) { c.limits.stream_unanswered_rows = 10; }},
      {"max_queued_rows", "--max_step_positions", [](Config& c) { c.limits.max_queued_rows = 10; }},
      {"max_received_bytes", "--stream_unanswered_bytes", [](Config& c) { c.limits.max_received_bytes = 1 << 20; }},
      {"kept_history", "--max_history", [](Config& c) { c.limits.max_history = 10; }},
  };
  for (const BadConfig& one : bad) {
    Config config;
    one.change(config);
    const absl::Status status = Validate(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.flag << " " << one.why;
    const std::string message(status.message());
    EXPECT_EQ(message.rfind(absl::StrCat("--", one.flag, ": "), 0), 0u) << message;
    EXPECT_THAT(message, HasSubstr(one.why));
  }
}

// Expects values beyond both ends of a setting's range to be refused.
template <typename T, typename Member>
void ExpectRange(const char* flag, T least, T most, Member member) {
  T step = {};
  if constexpr (std::is_same_v<T, absl::Duration>) {
    step = absl::Nanoseconds(1);
  } else {
    step = 1;
  }
  const auto error = [&](T value) {
    Config config;
    member(config) = value;
    return std::string(Validate(config).message());
  };
  const auto refused = AllOf(StartsWith(absl::StrCat("--", flag, ": ")), HasSubstr(" is not in "));
  if (least - step < least) {
    EXPECT_THAT(error(least - step), refused);
  }
  EXPECT_THAT(error(most + step), refused);
}

TEST(ConfigTest, ValuesBeyondEveryRangeAreRefused) {
#define EXPECT_RANGE(type, name, least, most, member) \
  ExpectRange<type>(#name, least, most, [](Config& c) -> type& { return c.member; });
#define NUMBER(type, name, initial, least, most, text) EXPECT_RANGE(type, name, least, most, name)
#define LIMIT(type, name, initial, least, most, unit, text) EXPECT_RANGE(type, name, least, most, limits.name)
#include "service/limits.inc"
#undef EXPECT_RANGE
}

TEST(ConfigTest, BeyondLoopbackNeedsTlsOrConsent) {
  Config config;
  config.listen = {"0.0.0.0:50051"};
  EXPECT_FALSE(Validate(config).ok());
  config.insecure = true;
  EXPECT_TRUE(Validate(config).ok());
  config.insecure = false;
  config.tls_certificate = "server.pem";
  config.tls_key = "server.key";
  EXPECT_TRUE(Validate(config).ok());
}

class FlagsTest : public ::testing::Test {
 protected:
  static absl::StatusOr<Config> Read(std::vector<const char*> environment, std::vector<const char*> arguments = {}) {
    environment.push_back(nullptr);
    arguments.insert(arguments.begin(), "sortitiond");
    arguments.push_back(nullptr);
    return ConfigFromFlags(static_cast<int>(arguments.size()) - 1, const_cast<char**>(arguments.data()),
                           environment.data(), "0");
  }
  static std::string Error(std::vector<const char*> environment, std::vector<const char*> arguments = {}) {
    const auto config = Read(std::move(environment), std::move(arguments));
    return std::string(config.status().message());
  }

  absl::FlagSaver restore_flags_;
};

TEST_F(FlagsTest, EverySettingHasItsDefault) {
  const auto config = Read({"PATH=/bin", "SORTITIO=1", "LISTEN=x"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->listen, Config().listen);
  EXPECT_EQ(config->metrics_listen, Config().metrics_listen);
  EXPECT_EQ(config->drain_grace, Config().drain_grace);
  EXPECT_EQ(config->limits.max_state_bytes, Config().limits.max_state_bytes);
}

TEST_F(FlagsTest, CommandLineOverridesEnvironment) {
  const auto config =
      Read({"SORTITIOND_MAX_STREAMS=7", "SORTITIOND_LISTEN=127.0.0.1:1,unix:/a=b", "SORTITIOND_DRAIN_GRACE=2s"},
           {"--max_streams=9", "--log_level=warning"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->limits.max_streams, 9u);
  EXPECT_EQ(config->listen, (std::vector<std::string>{"127.0.0.1:1", "unix:/a=b"}));
  EXPECT_EQ(config->drain_grace, absl::Seconds(2));
  EXPECT_EQ(config->log_level, LogLevel::kWarning);
}

TEST_F(FlagsTest, UnknownVariablesAreRefusedByName) {
  EXPECT_THAT(Error({"SORTITIOND_MAX_STREAM=7"}), HasSubstr("SORTITIOND_MAX_STREAM: "));
  EXPECT_THAT(Error({"SORTITIOND_=7"}), HasSubstr("SORTITIOND_: "));
  EXPECT_THAT(Error({"SORTITIOND_max_streams=7"}), HasSubstr("SORTITIOND_max_streams: "));
  // Flags of libraries are no settings.
  EXPECT_THAT(Error({"SORTITIOND_FLAGFILE=x"}), HasSubstr("SORTITIOND_FLAGFILE: "));
}

TEST_F(FlagsTest, VariablesOfClientsAreIgnored) {
  // The last three are those that Kubernetes sets where there is a Service named sortition.
  const auto config = Read({"SORTITION_VLLM=unix:/a", "SORTITION_TOKEN=b", "SORTITION_SERVICE_HOST=10.0.0.1",
                            "SORTITION_SERVICE_PORT=50051", "SORTITION_PORT_50051_TCP_PROTO=tcp"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen, Config().listen);
}

TEST_F(FlagsTest, SettingUnderTheClientsPrefixIsRefused) {
  EXPECT_THAT(Error({"SORTITION_MAX_STREAMS=7"}),
              HasSubstr("SORTITION_MAX_STREAMS: the variables of the server begin"));
}

TEST_F(FlagsTest, TuningFlagsStandApart) {
  const auto file = [](const char* name) { return absl::FindCommandLineFlag(name)->Filename(); };
  EXPECT_THAT(file("max_streams"), EndsWith("service/flags.inc"));
  EXPECT_THAT(file("max_listed_tokens"), EndsWith("service/tuning_flags.inc"));
  const auto config = Read({"SORTITIOND_MAX_LISTED_TOKENS=7"}, {"--kept_history=8"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->limits.max_listed_tokens, 7u);
  EXPECT_EQ(config->limits.kept_history, 8u);
}

TEST_F(FlagsTest, BadValuesNameVariableAndFlag) {
  const std::string error = Error({"SORTITIOND_MAX_STREAMS=many"});
  EXPECT_THAT(error, HasSubstr("SORTITIOND_MAX_STREAMS: \"many\""));
  EXPECT_THAT(error, HasSubstr("--max_streams"));
  EXPECT_THAT(Error({"SORTITIOND_LOG_LEVEL=loud"}), HasSubstr("expected debug, info, warning or error"));
}

TEST_F(FlagsTest, PositionalArgumentsAreRefused) { EXPECT_THAT(Error({}, {"serve"}), HasSubstr("serve: not a flag")); }

}  // namespace
}  // namespace sortition::server::config_test
