// Where a rank listens: at the one address that the others need, not wherever the machine can be reached.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "exec/transport/tcp/stream.h"

namespace exec::transport {

// An address of this host; none: all of them.
using ListeningAddress = std::optional<SocketAddress>;

// "eth0", "10.0.0.5" or "all". A diagnostic where this host has no such interface or address.
ListeningAddress address_of_interface(const std::string& interface, core::Diagnostics& diagnostics);

// The address at which this host's rank is reached under that name (MASTER_ADDR): itself when it is a
// number, 127.0.0.1 for localhost, else the one that the name has here. All, where the name is not known here
// or means this host to itself alone (Debian's 127.0.1.1), as other hosts know it by another address.
ListeningAddress own_address(const std::string& name);

// Port 0: any. Throws core::MachineError.
Socket listen_at(const ListeningAddress& address, int port);
int port_of(const Socket& socket);

}  // namespace exec::transport
