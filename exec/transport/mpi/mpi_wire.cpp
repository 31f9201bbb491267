// Frames over MPI. Every frame is a message with tag 0 that holds its header and, when it is short, its
// payload; a long payload follows by itself, straight from the sender's array to the receiver's,
// under a tag that the header announces. All calls are nonblocking and made by one thread at a time.
#include "exec/transport/mpi/mpi_wire.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <map>

#include <fmt/core.h>
#include <mpi.h>

#include "core/errors.h"
#include "core/index/integers.h"

namespace exec::transport::mpi {

namespace {

using transport::FrameHeader;
using transport::FrameKind;
using transport::Incoming;

void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw core::MachineError(fmt::format("{}: {}", call, std::string(text, length)));
}
#define SMSIM_MPI(call) check(call, #call)

struct Envelope {
    std::uint64_t kind = 0, tag = 0, bytes = 0,
                  payload_tag = 0;  // payload_tag 0: the payload is in this message
};

// Up to here a copy is cheaper than a second message: an exchange in shared memory takes some 0.5 us, a copy
// of 8 KiB as long.
constexpr std::size_t most_inline_bytes = 8192;
constexpr std::size_t envelope_message = sizeof(Envelope) + most_inline_bytes;
constexpr int open_receives = 16;
constexpr int payload_tags = 1 << 15;  // below MPI_TAG_UB's guaranteed 32767: tags 1 ... 32767
constexpr std::size_t largest_message = std::size_t(1) << 30;
// Between hosts a payload goes in parts below Open MPI's eager limit of 64 KiB (btl_tcp_eager_limit): larger
// messages wait for the receiver's answer, and on a slow line that answer queues behind what the receiver
// itself sends (4 x 2 ranks at 100 Mbit/s: all-reduces of 3.4 MB in 500 ms instead of 350).
constexpr std::size_t largest_message_between_hosts = 60 * 1024;

class MpiWire : public transport::Wire {
public:
    // `hosts` by rank.
    MpiWire(MPI_Comm communicator, int rank, int size, const std::vector<std::string>& hosts)
        : communicator_(communicator), rank_(rank), size_(size), next_payload_tag_(size, 1) {
        for (const std::string& host : hosts)
            part_.push_back(host == hosts[rank] ? largest_message : largest_message_between_hosts);
        receives_.resize(open_receives);
        for (OpenReceive& receive : receives_) {
            receive.message.resize(envelope_message);
            post(receive);
        }
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }

    void send(Receiver& receiver, int peer, const FrameHeader& header, std::span<const std::byte> payload,
              Communicator::Ticket ticket) override {
        if (is_over_) return;
        Envelope envelope{static_cast<std::uint64_t>(header.kind), header.tag, header.bytes, 0};
        const bool is_inline = payload.size() <= most_inline_bytes;
        if (!is_inline) {
            int& next = next_payload_tag_[peer];
            envelope.payload_tag = next;
            next = next + 1 < payload_tags ? next + 1 : 1;
        }
        Sending& first = sendings_.emplace_back();
        first.own.resize(sizeof envelope + (is_inline ? payload.size() : 0));
        std::memcpy(first.own.data(), &envelope, sizeof envelope);
        if (is_inline && !payload.empty())
            std::memcpy(first.own.data() + sizeof envelope, payload.data(), payload.size());
        SMSIM_MPI(MPI_Isend(first.own.data(), core::count_of(first.own), MPI_BYTE, peer, 0, communicator_,
                            &first.request));
        if (is_inline) {
            if (ticket) receiver.sent(ticket);
            return;
        }
        std::vector<std::byte> copy;
        if (!ticket) {
            copy.assign(payload.begin(), payload.end());
            payload = copy;
        }
        const std::size_t most = part_[peer];
        for (std::size_t at = 0; at < payload.size(); at += most) {
            const std::size_t bytes = std::min(most, payload.size() - at);
            Sending& part = sendings_.emplace_back();
            SMSIM_MPI(MPI_Isend(payload.data() + at, static_cast<int>(bytes), MPI_BYTE, peer,
                                static_cast<int>(envelope.payload_tag), communicator_, &part.request));
            // Messages of one tag end in order.
            if (at + bytes == payload.size()) {
                part.ticket = ticket;
                part.own = std::move(copy);
            }
        }
    }

    bool progress(Receiver& receiver) override {
        bool has_moved = false;
        if (is_over_) return false;
        for (auto it = sendings_.begin(); it != sendings_.end();) {
            int is_done = 0;
            SMSIM_MPI(MPI_Test(&it->request, &is_done, MPI_STATUS_IGNORE));
            if (!is_done) {
                ++it;
                continue;
            }
            has_moved = true;
            if (it->ticket) receiver.sent(it->ticket);
            it = sendings_.erase(it);
        }
        for (auto it = arrivals_.begin(); it != arrivals_.end();) {
            int is_done = 0;
            SMSIM_MPI(MPI_Testall(core::count_of(it->requests), it->requests.data(), &is_done,
                                  MPI_STATUSES_IGNORE));
            if (!is_done) {
                ++it;
                continue;
            }
            has_moved = true;
            Incoming& incoming = *it->incoming;
            it = arrivals_.erase(it);
            receiver.complete(incoming);
        }
        // Receives are matched in the order they were posted, so the oldest is looked at first and frames of
        // a rank keep their order.
        for (int n = 0; n < open_receives; ++n) {
            OpenReceive& open = receives_[oldest_];
            int is_done = 0;
            MPI_Status status;
            SMSIM_MPI(MPI_Test(&open.request, &is_done, &status));
            if (!is_done) break;
            has_moved = true;
            oldest_ = (oldest_ + 1) % receives_.size();
            take(receiver, open, status);
            post(open);
        }
        return has_moved;
    }

    bool has_unsent() const override { return !is_over_ && (!sendings_.empty() || !arrivals_.empty()); }

    // MPI cannot take back what it has begun: nothing of it is called any more, and mpirun ends the job with
    // this process.
    void abandon(Receiver&) override { is_over_ = true; }

    void limit_data(std::uint64_t most_bytes) override { most_data_bytes_ = most_bytes; }

    void close() override {
        if (is_over_) return;
        is_over_ = true;
        for (OpenReceive& open : receives_) {
            MPI_Cancel(&open.request);
            MPI_Wait(&open.request, MPI_STATUS_IGNORE);
        }
        receives_.clear();
        MPI_Comm_free(&communicator_);
        MPI_Finalize();
    }

private:
    struct OpenReceive {
        std::vector<std::byte> message;
        MPI_Request request = MPI_REQUEST_NULL;
    };
    struct Sending {
        MPI_Request request = MPI_REQUEST_NULL;
        Communicator::Ticket ticket = 0;
        std::vector<std::byte> own;
    };
    struct Arriving {
        Incoming* incoming = nullptr;
        std::vector<MPI_Request> requests;
    };

    void post(OpenReceive& open) {
        SMSIM_MPI(MPI_Irecv(open.message.data(), core::count_of(open.message), MPI_BYTE, MPI_ANY_SOURCE, 0,
                            communicator_, &open.request));
    }

    void take(Receiver& receiver, const OpenReceive& open, const MPI_Status& status) {
        Envelope envelope;
        std::memcpy(&envelope, open.message.data(), sizeof envelope);
        if (envelope.bytes > most_data_bytes_)
            throw core::MachineError(
                fmt::format("rank {} announces a message of {} bytes, where none has more "
                            "than {}",
                            status.MPI_SOURCE, envelope.bytes, most_data_bytes_));
        Incoming& incoming = receiver.begin(
            status.MPI_SOURCE, {static_cast<FrameKind>(envelope.kind), envelope.tag, envelope.bytes});
        if (envelope.payload_tag == 0) {
            if (envelope.bytes > 0)
                std::memcpy(incoming.data, open.message.data() + sizeof envelope, envelope.bytes);
            receiver.complete(incoming);
            return;
        }
        Arriving& arriving = arrivals_.emplace_back();
        arriving.incoming = &incoming;
        const std::size_t most = part_[status.MPI_SOURCE];
        arriving.requests.reserve(envelope.bytes / most + 1);
        for (std::size_t at = 0; at < envelope.bytes; at += most) {
            const std::size_t bytes = std::min<std::size_t>(most, envelope.bytes - at);
            SMSIM_MPI(MPI_Irecv(incoming.data + at, static_cast<int>(bytes), MPI_BYTE, status.MPI_SOURCE,
                                static_cast<int>(envelope.payload_tag), communicator_,
                                &arriving.requests.emplace_back(MPI_REQUEST_NULL)));
        }
    }

    MPI_Comm communicator_;
    const int rank_, size_;
    std::vector<std::size_t> part_;      // by peer: the largest message
    std::vector<OpenReceive> receives_;  // a ring
    std::size_t oldest_ = 0;
    bool is_over_ = false;
    std::uint64_t most_data_bytes_ = transport::most_data_bytes_at_first;
    std::list<Sending> sendings_;
    std::list<Arriving> arrivals_;
    std::vector<int> next_payload_tag_;
};

}  // namespace

bool is_available() { return true; }

std::unique_ptr<transport::Wire> start(std::vector<std::string>& hosts) {
    int provided = 0;
    SMSIM_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
    if (provided < MPI_THREAD_SERIALIZED)
        throw core::MachineError("MPI_Init_thread: this MPI does not allow calls from more than one thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = 0, size = 1;
    SMSIM_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    SMSIM_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));

    // mpirun may deal ranks out in turn (--map-by node); a plan wants consecutive ranks on one host.
    char name[MPI_MAX_PROCESSOR_NAME] = {};
    int length = 0;
    SMSIM_MPI(MPI_Get_processor_name(name, &length));
    std::vector<char> names(size * sizeof name);
    SMSIM_MPI(
        MPI_Allgather(name, sizeof name, MPI_CHAR, names.data(), sizeof name, MPI_CHAR, MPI_COMM_WORLD));
    std::vector<std::string> by_launch;
    std::vector<int> host_of, order;
    std::map<std::string, int> first_seen;
    for (int r = 0; r < size; ++r) {
        by_launch.emplace_back(names.data() + r * sizeof name);
        host_of.push_back(first_seen.emplace(by_launch.back(), core::count_of(first_seen)).first->second);
        order.push_back(r);
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return host_of[a] < host_of[b]; });
    const auto new_rank = static_cast<int>(std::find(order.begin(), order.end(), rank) - order.begin());
    hosts.clear();
    for (const int r : order) hosts.push_back(by_launch[r]);

    MPI_Comm communicator = MPI_COMM_NULL;
    SMSIM_MPI(MPI_Comm_split(MPI_COMM_WORLD, 0, new_rank, &communicator));
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    return std::make_unique<MpiWire>(communicator, new_rank, size, hosts);
}

}  // namespace exec::transport::mpi
