// A small HTTP server of read-only pages.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct MHD_Daemon;

namespace sortition::monitoring {

struct HttpAnswer {
  std::string body;
  bool available = true;  // true: answered with 200; false: with 503
};

struct HttpPage {
  std::string content_type;
  // Called by the server's thread for each request; must not block for long.
  std::function<HttpAnswer()> answer;
};

// Serves from construction to destruction, which waits only for the request that is being answered. Has one thread and
// at most 16 connections. Closes a connection after 15 idle seconds. A request's head has at most 16 KB.
class HttpServer {
 public:
  // `address` is IPV4:PORT or [IPV6]:PORT; port 0 = any free port. `pages` are by path. Another path is answered with
  // 404, a method other than GET and HEAD with 405. The error names the address that could not be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           std::map<std::string, HttpPage, std::less<>> pages);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The bound address with its port.
  const std::string& address() const { return address_; }

 private:
  struct Handler;
  explicit HttpServer(std::map<std::string, HttpPage, std::less<>> pages) : pages_(std::move(pages)) {}

  const std::map<std::string, HttpPage, std::less<>> pages_;
  std::string address_;
  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace sortition::monitoring
