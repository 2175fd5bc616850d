// Pages over libmicrohttpd.
#include "monitoring/http_server.h"

#include <microhttpd.h>
#include <unistd.h>

#include <cstdarg>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/net/listen_socket.h"

namespace sortition::monitoring {
namespace {

constexpr unsigned kMostConnections = 16;
constexpr unsigned kIdleSeconds = 15;
constexpr size_t kConnectionBytes = 16 << 10;

// Lets a browser load nothing that is not in the page itself.
constexpr char kContentPolicy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

using Response = std::unique_ptr<MHD_Response, decltype(&MHD_destroy_response)>;

Response MakeResponse(std::string body, const std::string& content_type) {
  MHD_Response* const made = MHD_create_response_from_buffer(body.size(), body.data(), MHD_RESPMEM_MUST_COPY);
  SORTITION_CHECK(made != nullptr);
  Response response(made, &MHD_destroy_response);
  const std::pair<const char*, const char*> headers[] = {{MHD_HTTP_HEADER_CONTENT_TYPE, content_type.c_str()},
                                                         {MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
                                                         {"X-Content-Type-Options", "nosniff"},
                                                         {"Content-Security-Policy", kContentPolicy}};
  for (const auto& [name, value] : headers) {
    SORTITION_CHECK(MHD_add_response_header(response.get(), name, value) == MHD_YES);
  }
  return response;
}

// Drops the library's messages: a client's mistakes are answered and need no log.
void DropLog(void*, const char*, va_list) {}

}  // namespace

struct HttpServer::Handler {
  static MHD_Result Answer(void* self, MHD_Connection* connection, const char* url, const char* method, const char*,
                           const char*, size_t* upload_bytes, void** request) {
    const auto& pages = static_cast<const HttpServer*>(self)->pages_;
    // The first call of a request comes before its body and the last one after it; the body is ignored.
    const bool first = std::exchange(*request, self) == nullptr;
    if (first || std::exchange(*upload_bytes, 0) != 0) return MHD_YES;
    const bool reads =
        std::string_view(method) == MHD_HTTP_METHOD_GET || std::string_view(method) == MHD_HTTP_METHOD_HEAD;
    const auto page = pages.find(std::string_view(url));
    unsigned status = MHD_HTTP_OK;
    Response response(nullptr, &MHD_destroy_response);
    if (!reads) {
      status = MHD_HTTP_METHOD_NOT_ALLOWED;
      response = MakeResponse("only GET and HEAD are served here\n", "text/plain");
      SORTITION_CHECK(MHD_add_response_header(response.get(), MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES);
    } else if (page == pages.end()) {
      status = MHD_HTTP_NOT_FOUND;
      response = MakeResponse("there is no such page\n", "text/plain");
    } else {
      HttpAnswer answer = page->second.answer();
      if (!answer.available) status = MHD_HTTP_SERVICE_UNAVAILABLE;
      response = MakeResponse(std::move(answer.body), page->second.content_type);
    }
    return MHD_queue_response(connection, status, response.get());
  }
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              std::map<std::string, HttpPage, std::less<>> pages) {
  const auto parsed = server::ListenAddress::Parse(address);
  if (!parsed.ok()) return parsed.status();
  const auto socket = server::ListenSocket::Bind(*parsed);
  if (!socket.ok()) return socket.status();
  const int fd = dup((*socket)->fd());  // a copy, because the daemon closes its descriptor
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": no descriptor is left"));

  std::unique_ptr<HttpServer> server(new HttpServer(std::move(pages)));
  server->address_ = (*socket)->address().ToString();
  // Without MHD_USE_ITC the stop waits for kIdleSeconds while kMostConnections are open.
  // The first option must be the logger, or the daemon's first messages go to standard error.
  server->daemon_ = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, nullptr,
                                     nullptr, &Handler::Answer, server.get(), MHD_OPTION_EXTERNAL_LOGGER, &DropLog,
                                     nullptr, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                     kMostConnections, MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds,
                                     MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes, MHD_OPTION_END);
  if (server->daemon_ == nullptr) {
    close(fd);
    return absl::UnavailableError(absl::StrCat("cannot serve HTTP on ", address));
  }
  return server;
}

HttpServer::~HttpServer() {
  if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
}

}  // namespace sortition::monitoring
