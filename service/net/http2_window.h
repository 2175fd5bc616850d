// The window of HTTP/2 connections: how much a client may send before the server has read it.
#pragma once

#include <cstdint>

#include "grpcpp/server_builder.h"

namespace sortition::server {

// Gives each stream and each connection of the server a window of `bytes`, instead of gRPC's estimate, which may reach
// 32 MB. A message whose reading has begun may exceed it.
//
// gRPC before 1.74 uses the size for streams only and leaves the connection 64 KB, so a client waits for the server
// within each row of 128,256 bf16, and again after each message. There its estimates are replaced by `bytes`, for all
// connections of the process, through the hook that its own tests have. A connection then gets its window after its
// first message. After messages gRPC pings the client, as it does for its estimates.
void SetHttp2Window(uint32_t bytes, grpc::ServerBuilder* builder);

}  // namespace sortition::server
