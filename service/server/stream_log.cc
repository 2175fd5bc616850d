// Lines of one stream.
#include "service/server/stream_log.h"

#include <utility>

#include "service/limits.h"

namespace sortition::server {

StreamLog::StreamLog(Log* log, std::string peer, std::string tenant)
    : log_(*log), peer_(std::move(peer)), tenant_(std::move(tenant)) {}

void StreamLog::Opened(const v1::Hello& hello) {
  // The session refuses longer names and a second hello; the log must not carry them either.
  if (!worker_session_.empty() || hello.worker_session().size() > service::kMaxNameBytes ||
      hello.client().size() > service::kMaxNameBytes) {
    return;
  }
  worker_session_ = hello.worker_session();
  log_.Write(LogLevel::kInfo, "stream_open",
             {{"peer", peer_}, {"tenant", tenant_}, {"worker_session", worker_session_}, {"client", hello.client()}});
}

void StreamLog::Stalled() const {
  log_.Write(LogLevel::kWarning, "stream_stalled",
             {{"peer", peer_}, {"tenant", tenant_}, {"worker_session", worker_session_}});
}

void StreamLog::Closed(std::string_view ended, absl::Duration open) const {
  log_.Write(LogLevel::kInfo, "stream_close",
             {{"peer", peer_},
              {"tenant", tenant_},
              {"worker_session", worker_session_},
              {"ended", ended},
              {"seconds", absl::ToDoubleSeconds(open)}});
}

}  // namespace sortition::server
