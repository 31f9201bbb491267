#include "exec/cpu/thread_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu {

namespace {

struct Message {
    int from = 0;
    Tag tag = 0;
    std::span<const float> data;
    std::shared_ptr<const void> keeper;
    Communicator::Ticket ticket = 0;
};

struct Mailbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::list<Message> messages;
    std::atomic<std::uint64_t> arrivals{0};
};

// Sends of one rank that have been taken, in any order.
struct Outbox {
    std::mutex mutex;
    std::condition_variable taken;
    std::vector<Communicator::Ticket> open;
    std::atomic<std::uint64_t> taken_count{0};
    int readers = 0;  // ranks that read this one's arrays just now
    Communicator::Ticket next = 1;
};

// Polling pays while the peer is about to act; a sleeping thread takes some 50 us to wake.
constexpr int polls = 20000;

}  // namespace

struct ThreadNetwork::State {
    State(int ranks, core::Seconds limit, bool spinning)
        : mailboxes(ranks), outboxes(ranks), activities(ranks), time_limit(limit), spins(spinning) {}

    std::vector<Mailbox> mailboxes;
    std::vector<Outbox> outboxes;
    std::vector<std::atomic<const std::string*>> activities;
    const core::Seconds time_limit;
    const bool spins;
    std::atomic<bool> stopped{false};
    std::mutex reason_mutex;
    std::string reason;
};

ThreadNetwork::ThreadNetwork(int ranks, core::Seconds time_limit, bool spins)
    : state_(std::make_unique<State>(ranks, time_limit, spins)) {}

ThreadNetwork::~ThreadNetwork() = default;

void ThreadNetwork::stop(const std::string& reason) {
    {
        const std::lock_guard lock(state_->reason_mutex);
        if (state_->reason.empty()) state_->reason = reason;
    }
    state_->stopped = true;
    for (Mailbox& box : state_->mailboxes) {
        const std::lock_guard lock(box.mutex);
        box.arrived.notify_all();
    }
    for (Outbox& box : state_->outboxes) {
        const std::lock_guard lock(box.mutex);
        box.taken.notify_all();
    }
}

class ThreadCommunicator : public Communicator {
public:
    ThreadCommunicator(ThreadNetwork& network, int rank)
        : network_(network), state_(*network.state_), rank_(rank) {}

    int rank() const override { return rank_; }
    int size() const override { return core::count_of(state_.mailboxes); }

    Ticket start_send(int peer, Tag tag, std::span<const float> data,
                      std::shared_ptr<const void> keeper) override {
        Outbox& outbox = state_.outboxes[rank_];
        Ticket ticket;
        {
            const std::lock_guard lock(outbox.mutex);
            ticket = outbox.next++;
            outbox.open.push_back(ticket);
        }
        Mailbox& mailbox = state_.mailboxes[peer];
        {
            const std::lock_guard lock(mailbox.mutex);
            if (state_.stopped)
                throw_stopped();  // this rank's other thread may have given up: nothing may follow what it
                                  // has taken back
            mailbox.messages.push_back({rank_, tag, data, std::move(keeper), ticket});
            mailbox.arrivals.fetch_add(1, std::memory_order_release);
        }
        mailbox.arrived.notify_all();  // a rank may wait in two threads
        return ticket;
    }

    void finish(Ticket ticket) override {
        Outbox& outbox = state_.outboxes[rank_];
        const auto is_taken = [&] {
            return std::find(outbox.open.begin(), outbox.open.end(), ticket) == outbox.open.end();
        };
        wait_until(outbox.mutex, outbox.taken, outbox.taken_count, is_taken,
                   [&] { return fmt::format("for the receiver of its message {}", ticket); });
    }

    void receive(int peer, Tag tag, std::span<float> into, Arrival arrival) override {
        Mailbox& mailbox = state_.mailboxes[rank_];
        Reading reading(state_.outboxes[peer]);
        Message message;  // goes before `reading` does: its keeper may need the sender
        const auto has_come = [&] {
            for (auto it = mailbox.messages.begin(); it != mailbox.messages.end(); ++it)
                if (it->from == peer && it->tag == tag) {
                    reading.begin();
                    message = std::move(*it);
                    mailbox.messages.erase(it);
                    return true;
                }
            return false;
        };
        wait_until(mailbox.mutex, mailbox.arrived, mailbox.arrivals, has_come,
                   [&] { return fmt::format("for a message of rank {}", peer); });
        core::require(message.data.size() == into.size(),
                      "sender and receiver of a message agree on its length");
        if (arrival == Arrival::adds)
            kernels().accumulate(std::ssize(into), message.data.data(), into.data());
        else std::memcpy(into.data(), message.data.data(), into.size_bytes());
        message.keeper.reset();
        reading.end(message.ticket);
    }

    // The arrays of this rank's sends are read by others: what nobody has begun to read is taken back, what
    // somebody reads is waited for.
    void give_up(const std::string& reason) override {
        network_.stop(reason);
        for (Mailbox& mailbox : state_.mailboxes) {
            std::list<Message> unread;  // let go without the lock
            const std::lock_guard lock(mailbox.mutex);
            for (auto it = mailbox.messages.begin(); it != mailbox.messages.end();) {
                const auto next = std::next(it);
                if (it->from == rank_) unread.splice(unread.end(), mailbox.messages, it);
                it = next;
            }
        }
        Outbox& outbox = state_.outboxes[rank_];
        std::unique_lock lock(outbox.mutex);
        outbox.taken.wait(lock, [&] { return outbox.readers == 0; });
    }

    void set_activity(const std::string* activity) override { state_.activities[rank_] = activity; }

private:
    // Counts this rank among those that read a sender's arrays. Begun under the lock of the mailbox that held
    // the message: who empties mailboxes either finds the message or its reader.
    class Reading {
    public:
        explicit Reading(Outbox& sender) : sender_(sender) {}
        Reading(const Reading&) = delete;
        Reading& operator=(const Reading&) = delete;
        ~Reading() { end(0); }
        void begin() {
            const std::lock_guard lock(sender_.mutex);
            ++sender_.readers;
            is_counted_ = true;
        }
        // Of the message with this ticket; 0 = it could not be taken.
        void end(Ticket ticket) {
            if (!is_counted_) return;
            is_counted_ = false;
            {
                const std::lock_guard lock(sender_.mutex);
                --sender_.readers;
                std::erase(sender_.open, ticket);
                sender_.taken_count.fetch_add(1, std::memory_order_release);
            }
            sender_.taken.notify_all();
        }

    private:
        Outbox& sender_;
        bool is_counted_ = false;
    };

    [[noreturn]] void throw_stopped() {
        const std::lock_guard lock(state_.reason_mutex);
        throw Stopped(state_.reason);
    }

    // `holds` is not asked again once it has said yes: a message is taken by asking.
    template <class Condition, class Words>
    void wait_until(std::mutex& mutex, std::condition_variable& changed,
                    const std::atomic<std::uint64_t>& changes, const Condition& holds,
                    const Words& what_for) {
        std::unique_lock lock(mutex);
        if (holds()) return;
        if (state_.spins) {
            for (int round = 0; round < polls; ++round) {
                const std::uint64_t seen = changes.load(std::memory_order_acquire);
                lock.unlock();
                while (round < polls && changes.load(std::memory_order_acquire) == seen &&
                       !state_.stopped.load(std::memory_order_relaxed)) {
                    ++round;
                    relax();
                }
                lock.lock();
                if (holds()) return;
                if (state_.stopped) break;
            }
        }
        const auto deadline = std::chrono::steady_clock::now() +
                              std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                  std::chrono::duration<double>(state_.time_limit.value));
        bool is_late = false;
        while (!holds()) {
            if (state_.stopped) throw_stopped();
            if (is_late) {
                lock.unlock();
                std::string text =
                    fmt::format("rank {} waited {} {}", rank_, core::format(state_.time_limit), what_for());
                for (std::size_t r = 0; r < state_.activities.size(); ++r)
                    if (const std::string* activity = state_.activities[r])
                        text += fmt::format("\n  rank {} is at: {}", r, *activity);
                network_.stop(text);
                throw core::MachineError(text);
            }
            is_late = changed.wait_until(lock, deadline) == std::cv_status::timeout;
        }
    }

    static void relax() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    ThreadNetwork& network_;
    ThreadNetwork::State& state_;
    const int rank_;
};

std::unique_ptr<Communicator> ThreadNetwork::communicator(int rank) {
    return std::make_unique<ThreadCommunicator>(*this, rank);
}

}  // namespace exec::cpu
