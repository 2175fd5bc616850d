// Attacks past HTTP/2: messages of an authorised worker, calls and connections that hold places, and followed files.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sortition::attacks {

struct Traffic {
  uint64_t sent = 0;         // bytes of requests
  uint64_t answered = 0;     // bytes of answers
  uint64_t asked = 0;        // bytes of the answers that the requests ask for: rows, distributions, receipts
  std::string refusal = {};  // the first one
};

// A server that is attacked, and for how long.
struct Attacked {
  absl::Time end = absl::InfiniteFuture();
  const std::atomic<bool>* stop = nullptr;
  bool GoesOn() const { return !*stop && absl::Now() < end; }

  std::string address;  // HOST:PORT
  std::string health;
  std::string metrics;
  std::string memory;  // unix:PATH
  // The files that it follows; empty if it follows none.
  std::string clients;
  std::string policies;
  std::string tls_key;
  std::string tls_certificate;
};

// Gives the thread that calls it the processor time that no other thread wants, as if it were on another machine.
void YieldToOthers();

struct Scenario {
  std::string_view group;  // worker, slots or files
  std::string_view name;
  std::string_view what;
  // Attacks until GoesOn() is false, or ends earlier. Blocks.
  std::function<Traffic(const Attacked& attacked)> run;
};

std::span<const Scenario> WorkerScenarios();
std::span<const Scenario> SlotScenarios();
std::span<const Scenario> FileScenarios();

}  // namespace sortition::attacks
