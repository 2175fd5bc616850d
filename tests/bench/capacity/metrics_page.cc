// A plain HTTP GET and a search in its text.
#include "tests/bench/capacity/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

namespace sortition::bench {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

std::string Get(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(port);
  SORTITION_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  SORTITION_CHECK(write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size()));
  std::string response;
  char buffer[4096];
  ssize_t length;
  while ((length = read(fd, buffer, sizeof(buffer))) > 0) response.append(buffer, static_cast<size_t>(length));
  close(fd);
  return response;
}

}  // namespace

uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  SORTITION_CHECK(bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0);
  SORTITION_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

double ReadMetric(uint16_t port, const std::string& name) {
  const std::string page = Get(port);
  double sum = 0;
  bool found = false;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, name) || (line[name.size()] != ' ' && line[name.size()] != '{')) continue;
    sum += std::strtod(line.data() + line.rfind(' '), nullptr);
    found = true;
  }
  SORTITION_CHECK(found);
  return sum;
}

}  // namespace sortition::bench
