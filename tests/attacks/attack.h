// Attacks on HTTP/2 before authorisation: the bytes of each, and the connection that sends them.
#pragma once

#include <openssl/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace sortition::attacks {

// The bytes of one connection. Not thread-safe.
class AttackBytes {
 public:
  virtual ~AttackBytes() = default;
  // Returns the first bytes of a connection.
  virtual std::string Start() = 0;
  // Returns the next bytes: some 100 KB or less.
  virtual std::string Next() = 0;
  // A pause after each piece.
  virtual absl::Duration pause() const { return absl::ZeroDuration(); }
};

struct Attack {
  std::string_view name;
  std::string_view what;
  std::unique_ptr<AttackBytes> (*make)();
};

// Returns all attacks.
std::span<const Attack> Attacks();

enum class Wire : uint8_t { kTcp, kTls, kUnix, kHealth };
inline constexpr Wire kWires[] = {Wire::kTcp, Wire::kTls, Wire::kUnix, Wire::kHealth};
std::string_view WireName(Wire wire);

struct AttackCount {
  uint64_t bytes = 0;
  uint32_t connections = 0;
};

// Sends the attack to `address`, "HOST:PORT" or "unix:PATH", until `end` or until `stop`. Connects again, after a
// pause of 10 ms, whenever the server has ended the connection. Blocks. Call it from a thread that does nothing else:
// with `idle` the thread takes only processor time that no other thread wants, as an attacker on another machine would.
AttackCount Send(const Attack& attack, const std::string& address, bool tls, absl::Time end,
                 const std::atomic<bool>& stop, bool idle);

}  // namespace sortition::attacks
