// Real servers and programs for end-to-end tests: on loopback, ended by their ids, logs in the test's folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/process/child_process.h"
#include "client/process/server_process.h"
#include "sortition/client.h"

namespace sortition::testing {

// Longest time that a server may take for anything.
inline constexpr absl::Duration kLongestWait = absl::Seconds(60);

// Starts a sortitiond; the test fails if it does not serve. `port` 0 = any free one.
std::unique_ptr<process::ServerProcess> StartServer(const std::vector<std::string>& flags = {}, int port = 0);

struct Ended {
  int code = 0;
  std::string output;  // stdout and stderr
};

// Starts a program, whose output is read by OutputOf. `part` tells apart programs that one test runs at once.
std::unique_ptr<process::ChildProcess> StartProgram(const std::string& program,
                                                    const std::vector<std::string>& arguments,
                                                    const std::string& part = "");
std::string OutputOf(const std::string& part = "");

// Runs a program to its end; the test fails if it takes longer than kLongestWait.
Ended RunProgram(const std::string& program, const std::vector<std::string>& arguments, const std::string& part = "");

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& bytes);

// A port of loopback on which nothing listens.
int UnusedPort();

// Options with short waits, so that tests are quick.
client::ClientOptions QuickOptions(std::vector<std::string> targets);

// Connects; the test fails if it cannot.
std::unique_ptr<client::Client> Connect(client::ClientOptions options);

}  // namespace sortition::testing
