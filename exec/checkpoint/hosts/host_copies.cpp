#include "exec/checkpoint/hosts/host_copies.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/durable_file.h"
#include "exec/checkpoint/hosts/host_files.h"
#include "exec/file_descriptor.h"
#include "exec/transport/exchange.h"

namespace exec {

namespace {

namespace fs = std::filesystem;

enum : Tag { tag_copy = 36, tag_willing = 46, tag_copied = 47 };

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

// Into FOLDER/NAME.
void receive_file(Communicator& communicator, int peer, std::uint64_t bytes, const std::string& folder,
                  const std::string& name) {
    std::vector<float> content(floats_of(bytes));
    for (std::size_t at = 0; at < content.size(); at += most_floats_in_a_piece)
        communicator.receive(
            peer, file_tag,
            std::span(content).subspan(at, std::min(most_floats_in_a_piece, content.size() - at)),
            Arrival::overwrites);
    const std::span<const std::byte> written = std::as_bytes(std::span(content)).first(bytes);
    write_durably(folder, name, {&written, 1});
}

// A file into a folder that it is not in.
struct Copy {
    std::int32_t file = 0;
    int from = 0, to = 0;
};

// The folders that follow the first that has the file, as keepers_of.
std::vector<Copy> missing_copies(const HostFolders& folders, const std::vector<std::vector<int>>& holders,
                                 const std::vector<bool>& is_willing) {
    std::vector<Copy> copies;
    for (const std::int32_t f : core::indices(holders)) {
        const std::vector<int>& have = holders[f];
        int missing = folders.copies - static_cast<int>(have.size());
        for (int next = 1; missing > 0 && next < folders.count(); ++next) {
            const int to = (have.front() + next) % folders.count();
            if (!is_willing[to] || std::find(have.begin(), have.end(), to) != have.end()) continue;
            copies.push_back({f, have.front(), to});
            --missing;
        }
    }
    return copies;
}

bool is_manifest_of(const std::string& folder, const CheckpointManifest& manifest) {
    std::string failure;
    const std::optional<CheckpointManifest> there = read_manifest(folder, failure);
    return there && text_of(*there) == text_of(manifest);
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
        receive_file(communicator, other, bytes, folder, name);
    }
}

int complete_copies(Communicator& communicator, const HostFolders& folders, const std::string& directory,
                    const CheckpointManifest& manifest, const std::vector<std::vector<int>>& holders) {
    const int rank = communicator.rank();
    const bool leads = folders.leads(rank);
    const std::string place = checkpoint_folder(directory, manifest.step),
                      partial = partial_folder(directory, manifest.step);
    std::error_code none;
    const bool is_named = fs::exists(place, none);
    const bool refuses = leads && is_named && !is_manifest_of(place, manifest);
    const std::vector<std::string> all = gather_texts(communicator, tag_willing, refuses ? "no" : "");
    std::string refusing;  // folders
    for (const std::int32_t r : core::indices(all))
        if (!all[r].empty()) refusing += fmt::format("{} ", folders.folder_of_rank[r]);
    std::istringstream words(broadcast_text(communicator, tag_willing, refusing));
    std::vector<bool> is_willing(folders.count(), true);
    for (int folder = 0; words >> folder;) is_willing[folder] = false;

    const std::vector<Copy> copies = missing_copies(folders, holders, is_willing);
    for (const Copy& copy : copies) {
        const CheckpointFile& file = manifest.files[copy.file];
        const int sender = folders.ranks_in(copy.from).front(), receiver = folders.ranks_in(copy.to).front();
        if (rank == sender) {
            std::string failure;
            const HostFile here = open_host_file(directory, manifest, copy.file, true, failure);
            if (!here.content)
                throw core::MachineError(fmt::format("{} of step {} is no longer whole in {}: {}", file.name,
                                                     manifest.step, directory, failure));
            send_file(communicator, receiver, here.folder + "/" + file.name, file.bytes);
        } else if (rank == receiver) {
            const std::string& into = is_named ? place : partial;
            fs::create_directories(into, none);
            receive_file(communicator, sender, file.bytes, into, file.name);
        }
    }
    // One by itself would count in a folder whose copies are still to come.
    gather_texts(communicator, tag_copied, "");
    broadcast_text(communicator, tag_copied, "");
    if (leads && !is_named && fs::is_directory(partial, none)) name_checkpoint(directory, manifest);
    return static_cast<int>(copies.size());
}

}  // namespace exec
