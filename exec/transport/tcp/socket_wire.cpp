#include "exec/transport/tcp/socket_wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "exec/file_descriptor.h"

namespace exec::transport {

namespace {

struct WireHeader {
    std::uint32_t magic = 0x534D5031;  // "SMP1"
    std::uint32_t kind = 0;
    std::uint64_t tag = 0, bytes = 0;
};
static_assert(sizeof(WireHeader) == 24);

constexpr std::size_t read_ahead = 64 * 1024;
// Words about failures are no longer.
constexpr std::uint64_t most_control_bytes = std::uint64_t{1} << 24;
// One call does not stay with one peer for longer than this many bytes.
constexpr std::size_t most_bytes_a_turn = 8 * 1024 * 1024;

class SocketWire : public Wire {
public:
    SocketWire(int rank, const std::vector<std::optional<int>>& sockets)
        : rank_(rank), peers_(sockets.size()) {
        for (std::size_t i = 0; i < sockets.size(); ++i) {
            if (!sockets[i]) continue;
            peers_[i].socket = FileDescriptor(*sockets[i]);
            peers_[i].buffer.resize(read_ahead);
        }
    }
    ~SocketWire() override { close(); }

    int rank() const override { return rank_; }
    int size() const override { return core::count_of(peers_); }

    void send(Receiver& receiver, int to, const FrameHeader& header, std::span<const std::byte> payload,
              Communicator::Ticket ticket) override {
        Peer& peer = peers_[to];
        Outgoing& out = peer.queue.emplace_back();
        out.header = {WireHeader{}.magic, static_cast<std::uint32_t>(header.kind), header.tag, header.bytes};
        out.ticket = ticket;
        if (ticket == 0) {
            out.own.assign(payload.begin(), payload.end());
            out.payload = out.own;
        } else {
            out.payload = payload;
        }
        flush(receiver, to);
    }

    bool progress(Receiver& receiver) override {
        polled_.clear();
        polled_ranks_.clear();
        for (const std::int32_t i : core::indices(peers_)) {
            if (!peers_[i].socket.is_open()) continue;
            polled_.push_back({peers_[i].socket.get(),
                               static_cast<short>(POLLIN | (peers_[i].queue.empty() ? 0 : POLLOUT)), 0});
            polled_ranks_.push_back(i);
        }
        if (::poll(polled_.data(), polled_.size(), 0) <= 0) return false;
        bool has_moved = false;
        for (std::size_t i = 0; i < polled_.size(); ++i) {
            if (polled_[i].revents & (POLLIN | POLLHUP | POLLERR))
                has_moved |= read(receiver, polled_ranks_[i]);
            if (polled_[i].revents & POLLOUT) has_moved |= flush(receiver, polled_ranks_[i]);
        }
        return has_moved;
    }

    bool has_unsent() const override {
        return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
            return peer.socket.is_open() && (!peer.queue.empty() || peer.incoming);
        });
    }

    void abandon(Receiver& receiver) override {
        for (Peer& peer : peers_) {
            std::deque<Outgoing> kept;
            for (Outgoing& out : peer.queue) {
                if (out.ticket) receiver.sent(out.ticket);
                const bool is_control = out.header.kind != static_cast<std::uint32_t>(FrameKind::data);
                // A frame begun must end, or the next could not be told from it.
                if (!is_control && out.written == 0) continue;
                Outgoing& copy = kept.emplace_back();
                copy.header = out.header;
                copy.written = out.written;
                copy.own.assign(out.payload.begin(), out.payload.end());
                copy.payload = copy.own;
            }
            peer.queue = std::move(kept);
        }
    }

    void limit_data(std::uint64_t most_bytes) override { most_data_bytes_ = most_bytes; }

    void close() override {
        for (Peer& peer : peers_) peer.socket.close();
    }

private:
    struct Outgoing {
        WireHeader header;
        std::span<const std::byte> payload;
        std::vector<std::byte> own;
        std::size_t written = 0;  // header included
        Communicator::Ticket ticket = 0;
    };
    struct Peer {
        FileDescriptor socket;
        std::deque<Outgoing> queue;
        std::vector<std::byte> buffer;  // read ahead: [begin, end) is not used yet
        std::size_t begin = 0, end = 0;
        Incoming* incoming = nullptr;  // whose payload comes now
        std::size_t received = 0;      // of it
    };

    void lose(Receiver& receiver, int rank, const std::string& why) {
        Peer& peer = peers_[rank];
        if (!peer.socket.is_open()) return;
        peer.socket.close();
        // What was queued for it is dropped; the arrays may be freed.
        std::deque<Outgoing> dropped;
        dropped.swap(peer.queue);
        for (const Outgoing& out : dropped)
            if (out.ticket) receiver.sent(out.ticket);
        receiver.lost(rank, why);
    }

    bool flush(Receiver& receiver, int to) {
        Peer& peer = peers_[to];
        bool has_moved = false;
        std::size_t moved = 0;
        while (peer.socket.is_open() && !peer.queue.empty() && moved < most_bytes_a_turn) {
            Outgoing& out = peer.queue.front();
            iovec parts[2];
            int count = 0;
            if (out.written < sizeof out.header)
                parts[count++] = {reinterpret_cast<std::byte*>(&out.header) + out.written,
                                  sizeof out.header - out.written};
            const std::size_t of_payload =
                out.written > sizeof out.header ? out.written - sizeof out.header : 0;
            if (of_payload < out.payload.size())
                parts[count++] = {const_cast<std::byte*>(out.payload.data()) + of_payload,
                                  out.payload.size() - of_payload};
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = count;
            const ssize_t written = ::sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (written < 0) {
                if (errno == EINTR) continue;
                if (errno == EAGAIN || errno == EWOULDBLOCK) break;
                // The reader learns why: a peer that stopped has told so before it closed.
                const int error = errno;
                read(receiver, to);
                if (peer.socket.is_open())
                    lose(receiver, to, fmt::format("sending to it failed: {}", std::strerror(error)));
                return true;
            }
            has_moved = true;
            moved += written;
            out.written += written;
            if (out.written < sizeof out.header + out.payload.size()) continue;
            const Communicator::Ticket ticket = out.ticket;
            peer.queue.pop_front();
            if (ticket) receiver.sent(ticket);
        }
        return has_moved;
    }

    // What to do with the number of bytes a recv() returned: true when reading may go on.
    bool is_alive(Receiver& receiver, int from, ssize_t bytes) {
        if (bytes > 0) return true;
        if (bytes == 0) {
            lose(receiver, from, "its connection closed (the process ended)");
            return false;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            lose(receiver, from, fmt::format("its connection failed: {}", std::strerror(errno)));
        return false;
    }

    bool read(Receiver& receiver, int from) {
        Peer& peer = peers_[from];
        bool has_moved = false;
        std::size_t moved = 0;
        // A turn ends only where the rest must come through the socket, which alone is waited for: what was
        // read ahead may be all that the peer sends.
        const auto has_read_ahead = [&] {
            return peer.incoming ? peer.begin < peer.end : peer.end - peer.begin >= sizeof(WireHeader);
        };
        while (peer.socket.is_open() && (moved < most_bytes_a_turn || has_read_ahead())) {
            if (peer.incoming) {
                const std::size_t rest = peer.incoming->header.bytes - peer.received;
                if (peer.begin < peer.end) {
                    const std::size_t bytes = std::min(rest, peer.end - peer.begin);
                    std::memcpy(peer.incoming->data + peer.received, peer.buffer.data() + peer.begin, bytes);
                    peer.begin += bytes;
                    peer.received += bytes;
                } else if (rest > 0) {
                    const ssize_t bytes =
                        ::recv(peer.socket.get(), peer.incoming->data + peer.received, rest, MSG_DONTWAIT);
                    if (!is_alive(receiver, from, bytes)) return has_moved;
                    peer.received += bytes;
                    moved += bytes;
                }
                has_moved = true;
                if (peer.received == peer.incoming->header.bytes) {
                    Incoming& incoming = *peer.incoming;
                    peer.incoming = nullptr;
                    receiver.complete(incoming);
                }
                continue;
            }
            if (peer.end - peer.begin < sizeof(WireHeader)) {
                std::memmove(peer.buffer.data(), peer.buffer.data() + peer.begin, peer.end - peer.begin);
                peer.end -= peer.begin;
                peer.begin = 0;
                const ssize_t bytes = ::recv(peer.socket.get(), peer.buffer.data() + peer.end,
                                             peer.buffer.size() - peer.end, MSG_DONTWAIT);
                if (!is_alive(receiver, from, bytes)) return has_moved;
                peer.end += bytes;
                moved += bytes;
                has_moved = true;
                continue;
            }
            WireHeader header;
            std::memcpy(&header, peer.buffer.data() + peer.begin, sizeof header);
            peer.begin += sizeof header;
            const bool is_control = header.kind != static_cast<std::uint32_t>(FrameKind::data);
            if (header.magic != WireHeader{}.magic ||
                header.kind > static_cast<std::uint32_t>(FrameKind::goodbye)) {
                lose(receiver, from, "it does not speak this program's protocol");
                return true;
            }
            // Before anything is allocated for it.
            if (const std::uint64_t most = is_control ? most_control_bytes : most_data_bytes_;
                header.bytes > most) {
                lose(receiver, from,
                     fmt::format("it announces a message of {} bytes, where none has more than {}",
                                 header.bytes, most));
                return true;
            }
            peer.incoming =
                &receiver.begin(from, {static_cast<FrameKind>(header.kind), header.tag, header.bytes});
            peer.received = 0;
            has_moved = true;
            if (header.bytes == 0) {
                Incoming& incoming = *peer.incoming;
                peer.incoming = nullptr;
                receiver.complete(incoming);
            }
        }
        return has_moved;
    }

    const int rank_;
    std::uint64_t most_data_bytes_ = most_data_bytes_at_first;
    std::vector<Peer> peers_;
    std::vector<pollfd> polled_;
    std::vector<int> polled_ranks_;
};

}  // namespace

std::unique_ptr<Wire> make_socket_wire(int rank, const std::vector<std::optional<int>>& sockets) {
    return std::make_unique<SocketWire>(rank, sockets);
}

}  // namespace exec::transport
