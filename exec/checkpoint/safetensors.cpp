#include "exec/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "exec/checkpoint/checksum.h"

namespace exec {

static_assert(std::endian::native == std::endian::little, "arrays are written as they lie in memory");

namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t largest_header = 100'000'000;  // MAX_HEADER_SIZE of safetensors 0.5, src/tensor.rs
constexpr const char* metadata_key = "__metadata__";

// Bits of an element; types that hold less than a byte are not among them.
std::optional<std::uint64_t> element_bytes(const std::string& type) {
    static const std::map<std::string, std::uint64_t> known = {
        {"F64", 8},  {"F32", 4}, {"F16", 2},     {"BF16", 2},    {"I64", 8},    {"U64", 8},
        {"I32", 4},  {"U32", 4}, {"I16", 2},     {"U16", 2},     {"I8", 1},     {"U8", 1},
        {"BOOL", 1}, {"C64", 8}, {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}};
    const auto found = known.find(type);
    return found == known.end() ? std::nullopt : std::optional(found->second);
}

// IEEE 754 binary16 to binary32, exactly.
float from_half(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 1023u;
    constexpr std::uint32_t bias_difference = 127 - 15, infinite = 31;
    if (exponent == 0) {
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const std::uint32_t wide = exponent == infinite ? 255u : exponent + bias_difference;
    return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

template <class Stored, class Convert>
void convert(std::span<const std::byte> from, std::span<float> into, const Convert& to_float) {
    for (std::size_t i = 0; i < into.size(); ++i) {
        Stored value;
        std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
        into[i] = to_float(value);
    }
}

bool is_whole_number(const core::Value& value) {
    return value.kind() == core::Value::Kind::integer && value.integer() >= 0;
}

// Type, shape and place of one tensor as the header has them, its place relative to the arrays' begin.
std::optional<SafetensorsFile::Tensor> read_tensor(const core::Value& entry) {
    const core::Value *type = entry.find("dtype"), *shape = entry.find("shape"),
                      *offsets = entry.find("data_offsets");
    if (!type || !type->is_string() || !shape || !shape->is_array() || !offsets || !offsets->is_array() ||
        offsets->size() != 2 || !is_whole_number(offsets->items()[0]) ||
        !is_whole_number(offsets->items()[1]))
        return std::nullopt;
    SafetensorsFile::Tensor tensor;
    tensor.type = type->string();
    const std::optional<std::uint64_t> size = element_bytes(tensor.type);
    if (!size) return std::nullopt;
    std::uint64_t bytes = *size;
    for (const core::Value& extent : shape->items()) {
        if (!is_whole_number(extent)) return std::nullopt;
        tensor.shape.push_back(extent.integer());
        const auto count = static_cast<std::uint64_t>(extent.integer());
        if (count > 0 && bytes > std::numeric_limits<std::uint64_t>::max() / 2 / count) return std::nullopt;
        bytes *= count;
    }
    tensor.begin = static_cast<std::uint64_t>(offsets->items()[0].integer());
    const auto end = static_cast<std::uint64_t>(offsets->items()[1].integer());
    if (end < tensor.begin || end - tensor.begin != bytes) return std::nullopt;
    tensor.bytes = bytes;
    return tensor;
}

}  // namespace

std::int64_t SafetensorsFile::Tensor::elements() const {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
}

std::optional<SafetensorsFile> SafetensorsFile::open(const std::string& path, std::string& failure) {
    SafetensorsFile result;
    result.path_ = path;
    result.file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status{};
    if (!result.file_.is_open() || ::fstat(result.file_.get(), &status) != 0) {
        failure = fmt::format("{} cannot be read: {}", path, std::strerror(errno));
        return std::nullopt;
    }
    if (!S_ISREG(status.st_mode)) {
        failure = fmt::format("{} is no file", path);
        return std::nullopt;
    }
    result.bytes_ = static_cast<std::uint64_t>(status.st_size);
    if (!result.read_header(failure)) return std::nullopt;
    return result;
}

bool SafetensorsFile::read_header(std::string& failure) {
    const auto is_damaged = [&](const std::string& why) {
        failure = fmt::format("{} is damaged or no safetensors file: {}", path_, why);
        return false;
    };
    std::uint64_t length = 0;
    if (bytes_ < length_bytes) return is_damaged(fmt::format("it has {} bytes", bytes_));
    if (!read_bytes(0, std::as_writable_bytes(std::span(&length, 1)), failure)) return false;
    if (length > bytes_ - length_bytes || length > largest_header)
        return is_damaged(fmt::format("its header should have {} bytes, the file has {}", length, bytes_));
    std::string text(length_bytes + length, '\0');
    if (!read_bytes(0, std::as_writable_bytes(std::span(text)), failure)) return false;
    header_checksum_ = checksum(std::as_bytes(std::span(text)));
    return parse_header(text.substr(length_bytes), failure);
}

bool SafetensorsFile::parse_header(const std::string& text, std::string& failure) {
    const auto is_damaged = [&](const std::string& why) {
        failure = fmt::format("{} is damaged or no safetensors file: {}", path_, why);
        return false;
    };
    core::Diagnostics diagnostics;
    const std::optional<core::Value> header = core::parse_json(text, path_, diagnostics);
    if (!header || !header->is_table()) return is_damaged("its header is no JSON object");
    const std::uint64_t data_begin = length_bytes + text.size();
    for (const auto& [name, entry] : header->members()) {
        if (name == metadata_key) {
            if (!entry.is_table()) return is_damaged("its metadata are no JSON object");
            for (const auto& [key, word] : entry.members()) {
                if (!word.is_string()) return is_damaged("its metadata are not all strings");
                metadata_[key] = word.string();
            }
            continue;
        }
        std::optional<Tensor> tensor = read_tensor(entry);
        if (!tensor)
            return is_damaged(
                fmt::format("type, shape and place of {} do not add up", core::in_quotes(name)));
        tensor->begin += data_begin;
        if (tensor->begin > bytes_ || tensor->bytes > bytes_ - tensor->begin)
            return is_damaged(fmt::format("{} ends behind the file: it is truncated", core::in_quotes(name)));
        if (!tensors_.emplace(name, std::move(*tensor)).second)
            return is_damaged(fmt::format("{} is there twice", core::in_quotes(name)));
    }
    return has_no_gaps(data_begin, failure);
}

bool SafetensorsFile::has_no_gaps(std::uint64_t data_begin, std::string& failure) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
    for (const auto& [name, tensor] : tensors_) places.emplace_back(tensor.begin, tensor.bytes);
    std::sort(places.begin(), places.end());
    std::uint64_t at = data_begin;
    for (const auto& [begin, bytes] : places) {
        if (begin != at) {
            failure = fmt::format("{} is damaged: its arrays overlap or leave gaps", path_);
            return false;
        }
        at += bytes;
    }
    if (at == bytes_) return true;
    failure = fmt::format("{} is damaged: {} bytes follow its last array", path_, bytes_ - at);
    return false;
}

bool SafetensorsFile::read_bytes(std::uint64_t at, std::span<std::byte> into, std::string& failure) const {
    while (!into.empty()) {
        const ssize_t got = ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            failure = fmt::format("{} cannot be read: {}", path_,
                                  got == 0 ? "it became shorter" : std::strerror(errno));
            return false;
        }
        into = into.subspan(got);
        at += static_cast<std::uint64_t>(got);
    }
    return true;
}

bool SafetensorsFile::read(const Tensor& tensor, std::int64_t first, std::span<float> into,
                           std::string& failure) const {
    if (first < 0 || first + std::ssize(into) > tensor.elements()) {
        failure = fmt::format("{} has {} elements where {} are asked for", path_, tensor.elements(),
                              first + std::ssize(into));
        return false;
    }
    const std::uint64_t size = element_bytes(tensor.type).value_or(0);
    const std::uint64_t at = tensor.begin + static_cast<std::uint64_t>(first) * size;
    if (tensor.type == "F32") return read_bytes(at, std::as_writable_bytes(into), failure);
    std::vector<std::byte> stored(into.size() * size);
    if (!read_bytes(at, stored, failure)) return false;
    if (tensor.type == "F64") {
        convert<double>(stored, into, [](double value) { return static_cast<float>(value); });
    } else if (tensor.type == "F16") {
        convert<std::uint16_t>(stored, into, from_half);
    } else if (tensor.type == "BF16") {
        convert<std::uint16_t>(stored, into, [](std::uint16_t value) {
            return std::bit_cast<float>(std::uint32_t{value} << 16);
        });
    } else {
        failure =
            fmt::format("{} holds numbers of type {}; F32, F64, F16 and BF16 are read", path_, tensor.type);
        return false;
    }
    return true;
}

std::optional<std::uint64_t> SafetensorsFile::checksum_of(const Tensor& tensor, std::string& failure) const {
    std::vector<std::byte> content(tensor.bytes);
    if (!read_bytes(tensor.begin, content, failure)) return std::nullopt;
    return checksum(content);
}

std::string safetensors_header(const std::vector<OutgoingTensor>& tensors,
                               const std::vector<std::pair<std::string, std::string>>& metadata) {
    core::Value::Table header;
    if (!metadata.empty()) {
        core::Value::Table words;
        for (const auto& [key, word] : metadata) words.emplace_back(key, word);
        header.emplace_back(metadata_key, core::Value(std::move(words)));
    }
    std::int64_t at = 0;
    for (const OutgoingTensor& tensor : tensors) {
        std::int64_t bytes = sizeof(float);
        for (const std::int64_t extent : tensor.shape) bytes *= extent;
        core::Value::Table entry;
        entry.emplace_back("dtype", "F32");
        entry.emplace_back("shape", core::Value(tensor.shape));
        entry.emplace_back("data_offsets", core::Value(std::vector<std::int64_t>{at, at + bytes}));
        header.emplace_back(tensor.name, core::Value(std::move(entry)));
        at += bytes;
    }
    std::string text = core::to_json(core::Value(std::move(header)), 0);
    text.pop_back();  // the line's end: the format pads with spaces
    constexpr std::uint64_t alignment = 8;
    text.append((alignment - text.size() % alignment) % alignment, ' ');
    const std::uint64_t length = text.size();
    std::string result(sizeof length, '\0');
    std::memcpy(result.data(), &length, sizeof length);
    return result + text;
}

}  // namespace exec
