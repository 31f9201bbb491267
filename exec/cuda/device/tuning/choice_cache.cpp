#include "exec/cuda/device/tuning/choice_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/core.h>

namespace exec::cuda {

namespace {

constexpr std::string_view heading = "smsim-cuda-choices 1";

// FNV-1a, 64 bits (Fowler, Noll, Vo: draft-eastlake-fnv).
std::uint64_t sum_of(std::string_view text) {
    std::uint64_t hash = 14695981039346656037ull;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    return hash;
}

std::string hexadecimal(std::string_view bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

std::optional<unsigned> digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return std::nullopt;
}

std::optional<std::string> bytes_of(std::string_view text) {
    if (text.size() % 2 != 0) return std::nullopt;
    std::string bytes;
    bytes.reserve(text.size() / 2);
    for (std::size_t i = 0; i < text.size(); i += 2) {
        const std::optional<unsigned> high = digit(text[i]), low = digit(text[i + 1]);
        if (!high || !low) return std::nullopt;
        bytes += static_cast<char>(*high << 4 | *low);
    }
    return bytes;
}

// "key hex sum", an empty value as "-".
std::string line_of(const std::string& key, const std::string& value) {
    const std::string text = value.empty() ? "-" : hexadecimal(value);
    return fmt::format("{} {} {:016x}\n", key, text, sum_of(key + ' ' + text));
}

}  // namespace

ChoiceCache::ChoiceCache(std::filesystem::path file, std::string identity)
    : file_(std::move(file)), identity_(std::move(identity)) {
    known_ = read(remarks_);
}

std::map<std::string, std::string> ChoiceCache::read(std::vector<std::string>& remarks) const {
    std::map<std::string, std::string> entries;
    if (file_.empty()) return entries;
    std::ifstream in(file_, std::ios::binary);
    if (!in) return entries;  // the first run
    const auto left_out = [&](const std::string& why) {
        remarks.push_back(fmt::format("measured choices in {} are not used: {}", file_.string(), why));
    };
    std::string line;
    if (!std::getline(in, line) || line != heading) {
        left_out(fmt::format("its first line is not \"{}\"", heading));
        return entries;
    }
    if (!std::getline(in, line) || line != identity_) {
        left_out(fmt::format("they are of {}, and here is {}", line.empty() ? "no card" : line, identity_));
        return entries;
    }
    int damaged = 0;
    while (std::getline(in, line)) {
        std::istringstream words(line);
        std::string key, text, sum, more;
        words >> key >> text >> sum >> more;
        const std::optional<std::string> value =
            text == "-" ? std::optional<std::string>(std::string()) : bytes_of(text);
        if (!value || !more.empty() || sum != fmt::format("{:016x}", sum_of(key + ' ' + text))) ++damaged;
        else entries[key] = *value;
    }
    if (damaged > 0)
        remarks.push_back(fmt::format("{} of the measured choices in {} are damaged and are measured again",
                                      damaged, file_.string()));
    return entries;
}

std::optional<std::string> ChoiceCache::find(const std::string& key) const {
    const auto found = known_.find(key);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void ChoiceCache::put(const std::string& key, std::string value) {
    known_[key] = value;
    new_[key] = std::move(value);
}

void ChoiceCache::save() {
    if (file_.empty() || new_.empty()) return;
    std::vector<std::string> ignored;  // said when the file was read first
    std::map<std::string, std::string> all = read(ignored);
    for (const auto& [key, value] : new_) all[key] = value;
    std::string text = fmt::format("{}\n{}\n", heading, identity_);
    for (const auto& [key, value] : all) text += line_of(key, value);
    const auto failed = [&](const std::string& why) {
        remarks_.push_back(fmt::format("measured choices are not kept in {}: {}", file_.string(), why));
    };
    std::error_code error;
    std::filesystem::create_directories(file_.parent_path(), error);
    static std::atomic<unsigned> writers{0};  // of this process: threads are ranks too
    std::filesystem::path own = file_;
    own += fmt::format(".{}.{}", ::getpid(), writers++);
    {
        std::ofstream out(own, std::ios::binary | std::ios::trunc);
        out << text;
        out.flush();
        if (!out) {
            out.close();
            std::filesystem::remove(own, error);
            return failed(fmt::format("{} cannot be written", own.string()));
        }
    }
    std::filesystem::rename(own, file_, error);
    if (error) {
        failed(error.message());
        std::filesystem::remove(own, error);
        return;
    }
    new_.clear();
}

std::filesystem::path choice_cache_file(std::string_view identity) {
    std::filesystem::path folder;
    if (const char* own = std::getenv("SMSIM_CUDA_CACHE")) folder = own;
    else if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache)
        folder = std::filesystem::path(cache) / "smsim";
    else if (const char* home = std::getenv("HOME"); home && *home)
        folder = std::filesystem::path(home) / ".cache" / "smsim";
    if (folder.empty()) return {};
    return folder / fmt::format("cuda-{:016x}.choices", sum_of(identity));
}

}  // namespace exec::cuda
