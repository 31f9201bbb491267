#include "exec/checkpoint/rank_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "exec/checkpoint/checksum.h"
#include "exec/checkpoint/durable_file.h"

namespace exec {

namespace {

constexpr std::array<std::pair<StateKind, std::string_view>, 3> prefixes = {
    {{StateKind::value, "values/"},
     {StateKind::first_moment, "first_moments/"},
     {StateKind::second_moment, "second_moments/"}}};
constexpr const char *elements_key = "elements/", *checksum_key = "xxh64/", *format_key = "smexec_state";
constexpr const char* format_version = "2";

std::string array_name(const StateRecord& record) {
    for (const auto& [kind, prefix] : prefixes)
        if (kind == record.kind) return std::string(prefix) + record.parameter;
    return record.parameter;
}

std::optional<std::pair<StateKind, std::string>> parse_array_name(const std::string& name) {
    for (const auto& [kind, prefix] : prefixes)
        if (name.starts_with(prefix)) return std::pair(kind, name.substr(prefix.size()));
    return std::nullopt;
}

std::int64_t count_of(const std::vector<ElementRange>& ranges) {
    std::int64_t count = 0;
    for (const ElementRange& range : ranges) count += range.count;
    return count;
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
}

template <class Number>
bool take_number(std::string_view& text, Number& number, int base = 10) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (error != std::errc()) return false;
    text.remove_prefix(end - text.data());
    return true;
}

bool take(std::string_view& text, char expected) {
    if (text.empty() || text.front() != expected) return false;
    text.remove_prefix(1);
    return true;
}

class SafetensorsRankFile : public RankFile {
public:
    SafetensorsRankFile(std::string path, SafetensorsFile content)
        : path_(std::move(path)), content_(std::move(content)) {}

    bool read_arrays(std::string& failure) {
        const auto word = [&](const std::string& key) -> const std::string* {
            const auto found = content_.metadata().find(key);
            return found == content_.metadata().end() ? nullptr : &found->second;
        };
        for (const auto& [name, tensor] : content_.tensors()) {
            const auto parsed = parse_array_name(name);
            const std::string *elements = word(elements_key + name), *sum = word(checksum_key + name);
            auto ranges = elements ? ranges_of(*elements, tensor.elements()) : std::nullopt;
            std::uint64_t number = 0;
            std::string_view rest = sum ? std::string_view(*sum) : std::string_view();
            if (!parsed || !ranges || tensor.type != "F32" || !take_number(rest, number, 16) ||
                !rest.empty()) {
                failure = fmt::format("{} is damaged: its records do not add up", path_);
                return false;
            }
            arrays_.push_back({parsed->second, parsed->first, std::move(*ranges)});
            stored_.push_back({&tensor, number});
        }
        return true;
    }

    bool verify(std::size_t index, std::string& failure) const override {
        const std::optional<std::uint64_t> sum = content_.checksum_of(*stored_[index].tensor, failure);
        if (!sum) return false;
        if (*sum == stored_[index].checksum) return true;
        failure = fmt::format("{} is damaged: its checksum is {:016x}, {:016x} was written", path_, *sum,
                              stored_[index].checksum);
        return false;
    }

    bool read(std::size_t index, std::int64_t at, std::span<float> into,
              std::string& failure) const override {
        return content_.read(*stored_[index].tensor, at, into, failure);
    }

private:
    struct Stored {
        const SafetensorsFile::Tensor* tensor = nullptr;  // of content_, whose map does not move
        std::uint64_t checksum = 0;
    };
    std::string path_;
    SafetensorsFile content_;
    std::vector<Stored> stored_;
};

// What was written until November 2026: little-endian, 16 bytes of magic, the number of records, then records
// of name length, name, kind, first element, count (64 bits each) and fp32 values.
class EarlierRankFile : public RankFile {
public:
    static constexpr char magic[16] = "smexec state 1\n";

    // `content` was verified as a whole.
    bool parse(const std::string& content) {
        std::string_view rest = content;
        std::uint64_t records = 0;
        if (!rest.starts_with(std::string_view(magic, sizeof magic))) return false;
        rest.remove_prefix(sizeof magic);
        if (!take(rest, records)) return false;
        for (std::uint64_t i = 0; i < records; ++i) {
            std::uint64_t length = 0, kind = 0, first = 0, count = 0;
            if (!take(rest, length) || length > rest.size()) return false;
            const std::string name(rest.substr(0, length));
            rest.remove_prefix(length);
            if (!take(rest, kind) || kind > 2 || !take(rest, first) || !take(rest, count) ||
                count > rest.size() / sizeof(float))
                return false;
            std::vector<float>& values = values_.emplace_back(count);
            if (count > 0) std::memcpy(values.data(), rest.data(), count * sizeof(float));
            rest.remove_prefix(count * sizeof(float));
            arrays_.push_back({name,
                               static_cast<StateKind>(kind),
                               {{static_cast<std::int64_t>(first), static_cast<std::int64_t>(count)}}});
        }
        return rest.empty();
    }

    bool verify(std::size_t, std::string&) const override { return true; }
    bool read(std::size_t index, std::int64_t at, std::span<float> into, std::string&) const override {
        std::copy_n(values_[index].begin() + at, into.size(), into.begin());
        return true;
    }

private:
    static bool take(std::string_view& from, std::uint64_t& number) {
        if (from.size() < sizeof number) return false;
        std::memcpy(&number, from.data(), sizeof number);
        from.remove_prefix(sizeof number);
        return true;
    }
    std::vector<std::vector<float>> values_;
};

std::optional<std::uint64_t> size_of_file(const std::string& path, std::string& failure) {
    struct stat status{};
    if (::stat(path.c_str(), &status) == 0) return static_cast<std::uint64_t>(status.st_size);
    failure = fmt::format("{} cannot be read: {}", path, std::strerror(errno));
    return std::nullopt;
}

bool read_whole(const std::string& path, std::string& content, std::string& failure) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::size_t done = 0;
    while (file.is_open() && done < content.size()) {
        const ssize_t got = ::read(file.get(), content.data() + done, content.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += got;
    }
    if (done == content.size()) return true;
    failure =
        fmt::format("{} cannot be read: {}", path, errno == 0 ? "it became shorter" : std::strerror(errno));
    return false;
}

bool is_checksum(const std::string& path, std::uint64_t sum, std::uint64_t written, std::string& failure) {
    if (sum == written) return true;
    failure = fmt::format("{} is damaged: its checksum is {:016x}, {:016x} was written", path, sum, written);
    return false;
}

std::unique_ptr<const RankFile> open_earlier(const std::string& path, const CheckpointFile& file,
                                             std::string& failure) {
    std::string content(file.bytes, '\0');
    if (!read_whole(path, content, failure) ||
        !is_checksum(path, checksum(std::as_bytes(std::span(content))), file.checksum, failure))
        return nullptr;
    auto result = std::make_unique<EarlierRankFile>();
    if (result->parse(content)) return result;
    failure = fmt::format("{} is damaged: its records do not add up", path);
    return nullptr;
}

}  // namespace

std::unique_ptr<const RankFile> RankFile::open(const std::string& folder, const CheckpointFile& file,
                                               std::string& failure) {
    const std::string path = folder + "/" + file.name;
    const std::optional<std::uint64_t> bytes = size_of_file(path, failure);
    if (!bytes) return nullptr;
    if (*bytes != file.bytes) {
        failure = fmt::format("{} has {} bytes, {} were written: it is {}", path, *bytes, file.bytes,
                              *bytes < file.bytes ? "truncated" : "damaged");
        return nullptr;
    }
    if (file.name.ends_with(".state")) return open_earlier(path, file, failure);
    std::optional<SafetensorsFile> content = SafetensorsFile::open(path, failure);
    if (!content || !is_checksum(path, content->header_checksum(), file.checksum, failure)) return nullptr;
    auto result = std::make_unique<SafetensorsRankFile>(path, std::move(*content));
    return result->read_arrays(failure) ? std::move(result) : nullptr;
}

CheckpointFile write_rank_file(const std::string& folder, int rank, const std::vector<StateRecord>& records) {
    std::vector<OutgoingTensor> tensors;
    std::vector<std::pair<std::string, std::string>> metadata = {{format_key, format_version}};
    std::vector<std::span<const std::byte>> parts(1);  // the header's comes when it is known
    CheckpointFile file{fmt::format("rank-{:04}.safetensors", rank), 0, 0};
    for (const StateRecord& record : records) {
        const std::string name = array_name(record);
        const std::int64_t count = count_of(record.ranges);
        const bool is_whole = count == elements_of(record.shape);
        tensors.push_back({name, is_whole ? record.shape : std::vector<std::int64_t>{count}});
        const std::span<const std::byte> content = std::as_bytes(std::span(record.values));
        metadata.emplace_back(elements_key + name, words_of(record.ranges));
        metadata.emplace_back(checksum_key + name, fmt::format("{:016x}", checksum(content)));
        parts.push_back(content);
        file.bytes += content.size();
    }
    const std::string header = safetensors_header(tensors, metadata);
    parts[0] = std::as_bytes(std::span(header));
    file.bytes += header.size();
    file.checksum = checksum(parts[0]);
    write_durably(folder, file.name, parts);
    return file;
}

std::string words_of(const std::vector<ElementRange>& ranges) {
    std::string text;
    for (std::size_t i = 0; i < ranges.size();) {
        // As many as follow at the same distance with the same length.
        std::size_t end = i + 1;
        const std::int64_t stride = end < ranges.size() ? ranges[end].first - ranges[i].first : 0;
        while (end < ranges.size() && ranges[end].count == ranges[i].count &&
               ranges[end].first - ranges[end - 1].first == stride)
            ++end;
        text += fmt::format("{}{}+{}", text.empty() ? "" : " ", ranges[i].first, ranges[i].count);
        if (end - i > 1) text += fmt::format("*{}/{}", end - i, stride);
        i = end;
    }
    return text;
}

std::optional<std::vector<ElementRange>> ranges_of(const std::string& words, std::int64_t elements) {
    std::vector<ElementRange> ranges;
    std::string_view rest = words;
    std::int64_t left = elements;
    while (!rest.empty()) {
        if (!ranges.empty() && !take(rest, ' ')) return std::nullopt;
        std::int64_t first = 0, count = 0, times = 1, stride = 0;
        if (!take_number(rest, first) || !take(rest, '+') || !take_number(rest, count)) return std::nullopt;
        if (take(rest, '*') && (!take_number(rest, times) || !take(rest, '/') || !take_number(rest, stride)))
            return std::nullopt;
        if (first < 0 || count < 1 || times < 1 || stride < 0 || count > left / times) return std::nullopt;
        if (times > 1 && stride > (INT64_MAX - first) / times) return std::nullopt;
        left -= count * times;
        for (std::int64_t i = 0; i < times; ++i) ranges.push_back({first + i * stride, count});
    }
    if (left != 0) return std::nullopt;
    return ranges;
}

}  // namespace exec
