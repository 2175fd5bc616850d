// Addresses, routes and device lists as operators write them: each is printed as it was parsed, or refused.
#include "service/process/config.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "service/net/listen_socket.h"
#include "service/route/route_policy.h"
#include "tests/fuzz/fuzz_target.h"

namespace sortition::fuzz {
namespace {

void CheckAddress(const std::string& text) {
  const auto address = server::ListenAddress::Parse(text);
  if (!address.ok()) {
    if (address.status().message().empty()) Fail("refused without a word");
    return;
  }
  std::string written = address->ToString();
  // Planted defect: an address is printed with another port.
  if (planted && !address->is_unix() && address->port() == 80) written.back() = '1';
  const auto again = server::ListenAddress::Parse(written);
  if (!again.ok() || again->ToString() != address->ToString()) Fail(absl::StrCat(text, " comes back as ", written));
  if (address->is_unix() && address->unix_path().empty()) Fail("no path: " + text);
}

void CheckRoute(const std::string& text) {
  const auto route = service::RoutePolicy::Parse(text);
  if (!route.ok()) return;
  const std::string written = service::AbslUnparseFlag(*route);
  if (written != text) Fail(absl::StrCat("route ", text, " comes back as ", written));
}

}  // namespace

void Run(Bytes bytes) {
  Input input(bytes);
  const uint32_t kind = input.Below(3);
  const Bytes rest = input.Rest();
  const std::string text(rest.begin(), rest.end());
  if (kind == 0) return CheckAddress(text);
  if (kind == 1) return CheckRoute(text);
  server::Config config;
  config.listen = {text};
  config.metrics_listen = text;
  config.route.pinned = text;
  config.limits.max_vocabulary = input.Word();
  const absl::Status status = server::Validate(config);
  if (!status.ok() && status.message().empty()) Fail("refused without a word");
}

}  // namespace sortition::fuzz
