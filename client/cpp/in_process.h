// Sampling in this process as a target of a client: streams to local sequences, without sockets and messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "client/cpp/transport.h"

namespace sortition::client {

struct InProcessCore;

// Its streams are there as soon as they start: no hello, no welcome. Each begins without sequences. Rows run on the
// threads of callers in Transport::Poll, and on its own threads.
class InProcessConnector final : public Connector {
 public:
  // Rows run on at most `threads` threads at once; 0 = one for each hardware thread. `worker_session` is that of the
  // client, for checkpoints.
  InProcessConnector(uint32_t threads, std::string worker_session);
  // Blocks until every stream has ended.
  ~InProcessConnector() override;

  std::shared_ptr<Transport> Start(size_t target, uint64_t stream, StreamEvents* events) override;

 private:
  const std::shared_ptr<InProcessCore> core_;
};

}  // namespace sortition::client
