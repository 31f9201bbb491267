// How ranks exchange arrays. Threads perform it in exec/cpu; the interface is what MPI offers, so processes
// can.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/errors.h"

namespace exec {

// Messages between two ranks are matched by tag, equal tags in order.
using Tag = std::uint64_t;

enum class Arrival { overwrites, adds };

// Another rank failed or gave up: this one stops without a verdict of its own.
class Stopped : public core::MachineError {
public:
    using core::MachineError::MachineError;
};

class Communicator {
public:
    virtual ~Communicator() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    // Begins a send and returns at once. `data` must not change until finish(ticket) has returned; a send
    // without a ticket to wait for is given `keeper`, which is let go when the data have been taken.
    using Ticket = std::uint64_t;
    virtual Ticket start_send(int peer, Tag tag, std::span<const float> data,
                              std::shared_ptr<const void> keeper) = 0;
    virtual void finish(Ticket ticket) = 0;
    // Waits for the message; a length that differs is a broken promise. Waiting longer than the time limit is
    // a core::MachineError that names the rank that waits, its peer and the message; it stops every other
    // rank.
    virtual void receive(int peer, Tag tag, std::span<float> into, Arrival arrival) = 0;
    // What this thread of the rank is at, for that message. The text stays valid until another one, or
    // null, is set.
    virtual void set_activity(const std::string* activity) = 0;
    // This thread works beside the rank's own: it receives beyond the time limit as long as the sender's
    // process answers, as disks may be slow, and when a wait of it fails it gives up at once, before its
    // arrays are gone, as the rank itself may not communicate for a while.
    virtual void stand_alone(bool alone) { static_cast<void>(alone); }
    // This rank has failed for that reason (or was stopped): the others are told, and the arrays of its open
    // sends and receives are not touched any more.
    virtual void give_up(const std::string& reason) { static_cast<void>(reason); }
};

}  // namespace exec
