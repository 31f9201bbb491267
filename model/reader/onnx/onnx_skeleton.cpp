// Field numbers are those of onnx.proto (github.com/onnx/onnx, IR version 3 to 10); they never change meaning
// within protobuf's rules.
#include "model/reader/onnx/onnx_skeleton.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace model {

namespace {

enum class Message { model, graph, node, attribute, tensor, sparse_tensor, other };

// The message a length-delimited field holds; `other` is copied as it is.
Message inside(Message message, std::uint64_t field) {
    switch (message) {
        case Message::model: return field == 7 ? Message::graph : Message::other;
        case Message::graph:
            return field == 1    ? Message::node
                   : field == 5  ? Message::tensor
                   : field == 15 ? Message::sparse_tensor
                                 : Message::other;
        case Message::node: return field == 5 ? Message::attribute : Message::other;
        case Message::attribute:
            return field == 5 || field == 10    ? Message::tensor
                   : field == 6 || field == 11  ? Message::graph
                   : field == 22 || field == 23 ? Message::sparse_tensor
                                                : Message::other;
        case Message::sparse_tensor: return field == 1 || field == 2 ? Message::tensor : Message::other;
        case Message::tensor:
        case Message::other: break;
    }
    return Message::other;
}

// Texts for people, training information and annotations: nothing a graph is made of.
bool is_left_out(Message message, std::uint64_t field) {
    switch (message) {
        case Message::model: return field == 6 || field == 14 || field == 20;
        case Message::graph: return field == 10 || field == 14;
        case Message::node: return field == 6;
        case Message::attribute: return field == 13;
        case Message::tensor: return field == 12;
        case Message::sparse_tensor:
        case Message::other: return false;
    }
    throw core::InternalError("broken promise: every message of a model says what is left out of it");
}

// float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
bool is_payload(std::uint64_t field) { return (field >= 4 && field <= 7) || (field >= 9 && field <= 11); }

constexpr std::int64_t largest_file = std::int64_t(2) << 30;
constexpr std::size_t largest_skeleton = std::size_t(128) << 20;
constexpr int deepest = 64;

class Skeleton {
public:
    Skeleton(std::istream& in, std::int64_t size) : in_(in), size_(size) {}

    std::string read() { return message(Message::model, size_, 0); }
    std::int64_t position() const { return position_; }

private:
    [[noreturn]] static void refuse(const char* what) { throw std::runtime_error(what); }

    std::string message(Message kind, std::int64_t end, int depth) {
        if (depth > deepest) refuse("messages are nested too deeply");
        std::string out;
        while (position_ < end) {
            const std::uint64_t tag = varint(end);
            const std::uint64_t field = tag >> 3;
            if (field == 0) refuse("no field has number 0");
            switch (tag & 7) {
                case 0: {
                    const std::uint64_t value = varint(end);
                    append_varint(out, tag);
                    append_varint(out, value);
                    break;
                }
                case 1: copy(out, tag, 8, end, false); break;
                case 5: copy(out, tag, 4, end, false); break;
                case 2: {
                    const std::uint64_t length = varint(end);
                    if (length > static_cast<std::uint64_t>(end - position_))
                        refuse("a field reaches beyond its message: the file is truncated or corrupt");
                    const auto bytes = static_cast<std::int64_t>(length);
                    const Message child = inside(kind, field);
                    if (is_left_out(kind, field) ||
                        (kind == Message::tensor && is_payload(field) && bytes > largest_onnx_payload)) {
                        skip(bytes);
                    } else if (child == Message::other) {
                        copy(out, tag, bytes, end, true);
                    } else {
                        const std::string content = message(child, position_ + bytes, depth + 1);
                        append_varint(out, tag);
                        append_varint(out, content.size());
                        out += content;
                    }
                    break;
                }
                // A wire type out of three bits of the file: 3 and 4 (groups) are not in ONNX, 6 and 7 not in
                // any.
                default: refuse("this is no protobuf message");
            }
            if (out.size() > largest_skeleton)
                refuse("the graph itself, without weights, is larger than 128 MiB");
        }
        return out;
    }

    std::uint64_t varint(std::int64_t end) {
        std::uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            if (position_ >= end)
                refuse("a number reaches beyond its message: the file is truncated or corrupt");
            const int byte = in_.rdbuf()->sbumpc();
            if (byte == std::char_traits<char>::eof()) refuse("the file ends early");
            ++position_;
            value |= static_cast<std::uint64_t>(byte & 127) << shift;
            if (byte < 128) return value;
        }
        refuse("a number has more than 64 bits");
    }

    static void append_varint(std::string& out, std::uint64_t value) {
        for (; value > 127; value >>= 7) out += (value | 128);
        out += value;
    }

    void copy(std::string& out, std::uint64_t tag, std::int64_t bytes, std::int64_t end, bool has_length) {
        if (bytes > end - position_)
            refuse("a field reaches beyond its message: the file is truncated or corrupt");
        if (static_cast<std::size_t>(bytes) > largest_skeleton)
            refuse("the graph itself, without weights, is larger than 128 MiB");
        append_varint(out, tag);
        if (has_length) append_varint(out, bytes);
        const std::size_t before = out.size();
        out.resize(before + bytes);
        if (in_.rdbuf()->sgetn(out.data() + before, bytes) != bytes) refuse("the file ends early");
        position_ += bytes;
    }

    void skip(std::int64_t bytes) {
        position_ += bytes;
        in_.rdbuf()->pubseekpos(position_, std::ios::in);
    }

    std::istream& in_;
    const std::int64_t size_;
    std::int64_t position_ = 0;
};

}  // namespace

std::optional<std::string> onnx_skeleton(const std::string& path, core::Diagnostics& diagnostics,
                                         const core::SourceLocation& referrer, const std::string& key) {
    std::error_code failure;
    const bool is_file = std::filesystem::is_regular_file(path, failure);
    std::ifstream in(path, std::ios::binary);
    if (!is_file || !in) {
        diagnostics.error(referrer, key,
                          fmt::format("cannot read the ONNX file {}", core::in_quotes(path, 200)),
                          "is the path right?");
        return std::nullopt;
    }
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, failure));
    const core::SourceLocation location{path, 0, 0};
    if (failure || size > largest_file) {
        diagnostics.error(
            location, key, fmt::format("the file has {} bytes; an ONNX file holds at most 2 GiB", size),
            "export with external data: the weights then lie in files of their own, which are not read");
        return std::nullopt;
    }
    if (size == 0) {
        diagnostics.error(location, key, "the file is empty", "an ONNX model is expected");
        return std::nullopt;
    }
    Skeleton skeleton(in, size);
    try {
        return skeleton.read();
    } catch (const std::runtime_error& problem) {
        diagnostics.error(location, key,
                          fmt::format("not a sound ONNX file: at byte {} of {}: {}", skeleton.position(),
                                      size, problem.what()),
                          "export or copy it again");
        return std::nullopt;
    }
}

}  // namespace model
