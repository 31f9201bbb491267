// Texts between ranks, over any Communicator: hashes before the start, records after the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/transport/communicator.h"

namespace exec {

// Tags of the executor's own messages; instructions use none of these (bit 62 is theirs alone).
constexpr Tag control_tag = Tag(1) << 62;

void send_text(Communicator& communicator, int peer, Tag tag, const std::string& text);
std::string receive_text(Communicator& communicator, int peer, Tag tag);

// Every rank calls; rank 0 gets all, by rank, the others nothing.
std::vector<std::string> gather_texts(Communicator& communicator, Tag tag, const std::string& own);
// Every rank calls and gets rank 0's.
std::string broadcast_text(Communicator& communicator, Tag tag, const std::string& of_rank_0);

// All ranks pass together, and each gets the greatest of their words (0 to 2^24): messages of one float to
// and from rank 0. `number` tells one barrier from the next.
int barrier(Communicator& communicator, std::uint64_t number, int word = 0);

}  // namespace exec
