// Parsing and printing of listen addresses.
#include "service/server/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"

namespace sortition::server {
namespace {

absl::Status Expected(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(text),
                   "\" is no address: expected IPV4:PORT, [IPV6]:PORT or unix:PATH, with a numeric address"));
}

}  // namespace

absl::StatusOr<ListenAddress> ListenAddress::Parse(std::string_view text) {
  // The system would take the text for ended there.
  if (text.find('\0') != text.npos) return absl::InvalidArgumentError("an address has no byte 0");
  ListenAddress result;
  absl::string_view rest(text.data(), text.size());
  if (absl::ConsumePrefix(&rest, "unix:")) {
    auto* local = reinterpret_cast<sockaddr_un*>(&result.storage_);
    if (rest.empty() || rest.size() >= sizeof(local->sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", std::string(text), "\": the path of a Unix socket has 1 to ",
                                                     sizeof(local->sun_path) - 1, " bytes"));
    }
    local->sun_family = AF_UNIX;
    std::memcpy(local->sun_path, rest.data(), rest.size());
    result.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + rest.size() + 1);
    return result;
  }

  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port > 65535) {
    return Expected(text);
  }
  std::string host(rest.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    auto* six = reinterpret_cast<sockaddr_in6*>(&result.storage_);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    result.size_ = sizeof(*six);
    if (inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) != 1) return Expected(text);
    return result;
  }
  auto* four = reinterpret_cast<sockaddr_in*>(&result.storage_);
  four->sin_family = AF_INET;
  four->sin_port = htons(static_cast<uint16_t>(port));
  result.size_ = sizeof(*four);
  if (inet_pton(AF_INET, host.c_str(), &four->sin_addr) != 1) return Expected(text);
  return result;
}

bool ListenAddress::is_local() const {
  if (is_unix()) return true;
  if (storage_.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

uint16_t ListenAddress::port() const {
  SORTITION_CHECK(!is_unix());
  // The port lies at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string ListenAddress::unix_path() const {
  SORTITION_CHECK(is_unix());
  return reinterpret_cast<const sockaddr_un*>(&storage_)->sun_path;
}

std::string ListenAddress::ToString() const {
  char text[INET6_ADDRSTRLEN];
  switch (storage_.ss_family) {
    case AF_UNIX:
      return absl::StrCat("unix:", unix_path());
    case AF_INET6:
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text, sizeof(text));
      return absl::StrCat("[", text, "]:", port());
    default:
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text, sizeof(text));
      return absl::StrCat(text, ":", port());
  }
}

ListenAddress ListenAddress::OfSocket(int fd) {
  ListenAddress result;
  result.size_ = sizeof(result.storage_);
  SORTITION_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&result.storage_), &result.size_) == 0);
  return result;
}

}  // namespace sortition::server
