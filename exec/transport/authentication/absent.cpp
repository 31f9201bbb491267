// Without libcrypto: the same header, and authenticators that prove nothing.
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "core/errors.h"
#include "exec/transport/authentication/authentication.h"

namespace exec::transport {

bool can_authenticate() { return false; }

Nonce random_nonce() {
    Nonce nonce;
    if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
        throw core::MachineError(std::string("getrandom: ") + std::strerror(errno));
    return nonce;
}

Authenticator authenticate(std::span<const std::byte>, std::span<const std::byte>) { return {}; }

bool are_equal(const Authenticator& a, const Authenticator& b) { return a == b; }

}  // namespace exec::transport
