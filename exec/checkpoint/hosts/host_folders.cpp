#include "exec/checkpoint/hosts/host_folders.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/checkpoint/durable_file.h"
#include "exec/file_descriptor.h"
#include "exec/transport/exchange.h"

namespace exec {

namespace {

enum : Tag { tag_identity = 34, tag_folders = 35 };

std::string read_identity(const std::string& path) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) {
        if (errno != ENOENT) throw_system_error("opening", path);
        return {};
    }
    std::array<char, 64> text{};
    const ssize_t bytes = ::read(file.get(), text.data(), text.size());
    if (bytes < 0) throw_system_error("reading", path);
    return {text.data(), text.data() + bytes};
}

std::string random_word() {
    std::array<unsigned char, 16> bytes{};
    if (::getrandom(bytes.data(), bytes.size(), 0) != std::ssize(bytes))
        throw core::MachineError(fmt::format("getrandom: {}", std::strerror(errno)));
    std::string word;
    for (const unsigned char byte : bytes) word += fmt::format("{:02x}", byte);
    return word;
}

// Of several ranks that make it at once one wins: a link is made by nobody where there is one.
std::string identity_of(const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) throw core::MachineError(fmt::format("creating {}: {}", directory, error.message()));
    const std::string path = directory + "/folder.id";
    if (std::string known = read_identity(path); !known.empty()) return known;
    const std::string word = random_word(), name = "folder.id." + word;
    const std::span<const std::byte> content = std::as_bytes(std::span(word));
    write_durably(directory, name, {&content, 1});
    const std::string own = directory + "/" + name;
    const bool is_linked = ::link(own.c_str(), path.c_str()) == 0 || errno == EEXIST;
    if (!is_linked) throw_system_error("creating", path);
    ::unlink(own.c_str());
    synchronize_directory(directory);
    return read_identity(path);
}

// The word and where it lies: a copy of the folder, on another host's disk, has the word too.
std::string identity_in_place(const std::string& directory) {
    const std::string word = identity_of(directory), path = directory + "/folder.id";
    struct stat about{};
    if (::stat(path.c_str(), &about) != 0) throw_system_error("reading", path);
    return fmt::format("{} {}", word, about.st_ino);
}

}  // namespace

std::vector<int> HostFolders::ranks_in(int folder) const {
    std::vector<int> ranks;
    for (const std::int32_t rank : core::indices(folder_of_rank))
        if (folder_of_rank[rank] == folder) ranks.push_back(rank);
    return ranks;
}

bool HostFolders::leads(int rank) const { return ranks_in(folder_of_rank[rank]).front() == rank; }

std::vector<int> HostFolders::keepers_of(int rank) const {
    const std::vector<int> beside = ranks_in(folder_of_rank[rank]);
    const auto position = std::find(beside.begin(), beside.end(), rank) - beside.begin();
    std::vector<int> keepers;
    for (int copy = 1; copy < copies; ++copy) {
        const std::vector<int> there = ranks_in((folder_of_rank[rank] + copy) % count());
        keepers.push_back(there[position % std::ssize(there)]);
    }
    return keepers;
}

HostFolders find_host_folders(Communicator& communicator, const std::string& directory,
                              const std::string& host, int copies) {
    const std::string place =
        fmt::format("{}:{}", host, std::filesystem::absolute(directory).lexically_normal().string());
    const std::vector<std::string> all =
        gather_texts(communicator, tag_identity, identity_in_place(directory) + "\n" + place);
    std::string table;  // by rank: folder, and its place where the rank is its first
    std::map<std::string, int> folders;
    for (const std::string& one : all) {
        const std::size_t end = one.find('\n');
        const auto [found, is_new] =
            folders.try_emplace(one.substr(0, end), static_cast<int>(folders.size()));
        table += fmt::format("{}\t{}\n", found->second, is_new ? one.substr(end + 1) : "");
    }
    table = broadcast_text(communicator, tag_folders, table);
    HostFolders result;
    result.copies = copies;
    for (std::size_t at = 0; at < table.size();) {
        const std::size_t tab = table.find('\t', at), end = table.find('\n', tab);
        result.folder_of_rank.push_back(std::stoi(table.substr(at, tab - at)));
        if (end > tab + 1) result.places.push_back(table.substr(tab + 1, end - tab - 1));
        at = end + 1;
    }
    return result;
}

}  // namespace exec
