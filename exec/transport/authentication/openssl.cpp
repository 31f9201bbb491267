#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/transport/authentication/authentication.h"

namespace exec::transport {

bool can_authenticate() { return true; }

Nonce random_nonce() {
    Nonce nonce;
    if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), core::count_of(nonce)) != 1)
        throw core::MachineError("RAND_bytes: no random numbers from this machine");
    return nonce;
}

Authenticator authenticate(std::span<const std::byte> key, std::span<const std::byte> message) {
    Authenticator result;
    unsigned int length = 0;
    if (!HMAC(EVP_sha256(), key.data(), core::count_of(key),
              reinterpret_cast<const unsigned char*>(message.data()), message.size(),
              reinterpret_cast<unsigned char*>(result.data()), &length) ||
        length != result.size())
        throw core::MachineError("HMAC: libcrypto has no SHA-256");
    return result;
}

bool are_equal(const Authenticator& a, const Authenticator& b) {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace exec::transport
