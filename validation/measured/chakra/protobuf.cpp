// The one file of protobuf outside of libonnx's.
#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "validation/measured/chakra/chakra_trace.h"
#include "validation/measured/chakra/execution_trace.pb.h"
#include "validation/measured/kineto_trace.h"

namespace validation {

namespace {

// A step is some 10,000 to 1,000,000 nodes of 100 to 2,000 bytes.
constexpr std::uint64_t largest_message = 16u << 20;
constexpr std::size_t most_nodes = 4'000'000, most_dependencies = 20'000'000;
// 100 hours; most_nodes of them add up without overflow.
constexpr std::uint64_t longest_micros = 360'000'000'000;

// NodeType and CollectiveCommType of et_def.proto.
enum class NodeType {
    invalid = 0,
    metadata = 1,
    memory_load = 2,
    memory_store = 3,
    compute = 4,
    send = 5,
    receive = 6,
    collective = 7,
};
constexpr int last_node_type = 7;

std::optional<StepKind> kind_of_collective(std::int64_t comm_type) {
    switch (comm_type) {
        case 0: return StepKind::all_reduce;
        case 2: return StepKind::all_gather;
        case 6: return StepKind::all_to_all;
        case 7:
        case 8: return StepKind::reduce_scatter;       // and of blocks
        case 1:                                        // reduce
        case 3:                                        // gather
        case 4:                                        // scatter
        case 5:                                        // broadcast
        case 9: return StepKind::other_communication;  // barrier
        default: return std::nullopt;
    }
}

using NodeIndex = std::uint32_t;

struct Node {
    std::uint64_t id = 0;
    NodeType type = NodeType::compute;
    bool is_on_host = false;
    std::string name;
    std::uint64_t begin_us = 0, duration_us = 0;
    std::int64_t queue = 0;  // stream of the device, thread of the host
    std::optional<std::int64_t> comm_type, comm_size;
    std::vector<std::uint64_t> callers, data;  // ids
};

std::optional<std::int64_t> integer_of(const chakra::Attribute& attribute) {
    switch (attribute.value_case()) {
        case chakra::Attribute::kInt32Val: return attribute.int32_val();
        case chakra::Attribute::kInt64Val: return attribute.int64_val();
        case chakra::Attribute::kUint32Val: return attribute.uint32_val();
        case chakra::Attribute::kUint64Val:
            if (attribute.uint64_val() > std::uint64_t(std::numeric_limits<std::int64_t>::max()))
                return std::nullopt;
            return static_cast<std::int64_t>(attribute.uint64_val());
        case chakra::Attribute::kBoolVal:
        case chakra::Attribute::VALUE_NOT_SET: return std::nullopt;
    }
    return std::nullopt;
}

bool parse(google::protobuf::MessageLite& message, std::string_view bytes) {
    return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));  // below largest_message
}

class TraceReader {
public:
    TraceReader(std::string_view bytes, const std::string& file, core::Diagnostics& diagnostics)
        : bytes_(bytes), file_(file), diagnostics_(diagnostics) {}

    std::optional<MeasuredStep> read() {
        if (!read_messages() || !link()) return std::nullopt;
        is_on_device_ = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
            return !node.is_on_host && node.duration_us > 0;
        });
        if (!is_on_device_ &&
            std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.duration_us > 0; }))
            return refuse("duration_micros", "no node has a duration: nothing was measured",
                          "give a trace of chakra_converter, linked with a torch.profiler trace of the run");
        result_.is_replayed =
            std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.begin_us == 0; });
        if (!replay()) return std::nullopt;
        return sum_up();
    }

private:
    std::nullopt_t refuse(std::string key, std::string message, std::string hint) {
        diagnostics_.error({file_, 0, 0}, std::move(key), std::move(message), std::move(hint));
        return std::nullopt;
    }
    std::nullopt_t refuse_at(std::size_t byte, const std::string& message) {
        return refuse(
            "", fmt::format("no sound Chakra trace: at byte {} of {}: {}", byte, bytes_.size(), message),
            "the schema of Chakra 0.0.4 to 1.0.0 is read; chakra_jsonizer shows what a file holds");
    }

    bool read_messages() {
        std::size_t at = 0;
        bool is_first = true;
        while (at < bytes_.size() || is_first) {
            const std::size_t begin = at;
            const std::optional<std::uint64_t> length = take_varint(at);
            if (!length) return refuse_at(begin, "the length of a message is cut or no number"), false;
            const std::uint64_t size = *length;
            if (size > largest_message)
                return refuse_at(begin, fmt::format("a message of {} bytes, {} MiB are read", size,
                                                    largest_message >> 20)),
                       false;
            if (size > bytes_.size() - at)
                return refuse_at(begin,
                                 fmt::format("a message of {} bytes, {} are left", size, bytes_.size() - at)),
                       false;
            if (is_first) {
                chakra::GlobalMetadata metadata;
                if (!parse(metadata, bytes_.substr(at, size)))
                    return refuse_at(begin, "no GlobalMetadata"), false;
            } else {
                if (nodes_.size() == most_nodes)
                    return refuse_at(begin, fmt::format("more than {} nodes", most_nodes)), false;
                if (!take_node(begin, bytes_.substr(at, size))) return false;
            }
            is_first = false;
            at += size;
        }
        if (nodes_.empty()) return refuse_at(bytes_.size(), "it has no nodes"), false;
        return true;
    }

    // Base 128, the lowest digits first; the last has no upper bit.
    std::optional<std::uint64_t> take_varint(std::size_t& at) const {
        constexpr int digit_bits = 7, bits = 64;
        std::uint64_t value = 0;
        for (int shift = 0; shift < bits && at < bytes_.size(); shift += digit_bits) {
            const auto byte = static_cast<unsigned char>(bytes_[at++]);
            value |= std::uint64_t(byte & 127) << shift;
            if (byte < 128) return value;
        }
        return std::nullopt;
    }

    bool take_node(std::size_t at, std::string_view bytes) {
        chakra::Node read;
        if (!parse(read, bytes)) return refuse_at(at, "no Node"), false;
        if (read.type() < 1 || read.type() > last_node_type)
            return refuse_at(at, fmt::format("node {} has type {}, 1 to {} are known", read.id(), read.type(),
                                             last_node_type)),
                   false;
        if (read.duration_micros() > longest_micros || read.start_time_micros() > (std::uint64_t(1) << 62))
            return refuse_at(at, fmt::format("node {} begins at {} us and lasts {} us", read.id(),
                                             read.start_time_micros(), read.duration_micros())),
                   false;
        Node node;
        node.id = read.id();
        node.type = static_cast<NodeType>(read.type());
        node.name = read.name();
        node.begin_us = read.start_time_micros();
        node.duration_us = read.duration_micros();
        node.callers.assign(read.ctrl_deps().begin(), read.ctrl_deps().end());
        node.data.assign(read.data_deps().begin(), read.data_deps().end());
        dependencies_ += node.callers.size() + node.data.size();
        if (dependencies_ > most_dependencies)
            return refuse_at(at, fmt::format("more than {} dependencies", most_dependencies)), false;
        std::optional<std::int64_t> thread, stream;
        for (const chakra::Attribute& attribute : read.attr()) {
            const std::string& name = attribute.name();
            const bool is_truth = attribute.value_case() == chakra::Attribute::kBoolVal;
            if (name == "is_cpu_op" && is_truth) node.is_on_host = attribute.bool_val();
            else if (name == "tid") thread = integer_of(attribute);
            else if (name == "stream") stream = integer_of(attribute);
            else if (name == "comm_type") node.comm_type = integer_of(attribute);
            else if (name == "comm_size" || name == "tensor_size") node.comm_size = integer_of(attribute);
        }
        // Kernels of older converters have their stream as thread.
        node.queue = (node.is_on_host ? thread : stream ? stream : thread).value_or(0);
        if (node.type == NodeType::collective && node.comm_type && !kind_of_collective(*node.comm_type))
            return refuse_at(at, fmt::format("node {} has comm_type {}, 0 to 9 are known", node.id,
                                             *node.comm_type)),
                   false;
        if (node.comm_size && *node.comm_size < 0)
            return refuse_at(at, fmt::format("node {} has comm_size {}", node.id, *node.comm_size)), false;
        if (!index_.emplace(node.id, static_cast<NodeIndex>(nodes_.size())).second)
            return refuse_at(at, fmt::format("two nodes have id {}", node.id)), false;
        nodes_.push_back(std::move(node));
        return true;
    }

    // Dependencies as indices. A caller may be missing: converters drop nodes without work.
    bool link() {
        waiting_.assign(nodes_.size(), 0);
        followers_.assign(nodes_.size(), {});
        for (NodeIndex i = 0; i < nodes_.size(); ++i)
            for (const std::uint64_t id : nodes_[i].data) {
                const auto found = index_.find(id);
                if (found == index_.end())
                    return refuse("data_deps",
                                  fmt::format("node {} ({}) depends on node {}, which is not in the file",
                                              nodes_[i].id, core::in_quotes(nodes_[i].name), id),
                                  "copy the trace whole"),
                           false;
                followers_[found->second].push_back(i);
                ++waiting_[i];
            }
        return true;
    }

    // When each node begins, and that the dependencies let each begin.
    bool replay() {
        using Ready = std::pair<std::uint64_t, NodeIndex>;  // the earliest, then the first in the file
        std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
        std::vector<std::uint64_t> earliest(nodes_.size(), 0);
        std::map<std::pair<bool, std::int64_t>, std::uint64_t> free;  // by queue
        for (NodeIndex i = 0; i < nodes_.size(); ++i)
            if (waiting_[i] == 0) ready.emplace(0, i);
        std::size_t done = 0;
        while (!ready.empty()) {
            const auto [time, i] = ready.top();
            ready.pop();
            ++done;
            Node& node = nodes_[i];
            std::uint64_t& queue = free[{node.is_on_host, node.queue}];
            const std::uint64_t begin = std::max(time, queue), end = begin + node.duration_us;
            queue = end;
            if (result_.is_replayed) node.begin_us = begin;
            for (const NodeIndex follower : followers_[i]) {
                earliest[follower] = std::max(earliest[follower], end);
                if (--waiting_[follower] == 0) ready.emplace(earliest[follower], follower);
            }
        }
        if (done == nodes_.size()) return true;
        NodeIndex blocked = 0;
        while (waiting_[blocked] == 0) ++blocked;
        const Node& node = nodes_[blocked];
        return refuse("data_deps",
                      fmt::format("{} nodes wait for each other in a circle or for one that does, among them "
                                  "node {} ({})",
                                  nodes_.size() - done, node.id, core::in_quotes(node.name)),
                      "a node's data_deps must end before it"),
               false;
    }

    // The outermost operator of a known kind among those that called this one and itself; what runs inside
    // it is its own. Callers of real files do come in circles: one that is being asked for is none.
    std::optional<NodeIndex> outermost_on_host(NodeIndex asked) {
        enum : char { unknown, open, known };
        if (outermost_.empty()) {
            outermost_.resize(nodes_.size());
            is_outermost_known_.assign(nodes_.size(), unknown);
        }
        std::vector<NodeIndex> inner;  // each called by the next
        std::optional<NodeIndex> outermost;
        for (NodeIndex at = asked;;) {
            if (is_outermost_known_[at] == known) outermost = outermost_[at];
            if (is_outermost_known_[at] != unknown) break;
            is_outermost_known_[at] = open;
            inner.push_back(at);
            const std::vector<std::uint64_t>& callers = nodes_[at].callers;
            const auto found = callers.empty() ? index_.end() : index_.find(callers.front());
            if (found == index_.end()) break;
            at = found->second;
        }
        for (; !inner.empty(); inner.pop_back()) {
            const NodeIndex at = inner.back();
            if (!outermost && kind_of_operator(nodes_[at].name)) outermost = at;
            outermost_[at] = outermost;
            is_outermost_known_[at] = known;
        }
        return outermost_[asked];
    }

    // Of a node of the device, or of an outermost operator of the host.
    std::optional<StepKind> kind_of(const Node& node) const {
        switch (node.type) {
            case NodeType::invalid:
            case NodeType::metadata: return std::nullopt;
            case NodeType::memory_load:
            case NodeType::memory_store: return StepKind::copy;
            case NodeType::send:
            case NodeType::receive: return StepKind::send_receive;
            case NodeType::collective:
                if (node.comm_type) return kind_of_collective(*node.comm_type);
                break;
            case NodeType::compute: break;
        }
        if (node.is_on_host) return kind_of_operator(node.name);
        if (node.name.starts_with("Memcpy") || node.name.starts_with("Memset")) return StepKind::copy;
        return kind_of_kernel(node.name);
    }

    MeasuredStep sum_up() {
        result_.work = is_on_device_ ? MeasuredWork::kernels : MeasuredWork::operators;
        for (const Node& node : nodes_)
            if (node.is_on_host && node.name.starts_with("ProfilerStep#")) ++result_.steps;
        result_.steps = std::max(1, result_.steps);
        const auto of_a_step = [&](std::uint64_t micros) {
            return core::microseconds(static_cast<double>(micros) / result_.steps);
        };
        std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
        std::vector<std::pair<std::uint64_t, std::uint64_t>> work;
        std::map<StepKind, std::map<std::string, std::uint64_t>> by_name;
        std::map<StepKind, std::uint64_t> sums;
        for (NodeIndex i = 0; i < nodes_.size(); ++i) {
            const Node& node = nodes_[i];
            if (node.duration_us > 0) {
                first = std::min(first, node.begin_us);
                last = std::max(last, node.begin_us + node.duration_us);
            }
            if (node.is_on_host == is_on_device_) continue;
            const std::optional<NodeIndex> owner = node.is_on_host ? outermost_on_host(i) : i;
            const std::optional<StepKind> kind = owner ? kind_of(nodes_[*owner]) : std::nullopt;
            if (!kind) continue;
            if (node.duration_us > 0) work.emplace_back(node.begin_us, node.begin_us + node.duration_us);
            sums[*kind] += node.duration_us;
            by_name[*kind][nodes_[*owner].name] += node.duration_us;
            MeasuredStep::Share& share = result_.shares[*kind];
            if (*owner == i) ++share.count;
            if (!node.comm_size || !is_communication(*kind)) continue;
            MeasuredStep::Message& message = share.messages[core::Bytes(*node.comm_size)];
            ++message.count;
            message.time += of_a_step(node.duration_us);
        }
        result_.step = of_a_step(last - first);
        std::sort(work.begin(), work.end());
        std::uint64_t busy = 0, until = 0;
        for (const auto& [begin, end] : work) {
            busy += end - std::min(end, std::max(begin, until));
            until = std::max(until, end);
        }
        result_.busy = of_a_step(busy);
        for (auto& [kind, share] : result_.shares) {
            share.time = of_a_step(sums[kind]);
            share.count /= result_.steps;
            for (auto& [size, message] : share.messages) message.count /= result_.steps;
            const auto& names = by_name[kind];
            share.longest = std::max_element(names.begin(), names.end(), [](const auto& a, const auto& b) {
                                return a.second < b.second;
                            })->first;
        }
        return std::move(result_);
    }

    const std::string_view bytes_;
    const std::string& file_;
    core::Diagnostics& diagnostics_;
    std::vector<Node> nodes_;
    std::unordered_map<std::uint64_t, NodeIndex> index_;  // by id
    std::size_t dependencies_ = 0;
    std::vector<std::uint32_t> waiting_;             // data dependencies that have not ended
    std::vector<std::vector<NodeIndex>> followers_;  // by data
    std::vector<std::optional<NodeIndex>> outermost_;
    std::vector<char> is_outermost_known_;
    bool is_on_device_ = false;
    MeasuredStep result_;
};

}  // namespace

std::optional<MeasuredStep> read_chakra_trace(std::string_view bytes, const std::string& file,
                                              core::Diagnostics& diagnostics) {
    return TraceReader(bytes, file, diagnostics).read();
}

}  // namespace validation
