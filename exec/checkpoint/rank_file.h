// What one rank writes into a checkpoint: a safetensors file of one array for each parameter and kind of
// state, so that PyTorch reads it too.
//
//   values/layers.0.mlp.up.weight          of the whole parameter's shape where the rank has all of it,
//   first_moments/layers.0.mlp.up.weight   else the rank's elements one after another
//   second_moments/layers.0.mlp.up.weight
//
// Metadata say of every array which elements of the unsplit parameter it holds ("elements/NAME": "0+512", or
// "0+64*8/512": 8 times 64 elements, 512 apart) and its XXH64 ("xxh64/NAME").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/checkpoint/safetensors.h"

namespace exec {

enum class StateKind : std::uint32_t { value, first_moment, second_moment };

// Consecutive elements of an unsplit parameter.
struct ElementRange {
    std::int64_t first = 0, count = 0;
    friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// What a rank has of one array.
struct StateRecord {
    std::string parameter;
    StateKind kind = StateKind::value;
    std::vector<std::int64_t> shape;   // of the unsplit parameter
    std::vector<ElementRange> ranges;  // ascending
    std::vector<float> values;         // of all ranges, one after another
};

struct CheckpointFile {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;  // of the header, which has those of the arrays; of an older format's file:
                                 // of everything
};

// A rank's file of a checkpoint, its header read and verified; arrays when they are asked for.
class RankFile {
public:
    struct Array {
        std::string parameter;
        StateKind kind = StateKind::value;
        std::vector<ElementRange> ranges;
    };

    // A file that is missing, truncated or has another header than was written is none; `failure` says why.
    static std::unique_ptr<const RankFile> open(const std::string& folder, const CheckpointFile& file,
                                                std::string& failure);
    virtual ~RankFile() = default;

    const std::vector<Array>& arrays() const { return arrays_; }
    // Whether array `index` is what was written.
    virtual bool verify(std::size_t index, std::string& failure) const = 0;
    // Its elements from `at` on, counted in the array. From any thread.
    virtual bool read(std::size_t index, std::int64_t at, std::span<float> into,
                      std::string& failure) const = 0;

protected:
    std::vector<Array> arrays_;
};

// Throws core::MachineError with path and the system's words.
CheckpointFile write_rank_file(const std::string& folder, int rank, const std::vector<StateRecord>& records);

// "0+64*8/512 8192+3", and back; nothing when the text is no such list or has other than `elements`.
std::string words_of(const std::vector<ElementRange>& ranges);
std::optional<std::vector<ElementRange>> ranges_of(const std::string& words, std::int64_t elements);

}  // namespace exec
