// A plain HTTP GET and a search in its text.
#include "client/bench/metrics_page.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sortition::bench {

absl::StatusOr<std::string> ReadMetricsPage(const std::string& address, absl::Duration timeout) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat(address, " is no HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const auto failed = [&](absl::string_view what) {
    return absl::UnavailableError(absl::StrCat("http://", address, "/metrics: ", what));
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); error != 0) {
    return failed(gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  const timeval wait = absl::ToTimeval(timeout);
  int fd = -1;
  for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
    fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
      close(fd);
      fd = -1;
    }
  }
  if (fd < 0) return failed("no connection");
  const absl::Cleanup closing = [fd] { close(fd); };
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return failed("no answer");
  }
  std::string response;
  char buffer[4096];
  ssize_t length;
  while ((length = read(fd, buffer, sizeof(buffer))) > 0) response.append(buffer, static_cast<size_t>(length));
  const size_t body = response.find("\r\n\r\n");
  if (length != 0 || body == std::string::npos) return failed("no answer");
  return response.substr(body + 4);
}

absl::StatusOr<double> FindMetric(absl::string_view page, absl::string_view name) {
  double sum = 0;
  bool found = false;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, name) || line.size() == name.size()) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    double value;
    if (!absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) continue;
    sum += value;
    found = true;
  }
  if (!found) return absl::NotFoundError(absl::StrCat("the page of metrics has no ", name));
  return sum;
}

std::map<std::string, double> MetricsBy(absl::string_view page, absl::string_view name, absl::string_view label) {
  const std::string before = absl::StrCat(name, "{", label, "=\"");
  std::map<std::string, double> values;
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::ConsumePrefix(&line, before)) continue;
    const size_t end = line.find("\"} ");
    double value;
    if (end == absl::string_view::npos || !absl::SimpleAtod(line.substr(end + 3), &value)) continue;
    values[std::string(line.substr(0, end))] = value;
  }
  return values;
}

}  // namespace sortition::bench
