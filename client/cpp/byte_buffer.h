// An outgoing message as gRPC takes it, without a copy.
#pragma once

#include "client/cpp/transport.h"
#include "grpcpp/support/byte_buffer.h"

namespace sortition::client {

// Slices that refer to the caller's memory; the message's hold ends with the last of them.
grpc::ByteBuffer ToByteBuffer(OutgoingMessage message);

}  // namespace sortition::client
