// Packed traces. The bytes were made by Python 3.11's gzip.compress(text, mtime=0).
#include <catch2/catch.hpp>

#include <string>
#include <string_view>

#include "core/diagnostics.h"
#include "validation/measured/gzip/gzip.h"

namespace {

constexpr std::string_view text = R"({"schemaVersion": 1, "traceEvents": []})";
constexpr char packed_bytes[] =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x2a\x4e\xce\x48\xcd\x4d\x0c\x4b"
    "\x2d\x2a\xce\xcc\xcf\x53\xb2\x52\x30\xd4\x51\x50\x2a\x29\x4a\x4c\x4e\x75\x2d\x4b"
    "\xcd\x2b\x29\x06\x8a\x44\xc7\xd6\x02\x00\xca\x9b\x02\x3e\x27\x00\x00\x00";
const std::string packed(packed_bytes, sizeof packed_bytes - 1);
constexpr std::size_t plenty = 1 << 20;

std::optional<std::string> unpack(const std::string& bytes, std::string& errors, std::size_t most = plenty) {
    core::Diagnostics diagnostics;
    auto result = validation::unpacked(bytes, "trace.json.gz", diagnostics, most);
    errors = core::format(diagnostics);
    CHECK(result.has_value() == errors.empty());
    return result;
}

}  // namespace

TEST_CASE("a gzip file is known by its first bytes") {
    CHECK(validation::is_gzip(packed));
    CHECK_FALSE(validation::is_gzip(text));
    CHECK_FALSE(validation::is_gzip(""));
}

#ifdef HAS_ZLIB

TEST_CASE("packed text comes back, of several members one after the other") {
    std::string errors;
    CHECK(unpack(packed, errors) == text);
    CHECK(unpack(packed + packed, errors) == std::string(text) + std::string(text));
}

TEST_CASE("a packed trace that ends early is refused with the byte, wherever it ends") {
    std::string errors;
    for (std::size_t size = 2; size < packed.size(); ++size) {
        INFO(size);
        CHECK_FALSE(unpack(packed.substr(0, size), errors));
        CHECK(errors.find("trace.json.gz") != std::string::npos);
        CHECK(errors.find("at byte " + std::to_string(size) + " of " + std::to_string(size)) !=
              std::string::npos);
    }
}

TEST_CASE("no flipped bit of a packed trace gives another text") {
    std::string errors;
    int refused = 0;
    for (std::size_t i = 0; i < packed.size(); ++i)
        for (int bit = 0; bit < 8; ++bit) {
            std::string damaged = packed;
            damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
            if (const auto result = unpack(damaged, errors)) CHECK(*result == text);
            else ++refused;
        }
    // Time, extra flags and operating system (six bytes), the flag for texts and what fills the last byte of
    // the packed text are no part of it.
    CHECK(refused >= 8 * static_cast<int>(packed.size() - 7));
}

TEST_CASE("other bytes behind the packed text, and more text than allowed, are refused") {
    std::string errors;
    CHECK_FALSE(unpack(packed + "rest", errors));
    CHECK(errors.find("at byte " + std::to_string(packed.size())) != std::string::npos);
    CHECK_FALSE(unpack(packed, errors, text.size() - 1));
    CHECK(errors.find("more than") != std::string::npos);
    CHECK(unpack(packed, errors, text.size()) == text);
}

#else

TEST_CASE("without zlib a packed trace is refused with what to install") {
    std::string errors;
    CHECK_FALSE(unpack(packed, errors));
    CHECK(errors.find("zlib1g-dev") != std::string::npos);
}

#endif
