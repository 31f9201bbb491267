#include "exec/transport/process_communicator.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cpu/kernels.h"
#include "exec/transport/signal_free_thread.h"

namespace exec::transport {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point after(core::Seconds time) {
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time.value));
}

// How often the background thread looks while messages are under way, and while none is. At 200 Mbit/s a TCP
// window of 64 KiB lasts 2.6 ms.
constexpr std::chrono::microseconds busy_interval(200), idle_interval(1000);
// Polls of a waiting rank before it gives way to others, and before it sleeps.
constexpr int polls_with_core = 20000, polls_without_core = 20;
constexpr std::chrono::microseconds shortest_sleep(50), longest_sleep(250);
constexpr std::size_t most_unused_buffers = 64;

}  // namespace

ProcessCommunicator::ProcessCommunicator(std::unique_ptr<Wire> wire, std::vector<std::string> names,
                                         core::Seconds time_limit, bool spins)
    : wire_(std::move(wire)),
      rank_(wire_->rank()),
      size_(wire_->size()),
      names_(std::move(names)),
      time_limit_(time_limit),
      spins_(spins),
      answers_(size_),
      has_answered_(size_, 0),
      has_left_(size_, 0),
      is_lost_(size_, 0) {
    background_ = start_signal_free([this] { work_in_background(); });
}

ProcessCommunicator::~ProcessCommunicator() {
    {
        const std::lock_guard lock(mutex_);
        is_ending_ = true;
    }
    ending_changed_.notify_all();
    background_.join();
}

void ProcessCommunicator::work_in_background() {
    std::unique_lock lock(mutex_);
    while (!is_ending_) {
        bool is_busy = false;
        if (waiting_ == 0) {
            is_busy = move_messages();
            is_busy |= wire_->has_unsent();
        }
        ending_changed_.wait_for(lock, is_busy ? busy_interval : idle_interval);
    }
}

Communicator::Ticket ProcessCommunicator::start_send(int peer, Tag tag, std::span<const float> data,
                                                     std::shared_ptr<const void> keeper) {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) throw Stopped(reason_);
    const Ticket ticket = next_ticket_++;
    open_sends_.emplace(ticket, std::move(keeper));
    wire_->send(*this, peer, {FrameKind::data, tag, data.size_bytes()}, std::as_bytes(data), ticket);
    return ticket;
}

void ProcessCommunicator::finish(Ticket ticket) {
    std::unique_lock lock(mutex_);
    wait_or_let_go(
        lock, -1, [&] { return !open_sends_.contains(ticket); },
        [] { return std::string("for the receiver of its message"); });
}

void ProcessCommunicator::receive(int peer, Tag tag, std::span<float> into, Arrival arrival) {
    std::unique_lock lock(mutex_);
    const auto matches = [&](const Message& message) {
        return !message.is_taken && message.from == peer && message.header.tag == tag;
    };
    auto found = std::find_if(messages_.begin(), messages_.end(), matches);
    Message* message = found == messages_.end() ? nullptr : &*found;
    const auto what_for = [&] { return fmt::format("for a message of {}", names_[peer]); };
    if (message) {
        message->is_taken = true;
        wait_or_let_go(lock, peer, [&] { return message->is_complete; }, what_for);
    } else {
        const auto post = posted_.insert(posted_.end(), {peer, tag, std::as_writable_bytes(into),
                                                         arrival == Arrival::overwrites, nullptr});
        // A wait that throws leaves the post behind: give_up() takes it back.
        wait_or_let_go(lock, peer, [&] { return post->message && post->message->is_complete; }, what_for);
        message = post->message;
        posted_.erase(post);
    }
    const auto entry = std::find_if(messages_.begin(), messages_.end(),
                                    [&](const Message& candidate) { return &candidate == message; });
    std::list<Message> taken;
    taken.splice(taken.end(), messages_, entry);
    core::require(message->header.bytes == into.size_bytes(),
                  "sender and receiver of a message agree on its length");
    if (message->is_direct) return;
    lock.unlock();
    if (arrival == Arrival::adds)
        cpu::kernels().accumulate(std::ssize(into), reinterpret_cast<const float*>(message->own.data()),
                                  into.data());
    else std::memcpy(into.data(), message->own.data(), into.size_bytes());
    lock.lock();
    if (unused_.size() < most_unused_buffers) unused_.push_back(std::move(message->own));
}

void ProcessCommunicator::stand_alone(bool alone) {
    const std::lock_guard lock(mutex_);
    if (alone) alone_.insert(std::this_thread::get_id());
    else alone_.erase(std::this_thread::get_id());
}

template <class Condition, class Words>
void ProcessCommunicator::wait_or_let_go(std::unique_lock<std::mutex>& lock, int sender,
                                         const Condition& holds, const Words& what_for) {
    try {
        wait_until(lock, sender, holds, what_for);
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        const bool lets_go = stands_alone();
        const std::string reason = reason_;
        lock.unlock();
        if (lets_go) give_up(reason);
        throw;
    }
}

void ProcessCommunicator::set_activity(const std::string* activity) {
    const std::lock_guard lock(mutex_);
    if (activity) activities_[std::this_thread::get_id()] = *activity;
    else activities_.erase(std::this_thread::get_id());
}

bool ProcessCommunicator::move_messages() {
    const auto end = [&](const std::string& why) {
        is_abandoned_ = true;
        is_stopped_ = true;
        if (reason_.empty()) reason_ = fmt::format("{}: {}", names_[rank_], why);
        wire_->abandon(*this);
        return false;
    };
    try {
        return wire_->progress(*this);
    } catch (const core::MachineError& failure) {
        return end(failure.what());
    } catch (const std::bad_alloc&) {  // in a thread of its own it would end the process without a word
        return end("no memory for a message that arrived");
    }
}

void ProcessCommunicator::give_up(const std::string& reason) {
    std::unique_lock lock(mutex_);
    stop_all(reason);
    // Its connection closing next is no news.
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_ && !is_abandoned_ && !is_lost_[peer]) send_control(peer, FrameKind::goodbye, "");
    // The news should be on its way before this end of the wire is let go.
    const Clock::time_point deadline = after(core::milliseconds(20));
    while (!is_abandoned_ && Clock::now() < deadline) {
        move_messages();
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        lock.lock();
    }
    if (!is_abandoned_) wire_->abandon(*this);
    is_abandoned_ = true;
    for (Message& message : messages_) {
        if (!message.is_direct || message.is_complete) continue;
        message.own.resize(message.header.bytes);
        message.data = message.own.data();
    }
    posted_.clear();
}

void ProcessCommunicator::set_time_limit(core::Seconds limit) {
    const std::lock_guard lock(mutex_);
    time_limit_ = limit;
}

void ProcessCommunicator::limit_messages(std::uint64_t most_bytes) {
    const std::lock_guard lock(mutex_);
    wire_->limit_data(most_bytes);
}

void ProcessCommunicator::set_patient(bool patient) {
    const std::lock_guard lock(mutex_);
    is_patient_ = patient;
}

void ProcessCommunicator::set_spins(bool spins) {
    const std::lock_guard lock(mutex_);
    spins_ = spins;
}

Incoming& ProcessCommunicator::begin(int peer, const FrameHeader& header) {
    Message& message = messages_.emplace_back();
    message.from = peer;
    message.header = header;
    if (header.kind == FrameKind::data)
        for (Posted& posted : posted_) {
            if (posted.message || posted.peer != peer || posted.tag != header.tag) continue;
            posted.message = &message;
            message.is_taken = true;
            if (posted.may_lie_there && posted.into.size() == header.bytes) {
                message.is_direct = true;
                message.data = posted.into.data();
                return message;
            }
            break;
        }
    // A used buffer of the right size costs no page faults.
    const auto fitting =
        std::find_if(unused_.begin(), unused_.end(),
                     [&](const std::vector<std::byte>& buffer) { return buffer.size() == header.bytes; });
    if (fitting != unused_.end()) {
        message.own = std::move(*fitting);
        unused_.erase(fitting);
    } else {
        if (unused_.size() == most_unused_buffers) unused_.erase(unused_.begin());
        message.own.resize(header.bytes);
    }
    message.data = message.own.data();
    return message;
}

void ProcessCommunicator::complete(Incoming& incoming) {
    incoming.is_complete = true;
    if (incoming.header.kind == FrameKind::data) return;
    const auto entry = std::find_if(messages_.begin(), messages_.end(),
                                    [&](const Message& candidate) { return &candidate == &incoming; });
    std::list<Message> taken;
    taken.splice(taken.end(), messages_, entry);
    const Message& frame = taken.front();
    const std::string text(reinterpret_cast<const char*>(frame.own.data()), frame.own.size());
    const std::size_t from = frame.from;
    switch (frame.header.kind) {
        case FrameKind::stop:
            has_left_[from] = 1;
            if (is_stopped_) break;
            is_stopped_ = true;
            reason_ = text;
            break;
        case FrameKind::ask: send_control(frame.from, FrameKind::answer, activity_text()); break;
        case FrameKind::answer:
            answers_[from] = text;
            has_answered_[from] = 1;
            break;
        case FrameKind::goodbye: has_left_[from] = 1; break;
        case FrameKind::data: break;
    }
}

void ProcessCommunicator::sent(Ticket ticket) { open_sends_.erase(ticket); }

void ProcessCommunicator::lost(int peer, const std::string& why) {
    const std::size_t p = peer;
    if (has_left_[p] || is_lost_[p]) return;
    is_lost_[p] = 1;
    if (is_leaving_) return;
    stop_all(fmt::format("{} is gone: {}", names_[p], why));
}

void ProcessCommunicator::stop_all(const std::string& reason) {
    if (is_stopped_) return;
    is_stopped_ = true;
    reason_ = reason;
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_ && !is_lost_[peer]) send_control(peer, FrameKind::stop, reason);
}

void ProcessCommunicator::stop(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    stop_all(reason);
}

void ProcessCommunicator::send_control(int peer, FrameKind kind, const std::string& text) {
    wire_->send(*this, peer, {kind, 0, text.size()}, std::as_bytes(std::span(text.data(), text.size())), 0);
}

std::string ProcessCommunicator::activity_text() {
    std::string text;
    for (const auto& [thread, activity] : activities_) text += (text.empty() ? "" : " and ") + activity;
    return text.empty() ? "no instruction" : text;
}

void ProcessCommunicator::ask(std::unique_lock<std::mutex>& lock, const std::vector<int>& peers) {
    for (const int peer : peers) {
        has_answered_[peer] = 0;
        send_control(peer, FrameKind::ask, "");
    }
    const Clock::time_point deadline = after(core::seconds(1));
    const auto all_answered = [&] {
        return std::all_of(peers.begin(), peers.end(), [&](int peer) { return has_answered_[peer] != 0; });
    };
    while (!all_answered() && !is_stopped_ && Clock::now() < deadline) {
        if (move_messages()) continue;
        lock.unlock();
        std::this_thread::sleep_for(shortest_sleep);
        lock.lock();
    }
    if (is_stopped_) throw Stopped(reason_);
}

void ProcessCommunicator::time_out(std::unique_lock<std::mutex>& lock, const std::string& what_for) {
    std::vector<int> others;
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) others.push_back(peer);
    ask(lock, others);
    std::string text = fmt::format("{} waited {} {}", names_[rank_], core::format(time_limit_), what_for);
    for (int r = 0; r < size_; ++r) {
        const std::size_t i = r;
        if (r == rank_) text += fmt::format("\n  {} is at: {}", names_[i], activity_text());
        else if (has_answered_[i]) text += fmt::format("\n  {} is at: {}", names_[i], answers_[i]);
        else text += fmt::format("\n  {} does not answer", names_[i]);
    }
    stop_all(text);
    throw core::MachineError(text);
}

void ProcessCommunicator::pause(int idle_rounds, bool spins) {
    const int polls = spins ? polls_with_core : polls_without_core;
    if (idle_rounds < polls && spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else if (idle_rounds < 2 * polls) {
        sched_yield();
    } else {
        constexpr int rounds_per_step = 16;  // after as many sleeps the next one is longer by the shortest
        std::this_thread::sleep_for(
            std::min(longest_sleep, shortest_sleep * (1 + (idle_rounds - 2 * polls) / rounds_per_step)));
    }
}

template <class Condition, class Words>
void ProcessCommunicator::wait_until(std::unique_lock<std::mutex>& lock, int sender, const Condition& holds,
                                     const Words& what_for) {
    struct Count {
        explicit Count(std::atomic<int>& value) : value_(value) { ++value_; }
        ~Count() { --value_; }
        std::atomic<int>& value_;
    };
    if (holds()) return;
    const Count waits(waiting_);
    Clock::time_point deadline = after(time_limit_);
    int idle_rounds = 0;
    while (true) {
        if (is_abandoned_)
            throw Stopped(
                reason_);  // another thread of the rank gave up, and took back what `holds` would look at
        const bool has_moved = move_messages();
        if (holds()) return;
        if (is_stopped_) throw Stopped(reason_);
        if (has_moved) {
            idle_rounds = 0;
            continue;
        }
        const bool spins = spins_;
        lock.unlock();
        pause(idle_rounds++, spins);
        lock.lock();
        constexpr int rounds_per_clock = 64;  // reading the clock costs as much as a poll
        if (idle_rounds % rounds_per_clock != 0 || Clock::now() <= deadline) continue;
        if (!(is_patient_ || stands_alone()) || sender < 0) time_out(lock, what_for());
        ask(lock, {sender});
        if (!has_answered_[sender]) time_out(lock, what_for());
        deadline = after(time_limit_);
        idle_rounds = 0;
    }
}

bool ProcessCommunicator::is_speaker() {
    const std::lock_guard lock(mutex_);
    for (int peer = 0; peer < rank_; ++peer)
        if (!is_lost_[peer]) return false;
    return true;
}

void ProcessCommunicator::leave(core::Seconds patience) {
    std::unique_lock lock(mutex_);
    if (is_leaving_) return;
    is_leaving_ = true;
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_ && !is_lost_[peer]) send_control(peer, FrameKind::goodbye, "");
    const auto everybody_left = [&] {
        for (int peer = 0; peer < size_; ++peer) {
            const std::size_t p = peer;
            if (peer != rank_ && !has_left_[p] && !is_lost_[p]) return false;
        }
        return !wire_->has_unsent();
    };
    const Clock::time_point deadline = after(patience);
    while (!everybody_left() && Clock::now() < deadline) {
        if (move_messages()) continue;
        lock.unlock();
        std::this_thread::sleep_for(shortest_sleep);
        lock.lock();
    }
    if (everybody_left() && !is_abandoned_) wire_->close();
}

}  // namespace exec::transport
