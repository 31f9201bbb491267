#include "partition/graph_hash.h"

#include <bit>

#include <fmt/core.h>

#include "core/random.h"

namespace partition {

void GraphHash::add(std::uint64_t value) { state_ = core::mix64(state_ ^ value); }

void GraphHash::add_number(double value) { add(std::bit_cast<std::uint64_t>(value)); }

void GraphHash::add_letters(std::string_view text) {
    for (char letter : text) add(static_cast<unsigned char>(letter));
}

std::string GraphHash::text() const { return fmt::format("{:016x}", state_); }

}  // namespace partition
