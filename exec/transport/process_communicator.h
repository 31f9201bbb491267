// Communicator between processes, over any wire. A thread of its own keeps messages moving while the rank
// computes; a rank that waits moves them itself. What arrives before it is asked for waits in a buffer, so
// senders are never held up by a receiver that computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/units.h"
#include "exec/transport/communicator.h"
#include "exec/transport/wire.h"

namespace exec::transport {

class ProcessCommunicator : public Communicator, private Wire::Receiver {
public:
    // `names` of the ranks for messages: "rank 3 on host b". `spins`: a waiting rank polls without giving up
    // its core (when there is a core for every rank).
    ProcessCommunicator(std::unique_ptr<Wire> wire, std::vector<std::string> names, core::Seconds time_limit,
                        bool spins);
    ~ProcessCommunicator() override;

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    Ticket start_send(int peer, Tag tag, std::span<const float> data,
                      std::shared_ptr<const void> keeper) override;
    void finish(Ticket ticket) override;
    void receive(int peer, Tag tag, std::span<float> into, Arrival arrival) override;
    void set_activity(const std::string* activity) override;
    void stand_alone(bool alone) override;
    void give_up(const std::string& reason) override;

    void set_time_limit(core::Seconds limit);
    // No message that arrives is longer: of what is announced beyond it nothing is taken, and all stop.
    void limit_messages(std::uint64_t most_bytes);
    // A patient rank receives beyond its time limit as long as the sender's process answers: it may be busy
    // with what only one rank does.
    void set_patient(bool patient);
    // A rank that computes in one thread while another waits must not lose its core to the waiting.
    void set_spins(bool spins);
    // Stops every other rank with this reason. The first reason stays. Does nothing after a stop by another
    // rank.
    void stop(const std::string& reason);
    // True on rank 0, and when rank 0 is gone on the lowest rank that is not: the one that tells the user.
    bool is_speaker();
    // All ranks have come to their end: the last frames are exchanged, at most for `patience`.
    void leave(core::Seconds patience);

private:
    struct Message : Incoming {
        std::vector<std::byte> own;  // the payload while no receive is posted
        bool is_taken = false;       // by a receive
        bool is_direct = false;      // received straight into the array of the receive
    };
    struct Posted {
        int peer = 0;
        Tag tag = 0;
        std::span<std::byte> into;
        bool may_lie_there = false;
        Message* message = nullptr;
    };

    Incoming& begin(int peer, const FrameHeader& header) override;
    void complete(Incoming& incoming) override;
    void sent(Ticket ticket) override;
    void lost(int peer, const std::string& why) override;

    void work_in_background();
    void stop_all(const std::string& reason);  // with the lock held
    bool move_messages();                      // Wire::progress; its failure stops all ranks
    void send_control(int peer, FrameKind kind, const std::string& text);
    std::string activity_text();  // of this rank
    void ask(std::unique_lock<std::mutex>& lock,
             const std::vector<int>& peers);  // what they are at: waits a second for answers
    [[noreturn]] void time_out(std::unique_lock<std::mutex>& lock, const std::string& what_for);
    // `sender`: whose message is waited for, -1 where it is none.
    template <class Condition, class Words>
    void wait_until(std::unique_lock<std::mutex>& lock, int sender, const Condition& holds,
                    const Words& what_for);
    // ... and where this thread stands alone gives up before the failure goes on.
    template <class Condition, class Words>
    void wait_or_let_go(std::unique_lock<std::mutex>& lock, int sender, const Condition& holds,
                        const Words& what_for);
    bool stands_alone() const { return alone_.contains(std::this_thread::get_id()); }
    static void pause(int idle_rounds, bool spins);

    const std::unique_ptr<Wire> wire_;
    const int rank_, size_;
    const std::vector<std::string> names_;
    core::Seconds time_limit_;
    bool spins_, is_patient_ = false;

    std::mutex mutex_;
    std::condition_variable ending_changed_;
    std::list<Message> messages_;
    std::list<Posted> posted_;
    std::vector<std::vector<std::byte>> unused_;  // buffers of messages that were taken
    std::map<Ticket, std::shared_ptr<const void>> open_sends_;
    Ticket next_ticket_ = 1;
    std::map<std::thread::id, std::string>
        activities_;                    // a rank computes in one thread and exchanges
                                        // buckets in another; by value: other ranks may ask late
    std::set<std::thread::id> alone_;   // threads that stand alone
    std::vector<std::string> answers_;  // to `ask`, by rank
    std::vector<char> has_answered_, has_left_, is_lost_;
    bool is_stopped_ = false, is_leaving_ = false, is_ending_ = false, is_abandoned_ = false;
    std::string reason_;
    std::atomic<int> waiting_{0};
    std::thread background_;
};

}  // namespace exec::transport
