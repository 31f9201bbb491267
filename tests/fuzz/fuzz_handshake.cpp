// What a stranger may say to a rank that listens: the listener's side of the handshake and the frames behind
// it. Nobody is accepted who has not the token, and nothing that is said makes the reader take memory for it.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <span>
#include <string>

#include "exec/transport/tcp/handshake.h"
#include "exec/transport/tcp/socket_wire.h"

namespace {

using exec::transport::FrameHeader;
using exec::transport::Incoming;

constexpr std::uint64_t most_bytes = 4096;  // of a message of data, in this fuzzing alone

class Receiver : public exec::transport::Wire::Receiver {
public:
    Incoming& begin(int peer, const FrameHeader& header) override {
        // Control frames are bounded by the wire itself, at 16 MiB.
        if (header.kind == exec::transport::FrameKind::data && header.bytes > most_bytes) std::abort();
        Frame& frame = frames_.emplace_back();
        frame.from = peer;
        frame.header = header;
        frame.own.resize(header.bytes);
        frame.data = frame.own.data();
        return frame;
    }
    void complete(Incoming& incoming) override {
        incoming.is_complete = true;
        frames_.remove_if([&](const Frame& frame) { return &frame == &incoming; });
    }
    void sent(exec::Communicator::Ticket) override {}
    void lost(int, const std::string&) override { is_lost = true; }
    bool is_lost = false;

private:
    struct Frame : Incoming {
        std::vector<std::byte> own;
    };
    std::list<Frame> frames_;
};

// In parts, as a network brings them: their lengths are the first byte's bits.
void shake_hands(std::span<const std::byte> said, unsigned int parts) {
    static const std::string token = "correct horse battery staple";
    exec::transport::ListenerHandshake handshake({std::as_bytes(std::span(token)), {}, 0, {}, {}});
    for (unsigned int i = 0; !said.empty() && handshake.wanted() > 0; ++i) {
        const std::size_t part = parts >> (i % 8) & 1 ? 1 : said.size(),
                          bytes = std::min({part, said.size(), handshake.wanted()});
        const std::vector<std::byte> reply = handshake.take(said.first(bytes));
        if (reply.size() > sizeof(exec::transport::Greeting)) std::abort();
        said = said.subspan(bytes);
    }
    if (handshake.report()) std::abort();
    if (handshake.wanted() == 0 && handshake.refusal().empty()) std::abort();
}

void read_frames(std::span<const std::byte> said) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return;
    Receiver receiver;
    {
        const auto wire = exec::transport::make_socket_wire(0, {std::nullopt, ends[0]});
        wire->limit_data(most_bytes);
        // What fits into the socket at once; the rest is of no other kind.
        const ssize_t sent = ::send(ends[1], said.data(), said.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        ::close(ends[1]);
        while (sent > 0 && !receiver.is_lost && wire->progress(receiver)) {
        }
        if (sent > 0 && !receiver.is_lost) std::abort();  // its end has come, and must be noticed
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::span<const std::byte> said = std::as_bytes(std::span(data, size)).subspan(1);
    shake_hands(said, data[0]);
    read_frames(said);
    return 0;
}
