// The safetensors format (github.com/huggingface/safetensors, README.md, "Format"): 8 bytes with the length N
// of the header, N bytes of JSON {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, ...} and
// "__metadata__" of strings, then the arrays, row-major and little-endian, without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/file_descriptor.h"

namespace exec {

class SafetensorsFile {
public:
    struct Tensor {
        std::string type;                    // as the file spells it: "F32", "BF16", "I64", ...
        std::vector<std::int64_t> shape;     // empty: one number
        std::uint64_t begin = 0, bytes = 0;  // in the file

        std::int64_t elements() const;
    };

    // Reads the header alone and checks it: lengths, known types, offsets that cover the file without gaps or
    // overlaps. Nothing, and words about it in `failure`, when there is no such file or it is damaged.
    static std::optional<SafetensorsFile> open(const std::string& path, std::string& failure);

    const std::map<std::string, Tensor>& tensors() const { return tensors_; }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    std::uint64_t bytes() const { return bytes_; }                      // of the whole file
    std::uint64_t header_checksum() const { return header_checksum_; }  // XXH64 of length and JSON

    // Elements [first, first + into.size()) of a tensor of F64, F32, F16 or BF16. False, and words, when they
    // cannot be read or the type is another. From any thread.
    bool read(const Tensor& tensor, std::int64_t first, std::span<float> into, std::string& failure) const;
    // XXH64 of its bytes.
    std::optional<std::uint64_t> checksum_of(const Tensor& tensor, std::string& failure) const;

private:
    bool read_header(std::string& failure);
    bool parse_header(const std::string& text, std::string& failure);
    bool has_no_gaps(std::uint64_t data_begin, std::string& failure) const;
    bool read_bytes(std::uint64_t at, std::span<std::byte> into, std::string& failure) const;

    std::string path_;
    FileDescriptor file_;
    std::uint64_t bytes_ = 0, header_checksum_ = 0;
    std::map<std::string, Tensor> tensors_;
    std::map<std::string, std::string> metadata_;
};

// What a file is to hold: fp32 arrays, in this order.
struct OutgoingTensor {
    std::string name;
    std::vector<std::int64_t> shape;
};
// Length and JSON, padded so that the arrays begin at a multiple of 8 bytes.
std::string safetensors_header(const std::vector<OutgoingTensor>& tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace exec
