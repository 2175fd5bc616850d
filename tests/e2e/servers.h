// Real servers for end-to-end tests: on loopback, ended by their ids, logs beside the test's other output.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/demo/worker/server_process.h"
#include "sortition/client.h"

namespace sortition::testing {

// Longest time that a server may take for anything.
inline constexpr absl::Duration kLongestWait = absl::Seconds(60);

// Starts a sortitiond; the test fails if it does not serve. `port` 0 = any free one.
std::unique_ptr<demo::ServerProcess> StartServer(const std::vector<std::string>& flags = {}, int port = 0);

// A port of loopback on which nothing listens.
int UnusedPort();

// Options with short waits, so that tests are quick.
client::ClientOptions QuickOptions(std::vector<std::string> targets);

// Connects; the test fails if it cannot.
std::unique_ptr<client::Client> Connect(client::ClientOptions options);

}  // namespace sortition::testing
