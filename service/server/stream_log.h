// What the log says of one sampling stream: its worker's hello, and its end.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "service/server/log.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::server {

// Not thread-safe.
class StreamLog {
 public:
  // `log` is not owned and outlives this. `peer`: where the client is, as its transport names it.
  StreamLog(Log* log, std::string peer, std::string tenant);

  // Writes the first hello whose names are not longer than the session takes.
  void Opened(const v1::Hello& hello);
  // The client has read nothing for too long.
  void Stalled() const;
  // `ended`: how, as metrics count it.
  void Closed(std::string_view ended, absl::Duration open) const;

 private:
  Log& log_;
  const std::string peer_;
  const std::string tenant_;
  std::string worker_session_;
};

}  // namespace sortition::server
