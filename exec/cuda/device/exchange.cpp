// NCCL: a communicator for each group, ids carried by the ranks' own messages.
//
// Communicators are blocking: with non-blocking ones NCCL starts a thread for every launch. What could hold
// the host for ever is watched instead: making a communicator runs in a thread of its own, which is left
// behind when others do not come; a launch that does not return is ended by aborting every communicator.
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/cuda/device/library_check.cuh"
#include "exec/cuda/device/open.h"

namespace exec::cuda {

namespace {

ncclDataType_t library_type(core::DataType type) {
    switch (type) {
        case core::DataType::fp32:
        case core::DataType::tf32: return ncclFloat32;
        case core::DataType::bf16: return ncclBfloat16;
        case core::DataType::fp16: return ncclFloat16;
        case core::DataType::int64: return ncclInt64;
        case core::DataType::fp8: break;
    }
    throw core::InternalError(fmt::format("ranks exchange no arrays of {}", core::name_of(type)));
}

// Of messages that carry ids: of no instruction (rank_transfers.cpp has bit 63 for collectives, barriers bit
// 62).
constexpr Tag id_tag = Tag(1) << 61;

class NcclExchange : public Exchange {
public:
    NcclExchange(Communicator& communicator, std::shared_ptr<Machine> machine, core::Seconds time_limit)
        : communicator_(communicator), machine_(std::move(machine)), time_limit_(time_limit) {
        // Connections are made with the communicator, not in the first step (NCCL's documentation of
        // NCCL_RUNTIME_CONNECT, since 2.22).
        setenv("NCCL_RUNTIME_CONNECT", "0", 0);
        watchdog_ = std::thread([this] { watch(); });
    }

    ~NcclExchange() override {
        {
            const std::lock_guard lock(mutex_);
            is_ending_ = true;
        }
        ends_.notify_all();
        watchdog_.join();
        abort();  // destroying would wait for ranks that may be gone
    }

    int make_group(const std::vector<int>& members) override {
        const int position = position_in(members);
        ncclUniqueId id{};
        static_assert(sizeof id % sizeof(float) == 0);
        std::array<float, sizeof id / sizeof(float)> words{};
        // Members make their common groups in one order, so a tag for each pair and count is enough.
        const Tag tag = id_tag | static_cast<Tag>(groups_of(members)) << 32 | hash_of(members);
        if (position == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            std::memcpy(words.data(), &id, sizeof id);
            for (std::size_t i = 1; i < members.size(); ++i)
                communicator_.finish(communicator_.start_send(members[i], tag, words, nullptr));
        } else {
            communicator_.receive(members[0], tag, words, Arrival::overwrites);
            std::memcpy(&id, words.data(), sizeof id);
        }
        const ncclComm_t made = connect_all(members, id, position);
        {
            const std::lock_guard lock(mutex_);
            groups_.push_back({members, made, {}});
        }
        const int number = core::count_of(groups_) - 1;
        connect(number, position);
        return number;
    }

    void all_reduce(Stream stream, int group, core::DataType type, void* data, std::size_t count,
                    bool takes_maximum) override {
        call(group, "ncclAllReduce", [&](ncclComm_t c) {
            return ncclAllReduce(data, data, count, library_type(type), takes_maximum ? ncclMax : ncclSum, c,
                                 on(stream));
        });
    }
    void all_gather(Stream stream, int group, core::DataType type, void* data, std::size_t count) override {
        call(group, "ncclAllGather", [&](ncclComm_t c) {
            return ncclAllGather(piece(group, type, data, count), data, count, library_type(type), c,
                                 on(stream));
        });
    }
    void reduce_scatter(Stream stream, int group, core::DataType type, void* data,
                        std::size_t count) override {
        call(group, "ncclReduceScatter", [&](ncclComm_t c) {
            return ncclReduceScatter(data, piece(group, type, data, count), count, library_type(type),
                                     ncclSum, c, on(stream));
        });
    }
    void broadcast(Stream stream, int group, core::DataType type, void* data, std::size_t count) override {
        call(group, "ncclBroadcast", [&](ncclComm_t c) {
            return ncclBroadcast(data, data, count, library_type(type), 0, c, on(stream));
        });
    }
    void all_to_all(Stream stream, int group, core::DataType type, const void* from, void* to,
                    std::size_t count) override {
        const std::size_t bytes = count * core::bytes_per_element(type);
        begin_messages();
        for (int peer = 0; peer < core::count_of(groups_[group].members); ++peer) {
            const std::size_t at = static_cast<std::size_t>(peer) * bytes;
            send(stream, group, peer, static_cast<const char*>(from) + at, bytes, 0);
            receive(stream, group, peer, static_cast<char*>(to) + at, bytes, 0);
        }
        end_messages();
    }
    void begin_messages() override {
        check(ncclGroupStart(), "ncclGroupStart");
        is_grouping_ = true;
    }
    void end_messages() override {
        is_grouping_ = false;
        if (groups_.empty()) check(ncclGroupEnd(), "ncclGroupEnd");
        else call(0, "ncclGroupEnd", [](ncclComm_t) { return ncclGroupEnd(); });
    }
    void send(Stream stream, int group, int peer, const void* data, std::size_t bytes, Tag) override {
        call(group, "ncclSend",
             [&](ncclComm_t c) { return ncclSend(data, bytes, ncclInt8, peer, c, on(stream)); });
    }
    void receive(Stream stream, int group, int peer, void* data, std::size_t bytes, Tag) override {
        call(group, "ncclRecv",
             [&](ncclComm_t c) { return ncclRecv(data, bytes, ncclInt8, peer, c, on(stream)); });
    }

    void register_memory(void* memory, std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        for (Group& group : groups_) {
            void* handle = nullptr;
            if (group.communicator &&
                ncclCommRegister(group.communicator, memory, bytes, &handle) == ncclSuccess && handle)
                group.registered.push_back(handle);
        }
    }

    void check() override {
        for (const Group& group : groups_) {
            if (!group.communicator) continue;
            ncclResult_t state = ncclSuccess;
            cuda::check(ncclCommGetAsyncError(group.communicator, &state), "ncclCommGetAsyncError");
            if (state != ncclSuccess && state != ncclInProgress)
                throw core::MachineError(
                    fmt::format("NCCL reports {} ({}) in the group of ranks {}", ncclGetErrorString(state),
                                ncclGetLastError(group.communicator), words_of(group.members)));
        }
    }

    void abort() override {
        const std::lock_guard lock(mutex_);
        abort_all();
    }

private:
    struct Group {
        std::vector<int> members;
        ncclComm_t communicator = nullptr;  // null once aborted
        std::vector<void*> registered;
    };
    using Time = std::chrono::steady_clock;

    static cudaStream_t on(Stream stream) { return static_cast<cudaStream_t>(stream); }
    static void check(ncclResult_t status, const char* what) { cuda::check(status, what); }

    // Under the lock.
    void abort_all() {
        for (Group& group : groups_) {
            // Before the memory goes; aborting a communicator leaves its registrations.
            for (void* handle : group.registered)
                if (group.communicator) ncclCommDeregister(group.communicator, handle);
            group.registered.clear();
            if (group.communicator) ncclCommAbort(group.communicator);
            group.communicator = nullptr;
        }
    }

    core::MachineError late(const char* what, const std::vector<int>& members) const {
        return core::MachineError(fmt::format("rank {} waited longer than {} in {} for the other ranks of {}",
                                              communicator_.rank(), core::format(time_limit_), what,
                                              words_of(members)));
    }

    template <class Launch>
    void call(int group, const char* what, const Launch& launch) {
        const Group& own = groups_[group];
        const ncclComm_t communicator = own.communicator;
        if (!communicator)
            throw core::MachineError(fmt::format("{} after the communicator of ranks {} was given up", what,
                                                 words_of(own.members)));
        {
            const std::lock_guard lock(mutex_);
            call_began_ = Time::now();
        }
        const ncclResult_t status = launch(communicator);
        bool was_late = false;
        {
            const std::lock_guard lock(mutex_);
            call_began_.reset();
            was_late = has_given_up_;
        }
        if (is_grouping_ &&
            (was_late || status != ncclSuccess)) {  // aborting would wait for the end of the group
            is_grouping_ = false;
            ncclGroupEnd();
        }
        if (was_late) throw late(what, own.members);
        check(status, what);
    }

    // Ends calls that do not return.
    void watch() {
        std::unique_lock lock(mutex_);
        while (!is_ending_) {
            ends_.wait_for(lock, std::chrono::milliseconds(200));
            if (has_given_up_ || !call_began_ ||
                std::chrono::duration<double>(Time::now() - *call_began_).count() <= time_limit_.value)
                continue;
            has_given_up_ = true;
            abort_all();
        }
    }

    ncclComm_t connect_all(const std::vector<int>& members, const ncclUniqueId& id, int position) const {
        int device = 0;
        cuda::check(cudaGetDevice(&device), "cudaGetDevice");
        struct Made {
            ncclResult_t status = ncclSuccess;
            ncclComm_t communicator = nullptr;
            std::string words;
        };
        std::promise<Made> promise;
        std::future<Made> future = promise.get_future();
        std::thread([promise = std::move(promise), device, id, position,
                     size = core::count_of(members)]() mutable {
            Made made;
            if (cudaSetDevice(device) != cudaSuccess) made.status = ncclUnhandledCudaError;
            else made.status = ncclCommInitRank(&made.communicator, size, id, position);
            if (made.status != ncclSuccess) made.words = ncclGetLastError(nullptr);
            promise.set_value(std::move(made));
        }).detach();
        if (future.wait_for(std::chrono::duration<double>(time_limit_.value)) != std::future_status::ready)
            throw late("ncclCommInitRank", members);
        const Made made = future.get();
        if (made.status != ncclSuccess)
            throw core::MachineError(fmt::format("ncclCommInitRank failed on device {} for ranks {}: {} ({})",
                                                 device, words_of(members), ncclGetErrorString(made.status),
                                                 made.words));
        return made.communicator;
    }

    // NCCL connects two ranks at their first message, and the host waits for both: better here, where both
    // are, than inside a step.
    void connect(int number, int position) {
        const std::vector<int>& members = groups_[number].members;
        if (members.size() != 2) return;
        void* word = machine_->allocate(256);
        const Stream stream = machine_->stream(schedule::Stream::compute);
        if (position == 0) send(stream, number, 1, word, sizeof(float), 0);
        else receive(stream, number, 0, word, sizeof(float), 0);
        const Event done = machine_->make_event(false);
        machine_->record(done, stream);
        const auto begin = Time::now();
        while (!machine_->has_happened(done)) {
            check();
            if (std::chrono::duration<double>(Time::now() - begin).count() > time_limit_.value) {
                abort();
                throw late("its first message", members);
            }
            std::this_thread::yield();
        }
        machine_->release(word);
    }

    int position_in(const std::vector<int>& members) const {
        for (const std::int32_t i : core::indices(members))
            if (members[i] == communicator_.rank()) return i;
        core::require(false, "a rank makes groups that it is in");
        return -1;
    }
    // This member's piece of an array that the group shares.
    void* piece(int group, core::DataType type, void* data, std::size_t count) const {
        const int position = position_in(groups_[group].members);
        return static_cast<char*>(data) +
               static_cast<std::size_t>(position) * count * core::bytes_per_element(type);
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
        for (std::size_t i = 0; i < members.size() && i < 8; ++i)
            words += (i ? ", " : "") + std::to_string(members[i]);
        return members.size() > 8 ? words + fmt::format(", ... ({})", members.size()) : words;
    }

    Communicator& communicator_;
    const std::shared_ptr<Machine> machine_;  // outlives the communicators
    const core::Seconds time_limit_;
    std::vector<Group> groups_;  // changed under the lock
    std::mutex mutex_;
    std::condition_variable ends_;
    std::optional<Time::time_point> call_began_;
    bool has_given_up_ = false, is_ending_ = false;
    bool is_grouping_ = false;  // between begin_messages and end_messages
    std::thread watchdog_;      // last: it uses the others
};

}  // namespace

std::shared_ptr<Exchange> open_exchange(Communicator& communicator, const std::shared_ptr<Machine>& machine,
                                        core::Seconds time_limit) {
    return std::make_shared<NcclExchange>(communicator, machine, time_limit);
}

}  // namespace exec::cuda
