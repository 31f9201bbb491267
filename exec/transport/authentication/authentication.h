// What proves that a message is of this job: HMAC-SHA256 (RFC 2104, FIPS 198-1) under the job's token, and
// numbers nobody can guess. OpenSSL's libcrypto stays in openssl.cpp; a build without it has absent.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace exec::transport {

using Nonce = std::array<std::byte, 32>;
using Authenticator = std::array<std::byte, 32>;

// False in a build without libcrypto: then authenticators are all zero and prove nothing.
bool can_authenticate();

// From the operating system's generator. Throws core::MachineError.
Nonce random_nonce();

Authenticator authenticate(std::span<const std::byte> key, std::span<const std::byte> message);

// In a time that does not tell where they differ.
bool are_equal(const Authenticator& a, const Authenticator& b);

}  // namespace exec::transport
