// What planning a run learns: a step performed on a machine that does nothing tells what memory it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exec/cuda/arena.h"
#include "schedule/program/program.h"

namespace exec::cuda {

// Lists of parameter ranges that one launch goes through.
enum class TableUse : std::uint8_t { update, norm, check, update_norm };
using TableKey = std::pair<std::int32_t, TableUse>;  // bucket (-1: all of them) and use
struct TableSize {
    std::size_t ranges = 0;
    std::int64_t chunks = 0;
};

// Bytes that activations take outside the device's memory.
struct OffloadSize {
    std::size_t most = 0;     // at a time, on the host or on disk
    std::size_t largest = 0;  // array
};

struct RunPlan {
    ArenaPlan arena;
    MessagePlan messages;
    std::vector<std::uint32_t> host_waits;  // instructions in which the host waits for the device
    OffloadSize offload;
    std::size_t fetched = 0;  // most numbers that the host asks the device for at a time
    std::map<std::pair<schedule::Stream, int>, std::size_t> scratch;  // bytes by stream and slot
    // Bytes that stay from forward to backward outside the arena, by operator and micro-batch.
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> kept;
    std::vector<std::size_t> staging;  // bytes of each array of data that a step reads, in order
    std::map<TableKey, TableSize> tables;
    std::size_t library_workspace = 0;
    std::vector<std::string> remarks;  // on measured choices
};

}  // namespace exec::cuda
