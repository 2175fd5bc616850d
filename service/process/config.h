// The server's settings: one plain struct, validated by one function. Flags and the environment fill it (flags.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/limits.h"
#include "service/log/log.h"
#include "service/route/route_policy.h"

namespace sortition::server {

using Texts = std::vector<std::string>;
using service::RoutePolicy;

// The largest number of bytes that is taken, where nothing else bounds it.
inline constexpr uint64_t kTera = uint64_t{1} << 40;
// gRPC counts message sizes in int, and its bound is set to twice ours.
inline constexpr uint64_t kMostMessageBytes = (uint64_t{1} << 30) - 1;

// The settings of limits.inc, which has their meaning. Plain text beyond this machine is never a default, because
// logits reveal what users write.
struct Config {
#define SETTING(type, name, initial, text) type name = initial;
#define NUMBER(type, name, initial, least, most, text) type name = initial;
#include "service/limits.inc"

  service::Limits limits;

  bool uses_tls() const { return !tls_certificate.empty(); }
};

// Returns INVALID_ARGUMENT that names a flag and its range, or two flags that contradict each other.
absl::Status Validate(const Config& config);

}  // namespace sortition::server
