// Packets of Unix sockets of type SOCK_SEQPACKET that can carry a file descriptor (SCM_RIGHTS), and the peer's user.
#pragma once

#include <sys/types.h>

#include <span>
#include <string_view>

#include "service/memory/descriptor.h"

namespace sortition::service {

// Sends a packet, with `descriptor` unless it is -1; the caller keeps ownership. Returns false, with errno, if not all
// of it is taken. `flags` as for send(); a lost reader raises no signal.
bool SendPacket(int socket, std::string_view packet, int descriptor, int flags);

// Receives a packet as recv() does, but returns the packet's size, which may exceed the span's. Puts a descriptor that
// came with it into `*descriptor`, if that is not null. If several came, closes all of them.
ssize_t ReceivePacket(int socket, std::span<char> packet, Descriptor* descriptor, int flags);

// Returns the user of the process at the other end of a Unix socket of any type, as the kernel noted it at connect() or
// listen().
uid_t UserOfPeer(int socket);

}  // namespace sortition::service
