#include "exec/checkpoint/hosts/host_copies.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/checkpoint/durable_file.h"
#include "exec/file_descriptor.h"
#include "exec/transport/exchange.h"

namespace exec {

namespace {

enum : Tag { tag_copy = 36 };

std::size_t floats_of(std::uint64_t bytes) { return (bytes + sizeof(float) - 1) / sizeof(float); }

void read_piece(const FileDescriptor& file, const std::string& path, std::span<std::byte> into) {
    while (!into.empty()) {
        const ssize_t got = ::read(file.get(), into.data(), into.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw_system_error("reading", path);
        if (got == 0) throw core::MachineError(fmt::format("reading {}: it became shorter", path));
        into = into.subspan(got);
    }
}

void send_file(Communicator& communicator, int peer, const std::string& path, std::uint64_t bytes) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) throw_system_error("opening", path);
    std::vector<float> piece;
    for (std::uint64_t at = 0; at < bytes;) {
        const std::uint64_t now = std::min<std::uint64_t>(bytes - at, most_floats_in_a_piece * sizeof(float));
        piece.assign(floats_of(now), 0.0f);
        read_piece(file, path, std::as_writable_bytes(std::span(piece)).first(now));
        communicator.finish(communicator.start_send(peer, file_tag, piece, nullptr));
        at += now;
    }
}

std::vector<float> receive_file(Communicator& communicator, int peer, std::uint64_t bytes) {
    std::vector<float> content(floats_of(bytes));
    for (std::size_t at = 0; at < content.size(); at += most_floats_in_a_piece)
        communicator.receive(
            peer, file_tag,
            std::span(content).subspan(at, std::min(most_floats_in_a_piece, content.size() - at)),
            Arrival::overwrites);
    return content;
}

}  // namespace

std::vector<int> kept_by(const HostFolders& folders, int rank) {
    std::vector<int> kept;
    for (int other = 0; std::cmp_less(other, folders.folder_of_rank.size()); ++other) {
        const std::vector<int> keepers = folders.keepers_of(other);
        if (std::find(keepers.begin(), keepers.end(), rank) != keepers.end()) kept.push_back(other);
    }
    return kept;
}

void exchange_copies(Communicator& communicator, const HostFolders& folders, const std::string& folder,
                     const CheckpointFile& own) {
    if (folders.copies < 2) return;
    for (const int keeper : folders.keepers_of(communicator.rank())) {
        send_text(communicator, keeper, tag_copy,
                  own.name.empty() ? std::string() : fmt::format("{} {}", own.name, own.bytes));
        if (!own.name.empty()) send_file(communicator, keeper, folder + "/" + own.name, own.bytes);
    }
    for (const int other : kept_by(folders, communicator.rank())) {
        std::istringstream words(receive_text(communicator, other, tag_copy));
        std::string name;
        std::uint64_t bytes = 0;
        if (!(words >> name >> bytes)) continue;
        const std::vector<float> content = receive_file(communicator, other, bytes);
        const std::span<const std::byte> written = std::as_bytes(std::span(content)).first(bytes);
        write_durably(folder, name, {&written, 1});
    }
}

}  // namespace exec
