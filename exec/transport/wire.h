// What carries messages between processes: TCP connections or MPI. A wire moves bytes and knows no meaning;
// process_communicator.h matches and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/transport/communicator.h"

namespace exec::transport {

enum class FrameKind : std::uint32_t {
    data,     // a message of Communicator
    stop,     // payload: why all ranks must stop
    ask,      // what are you at?
    answer,   // payload: the instruction
    goodbye,  // the sender's last frame: that its connection closes then is no failure
};

// What a wire allows before it is told of a Program: texts that ranks compare before they start.
constexpr std::uint64_t most_data_bytes_at_first = std::uint64_t{1} << 26;

struct FrameHeader {
    FrameKind kind = FrameKind::data;
    Tag tag = 0;
    std::uint64_t bytes = 0;
};

// A frame on its way in; the wire writes its payload to `data` and reports when it is complete.
struct Incoming {
    int from = 0;
    FrameHeader header;
    std::byte* data = nullptr;
    bool is_complete = false;
};

class Wire {
public:
    // Takes what the wire brings. Called from progress() and send() only.
    class Receiver {
    public:
        virtual ~Receiver() = default;
        virtual Incoming& begin(int peer, const FrameHeader& header) = 0;
        virtual void complete(Incoming& incoming) = 0;
        virtual void sent(Communicator::Ticket ticket) = 0;
        virtual void lost(int peer, const std::string& why) = 0;
    };

    virtual ~Wire() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    // Queues a frame behind those before it to this peer and moves what moves at once. `payload` stays as it
    // is until receiver.sent(ticket); with ticket 0 it is copied and no sent() follows.
    virtual void send(Receiver& receiver, int peer, const FrameHeader& header,
                      std::span<const std::byte> payload, Communicator::Ticket ticket) = 0;
    // Moves what can be moved without waiting; true when something was.
    virtual bool progress(Receiver& receiver) = 0;
    virtual bool has_unsent() const = 0;
    // Payloads and arrays handed over so far are about to be freed: none of them is touched any more. What
    // cannot be taken back ends the wire.
    virtual void abandon(Receiver& receiver) = 0;
    // No peer sends a longer payload of data: one that announces it is taken for broken.
    virtual void limit_data(std::uint64_t most_bytes) = 0;
    // All frames are exchanged: closes the connections. Without it the destructor tears them down.
    virtual void close() = 0;
};

}  // namespace exec::transport
