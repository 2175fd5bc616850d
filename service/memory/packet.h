// Packets of Unix sockets of type SOCK_SEQPACKET, with a descriptor along (SCM_RIGHTS); and who is at the other end.
#pragma once

#include <sys/types.h>

#include <span>
#include <string_view>

#include "service/memory/descriptor.h"

namespace sortition::service {

// Sends a packet, with `descriptor` unless that is -1; it stays its owner's. False, with errno, if not all of it is
// taken. `flags` as send's; a lost reader raises no signal.
bool SendPacket(int socket, std::string_view packet, int descriptor, int flags);

// Receives a packet; as recv, but the size is the packet's, which may be more than the span's. A descriptor that came
// along goes to `*descriptor`, if that is not null; of several, none, and all are closed.
ssize_t ReceivePacket(int socket, std::span<char> packet, Descriptor* descriptor, int flags);

// The user of the process at the other end of a Unix socket of any type, as the kernel noted it when that process
// connected, or began to listen.
uid_t UserOfPeer(int socket);

}  // namespace sortition::service
