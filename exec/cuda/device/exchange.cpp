// NCCL: a communicator for each group, ids carried by the ranks' own messages.
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cuda/device/library_check.cuh"
#include "exec/cuda/device/open.h"

namespace exec::cuda {

namespace {

ncclDataType_t library_type(core::DataType type) {
    switch (type) {
        case core::DataType::bf16: return ncclBfloat16;
        case core::DataType::fp16: return ncclFloat16;
        case core::DataType::int64: return ncclInt64;
        default: return ncclFloat32;
    }
}

// Of messages that carry ids: of no instruction (rank_transfers.cpp has bit 63 for collectives, barriers bit 62).
constexpr Tag id_tag = Tag(1) << 61;

class NcclExchange : public Exchange {
public:
    NcclExchange(Communicator& communicator, std::shared_ptr<Machine> machine, core::Seconds time_limit)
        : communicator_(communicator), machine_(std::move(machine)), time_limit_(time_limit) {}

    ~NcclExchange() override {
        for (Group& group : groups_)
            if (group.communicator) ncclCommAbort(group.communicator);  // destroying would wait for ranks that may be gone
    }

    int make_group(const std::vector<int>& members) override {
        Group group;
        group.members = members;
        const int position = position_in(members);
        ncclUniqueId id{};
        static_assert(sizeof id % sizeof(float) == 0);
        std::array<float, sizeof id / sizeof(float)> words{};
        // Members make their common groups in one order, so a tag for each pair and count is enough.
        const Tag tag = id_tag | static_cast<Tag>(groups_of(members)) << 32 | hash_of(members);
        if (position == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            std::memcpy(words.data(), &id, sizeof id);
            for (std::size_t i = 1; i < members.size(); ++i) communicator_.finish(communicator_.start_send(members[i], tag, words, nullptr));
        } else {
            communicator_.receive(members[0], tag, words, Arrival::overwrites);
            std::memcpy(&id, words.data(), sizeof id);
        }
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;  // so that a member that never comes does not hold this thread for ever
        const ncclResult_t status = ncclCommInitRankConfig(&group.communicator, static_cast<int>(members.size()), id, position, &config);
        if (status != ncclInProgress) check(status, "ncclCommInitRankConfig");
        settle(group.communicator, "ncclCommInitRankConfig", members);
        groups_.push_back(std::move(group));
        const int number = static_cast<int>(groups_.size()) - 1;
        connect(number, position);
        return number;
    }

    void all_reduce(Stream stream, int group, core::DataType type, void* data, std::size_t count, bool takes_maximum) override {
        call(group, "ncclAllReduce", ncclAllReduce(data, data, count, library_type(type), takes_maximum ? ncclMax : ncclSum, of(group), on(stream)));
    }
    void all_gather(Stream stream, int group, core::DataType type, void* data, std::size_t count) override {
        call(group, "ncclAllGather", ncclAllGather(piece(group, type, data, count), data, count, library_type(type), of(group), on(stream)));
    }
    void reduce_scatter(Stream stream, int group, core::DataType type, void* data, std::size_t count) override {
        call(group, "ncclReduceScatter", ncclReduceScatter(data, piece(group, type, data, count), count, library_type(type), ncclSum, of(group), on(stream)));
    }
    void broadcast(Stream stream, int group, core::DataType type, void* data, std::size_t count) override {
        call(group, "ncclBroadcast", ncclBroadcast(data, data, count, library_type(type), 0, of(group), on(stream)));
    }
    void all_to_all(Stream stream, int group, core::DataType type, const void* from, void* to, std::size_t count) override {
        const std::size_t bytes = count * static_cast<std::size_t>(core::size_of(type).value);
        begin_messages();
        for (int peer = 0; peer < static_cast<int>(groups_[static_cast<std::size_t>(group)].members.size()); ++peer) {
            const std::size_t at = static_cast<std::size_t>(peer) * bytes;
            send(stream, group, peer, static_cast<const char*>(from) + at, bytes, 0);
            receive(stream, group, peer, static_cast<char*>(to) + at, bytes, 0);
        }
        end_messages();
    }
    void begin_messages() override { check(ncclGroupStart(), "ncclGroupStart"); }
    void end_messages() override { call(0, "ncclGroupEnd", ncclGroupEnd()); }
    void send(Stream stream, int group, int peer, const void* data, std::size_t bytes, Tag) override {
        call(group, "ncclSend", ncclSend(data, bytes, ncclInt8, peer, of(group), on(stream)));
    }
    void receive(Stream stream, int group, int peer, void* data, std::size_t bytes, Tag) override {
        call(group, "ncclRecv", ncclRecv(data, bytes, ncclInt8, peer, of(group), on(stream)));
    }

    void check_errors() {
        for (const Group& group : groups_) {
            ncclResult_t state = ncclSuccess;
            cuda::check(ncclCommGetAsyncError(group.communicator, &state), "ncclCommGetAsyncError");
            if (state != ncclSuccess && state != ncclInProgress)
                throw core::MachineError(fmt::format("NCCL reports {} ({}) in the group of ranks {}", ncclGetErrorString(state),
                                                     ncclGetLastError(group.communicator), words_of(group.members)));
        }
    }
    void check() override { check_errors(); }

    void abort() override {
        for (Group& group : groups_) {
            if (group.communicator) ncclCommAbort(group.communicator);
            group.communicator = nullptr;
        }
    }

private:
    struct Group {
        std::vector<int> members;
        ncclComm_t communicator = nullptr;
    };

    static cudaStream_t on(Stream stream) { return static_cast<cudaStream_t>(stream); }
    ncclComm_t of(int group) const { return groups_[static_cast<std::size_t>(group)].communicator; }
    static void check(ncclResult_t status, const char* what) { cuda::check(status, what); }

    // Launches return at once; with non-blocking communicators they may say that they are still at it.
    void call(int group, const char* what, ncclResult_t status) {
        if (status == ncclInProgress) settle(of(group), what, groups_[static_cast<std::size_t>(group)].members);
        else check(status, what);
    }

    void settle(ncclComm_t communicator, const char* what, const std::vector<int>& members) {
        const auto begin = std::chrono::steady_clock::now();
        ncclResult_t state = ncclInProgress;
        while (true) {
            check(ncclCommGetAsyncError(communicator, &state), "ncclCommGetAsyncError");
            if (state != ncclInProgress) break;
            if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > time_limit_.value) {
                ncclCommAbort(communicator);
                throw core::MachineError(fmt::format("rank {} waited longer than {} in {} for the other ranks of {}", communicator_.rank(),
                                                     core::format(time_limit_), what, words_of(members)));
            }
            std::this_thread::yield();
        }
        check(state, what);
    }

    // NCCL connects two ranks at their first message, and the host waits for both: better here, where both are, than inside a step.
    void connect(int number, int position) {
        if (groups_[static_cast<std::size_t>(number)].members.size() != 2) return;
        void* word = machine_->allocate(256);
        const Stream stream = machine_->stream(schedule::Stream::compute);
        if (position == 0) send(stream, number, 1, word, sizeof(float), 0);
        else receive(stream, number, 0, word, sizeof(float), 0);
        const Event done = machine_->make_event(false);
        machine_->record(done, stream);
        const auto begin = std::chrono::steady_clock::now();
        while (!machine_->has_happened(done)) {
            check_errors();
            if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > time_limit_.value) {
                abort();
                throw core::MachineError(fmt::format("rank {} waited longer than {} for its first message with ranks {}", communicator_.rank(),
                                                     core::format(time_limit_), words_of(groups_[static_cast<std::size_t>(number)].members)));
            }
            std::this_thread::yield();
        }
        machine_->release(word);
    }

    int position_in(const std::vector<int>& members) const {
        for (std::size_t i = 0; i < members.size(); ++i)
            if (members[i] == communicator_.rank()) return static_cast<int>(i);
        core::require(false, "a rank makes groups that it is in");
        return -1;
    }
    // This member's piece of an array that the group shares.
    void* piece(int group, core::DataType type, void* data, std::size_t count) const {
        const int position = position_in(groups_[static_cast<std::size_t>(group)].members);
        return static_cast<char*>(data) + static_cast<std::size_t>(position) * count * static_cast<std::size_t>(core::size_of(type).value);
    }
    std::size_t groups_of(const std::vector<int>& members) const {
        std::size_t count = 0;
        for (const Group& group : groups_) count += group.members == members;
        return count;
    }
    static Tag hash_of(const std::vector<int>& members) {
        std::uint32_t hash = 2166136261u;  // FNV-1a
        for (const int member : members) hash = (hash ^ static_cast<std::uint32_t>(member)) * 16777619u;
        return hash;
    }
    static std::string words_of(const std::vector<int>& members) {
        std::string words;
        for (std::size_t i = 0; i < members.size() && i < 8; ++i) words += (i ? ", " : "") + std::to_string(members[i]);
        return members.size() > 8 ? words + fmt::format(", ... ({})", members.size()) : words;
    }

    Communicator& communicator_;
    const std::shared_ptr<Machine> machine_;  // outlives the communicators
    const core::Seconds time_limit_;
    std::vector<Group> groups_;
};

}  // namespace

std::shared_ptr<Exchange> open_exchange(Communicator& communicator, const std::shared_ptr<Machine>& machine, core::Seconds time_limit) {
    return std::make_shared<NcclExchange>(communicator, machine, time_limit);
}

}  // namespace exec::cuda
