#include "exec/transport/exchange.h"

#include <algorithm>
#include <cstring>

namespace exec {

namespace {

// Texts share this number space with barriers, which count steps.
constexpr Tag text_tag = control_tag | Tag(1) << 61;

std::vector<float> floats_of(const std::string& text) {
    std::vector<float> floats((text.size() + sizeof(float) - 1) / sizeof(float));
    if (!text.empty()) std::memcpy(floats.data(), text.data(), text.size());
    return floats;
}

}  // namespace

void send_text(Communicator& communicator, int peer, Tag tag, const std::string& text) {
    const std::uint64_t bytes = text.size();
    float length[2];
    std::memcpy(length, &bytes, sizeof bytes);
    communicator.finish(communicator.start_send(peer, text_tag | tag << 1, length, nullptr));
    if (text.empty()) return;
    const std::vector<float> floats = floats_of(text);
    communicator.finish(communicator.start_send(peer, text_tag | tag << 1 | 1, floats, nullptr));
}

std::string receive_text(Communicator& communicator, int peer, Tag tag) {
    std::uint64_t bytes = 0;
    float length[2];
    communicator.receive(peer, text_tag | tag << 1, length, Arrival::overwrites);
    std::memcpy(&bytes, length, sizeof bytes);
    std::string text(bytes, '\0');
    if (text.empty()) return text;
    std::vector<float> floats((bytes + sizeof(float) - 1) / sizeof(float));
    communicator.receive(peer, text_tag | tag << 1 | 1, floats, Arrival::overwrites);
    std::memcpy(text.data(), floats.data(), bytes);
    return text;
}

std::vector<std::string> gather_texts(Communicator& communicator, Tag tag, const std::string& own) {
    if (communicator.rank() != 0) {
        send_text(communicator, 0, tag, own);
        return {};
    }
    std::vector<std::string> texts = {own};
    for (int peer = 1; peer < communicator.size(); ++peer)
        texts.push_back(receive_text(communicator, peer, tag));
    return texts;
}

std::string broadcast_text(Communicator& communicator, Tag tag, const std::string& of_rank_0) {
    if (communicator.rank() != 0) return receive_text(communicator, 0, tag);
    for (int peer = 1; peer < communicator.size(); ++peer) send_text(communicator, peer, tag, of_rank_0);
    return of_rank_0;
}

int barrier(Communicator& communicator, std::uint64_t number, int word) {
    auto greatest = static_cast<float>(word);
    const auto message = [&](int peer) {
        communicator.finish(communicator.start_send(peer, control_tag + number, {&greatest, 1}, nullptr));
    };
    const auto await = [&](int peer) {
        float got = 0;
        communicator.receive(peer, control_tag + number, {&got, 1}, Arrival::overwrites);
        greatest = std::max(greatest, got);
    };
    if (communicator.rank() == 0) {
        for (int peer = 1; peer < communicator.size(); ++peer) await(peer);
        for (int peer = 1; peer < communicator.size(); ++peer) message(peer);
    } else {
        message(0);
        await(0);
    }
    return static_cast<int>(greatest);
}

}  // namespace exec
