#include <fmt/core.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "core/document.h"
#include "validation/measured/chakra/chakra_trace.h"
#include "validation/measured/measured_file.h"

#ifdef HAS_PROTOBUF

namespace {

using validation::MeasuredStep;
using validation::StepKind;

// Protobuf's wire format by hand (protobuf.dev/programming-guides/encoding).
std::string varint(std::uint64_t value) {
    std::string bytes;
    for (; value >= 128; value >>= 7) bytes += static_cast<char>(128 | (value & 127));
    return bytes + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
    return varint(std::uint64_t(field) << 3) + varint(value);
}
std::string text(int field, const std::string& value) {
    return varint(std::uint64_t(field) << 3 | 2) + varint(value.size()) + value;
}
std::string framed(const std::string& message) { return varint(message.size()) + message; }

constexpr int comp = 4, collective = 7;  // NodeType
constexpr int all_reduce = 0;            // CollectiveCommType

struct Node {
    std::uint64_t id = 0;
    std::string name;
    int type = comp;
    std::uint64_t duration_us = 0;
    std::vector<std::uint64_t> data = {}, callers = {};
    bool is_on_host = false;
    int queue = 7;
    int comm_type = -1;
    std::int64_t comm_size = -1;
    std::uint64_t begin_us = 0;
};

std::string attribute(const std::string& name, int field, std::uint64_t value) {
    return text(10, text(1, name) + number(field, value));
}

std::string bytes_of(const Node& node) {
    std::string message = number(1, node.id) + text(2, node.name) + number(3, std::uint64_t(node.type));
    for (const std::uint64_t id : node.callers) message += number(4, id);
    std::string packed;
    for (const std::uint64_t id : node.data) packed += varint(id);
    if (!packed.empty()) message += text(5, packed);
    if (node.begin_us > 0) message += number(6, node.begin_us);
    message += number(7, node.duration_us) + text(8, text(1, "inputs"));
    message += attribute("is_cpu_op", 27, node.is_on_host) +
               attribute(node.is_on_host ? "tid" : "stream", 9, std::uint64_t(node.queue));
    if (node.comm_type >= 0) message += attribute("comm_type", 9, std::uint64_t(node.comm_type));
    if (node.comm_size >= 0) message += attribute("comm_size", 9, std::uint64_t(node.comm_size));
    return framed(message);
}

std::string trace_of(const std::vector<Node>& nodes) {
    std::string bytes = framed(text(1, "1.0.0"));
    for (const Node& node : nodes) bytes += bytes_of(node);
    return bytes;
}

MeasuredStep step_of(const std::string& bytes) {
    core::Diagnostics diagnostics;
    const auto step = validation::read_chakra_trace(bytes, "rank0.et", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(step);
    return *step;
}

std::string refusal_of(const std::string& bytes) {
    core::Diagnostics diagnostics;
    CHECK_FALSE(validation::read_chakra_trace(bytes, "rank0.et", diagnostics));
    return core::format(diagnostics);
}

// A product of 30 us, then beside each other an all-reduce of 40 us on another stream and a norm of 10 us and
// a product of 20 us on the product's stream; Adam of 5 us after both. The host launches for 2 us.
const std::vector<Node> one_step = {
    {1, "ProfilerStep#7", comp, 0, {}, {}, true, 1},
    {2, "aten::mm", comp, 2, {}, {1}, true, 1},
    {3, "sm80_xmma_gemm_bf16bf16_bf16f32", comp, 30, {2}},
    {4, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", collective, 40, {3}, {}, false, 13, all_reduce, 4096},
    {5, "void vectorized_layer_norm_kernel<float>", comp, 10, {3}},
    {6, "sm80_xmma_gemm_bf16bf16_bf16f32", comp, 20, {3}},
    {7, "multi_tensor_apply_kernel<AdamFunctor>", comp, 5, {4, 6}}};

}  // namespace

TEST_CASE("an execution trace is its device's nodes by kind, replayed where it has no start times") {
    const MeasuredStep step = step_of(trace_of(one_step));
    CHECK(step.work == validation::MeasuredWork::kernels);
    CHECK(step.steps == 1);
    CHECK(step.is_replayed);
    CHECK(step.step.value ==
          Approx((2 + 30 + 40 + 5) * 1e-6));  // norm and product hide behind the all-reduce
    CHECK(step.busy.value == Approx((30 + 40 + 5) * 1e-6));
    CHECK(step.shares.at(StepKind::matrix_product).time.value == Approx(50e-6));
    CHECK(step.shares.at(StepKind::matrix_product).count == 2);
    CHECK(step.shares.at(StepKind::norm).time.value == Approx(10e-6));
    CHECK(step.shares.at(StepKind::optimizer).time.value == Approx(5e-6));
    const MeasuredStep::Share& reduction = step.shares.at(StepKind::all_reduce);
    CHECK(reduction.time.value == Approx(40e-6));
    REQUIRE(reduction.messages.size() == 1);
    CHECK(reduction.messages.begin()->first.value == 4096);
    CHECK(reduction.messages.begin()->second.time.value == Approx(40e-6));
    CHECK(step.shares.size() == 4);  // the host's launch is no work of the device
}

TEST_CASE("streams run one node at a time, and nodes of one stream wait for each other") {
    std::vector<Node> nodes = one_step;
    nodes[3].queue = nodes[2].queue;  // the all-reduce on the stream of the products
    CHECK(step_of(trace_of(nodes)).step.value == Approx((2 + 30 + 40 + 10 + 20 + 5) * 1e-6));
}

TEST_CASE("start times are taken where the trace has them") {
    std::vector<Node> nodes = one_step;
    for (Node& node : nodes) node.begin_us = 1000 + 100 * node.id;
    const MeasuredStep step = step_of(trace_of(nodes));
    CHECK_FALSE(step.is_replayed);
    CHECK(step.step.value == Approx(((1000 + 700 + 5) - (1000 + 200)) * 1e-6));
    CHECK(step.busy.value == Approx((30 + 40 + 10 + 20 + 5) * 1e-6));
}

TEST_CASE("the collective's own type counts, and its kernel's name where none is told") {
    constexpr int all_gather = 2, broadcast = 5, reduce_scatter_block = 8;
    std::vector<Node> nodes = one_step;
    const auto kind_with = [&](int comm_type) {
        nodes[3].comm_type = comm_type;
        const MeasuredStep step = step_of(trace_of(nodes));
        for (const auto& [kind, share] : step.shares)
            if (validation::is_communication(kind)) return kind;
        return StepKind::elementwise;
    };
    CHECK(kind_with(all_gather) == StepKind::all_gather);
    CHECK(kind_with(broadcast) == StepKind::other_communication);
    CHECK(kind_with(reduce_scatter_block) == StepKind::reduce_scatter);
    CHECK(kind_with(-1) == StepKind::all_reduce);
    nodes[3].comm_type = 10;
    CHECK(refusal_of(trace_of(nodes)).find("node 4 has comm_type 10, 0 to 9 are known") != std::string::npos);
}

TEST_CASE("callers in a circle, as real files have them, neither hang nor lose work") {
    std::vector<Node> nodes = {{1, "aten::linear", comp, 3, {}, {2}, true, 1},
                               {2, "aten::addmm", comp, 4, {1}, {1}, true, 1},
                               {3, "aten::empty", comp, 5, {2}, {99}, true, 1}};  // 99 was dropped
    const MeasuredStep step = step_of(trace_of(nodes));
    CHECK(step.shares.at(StepKind::matrix_product).time.value == Approx(7e-6));
    CHECK(step.shares.at(StepKind::elementwise).time.value == Approx(5e-6));
}

TEST_CASE("a processor's trace counts what operators of a known kind called as theirs") {
    // One step of a transformer layer with gloo and SGD, torch 2.15.0, by trace_link and converter of Chakra
    // at 21585d8, 2026-11-24; reduced: without tensors and operators' schemas.
    core::Diagnostics diagnostics;
    const std::string file = std::string(SOURCE_DIR) + "/tests/validation/processor_step.et";
    const auto step = validation::read_measured_file(file, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(step);
    CHECK(step->work == validation::MeasuredWork::operators);
    CHECK(step->is_replayed);
    // Five linear layers forward, and two products of each backward.
    CHECK(step->shares.at(StepKind::matrix_product).count == 5 + 2 * 5);
    CHECK(step->shares.at(StepKind::norm).count == 2 * 3);            // three norms, forward and backward
    CHECK(step->shares.at(StepKind::all_reduce).count == 7 * 2 + 2);  // weights and biases; embedding, head
    CHECK(step->shares.at(StepKind::optimizer).count == 1);  // Optimizer.step, to which converters give 0 us
    CHECK(step->shares.at(StepKind::optimizer).time.value > 0);
    double sum = 0;
    for (const auto& [kind, share] : step->shares) sum += share.time.value;
    CHECK(sum == Approx(step->busy.value).epsilon(0.05));  // threads overlap a little
    CHECK(step->busy < step->step);
}

TEST_CASE("damaged traces, circles and traces without durations are refused with their place") {
    const std::string bytes = trace_of(one_step);
    for (std::size_t size = 0; size < bytes.size(); ++size) {  // cut anywhere but between two nodes
        core::Diagnostics diagnostics;
        const auto step = validation::read_chakra_trace(bytes.substr(0, size), "rank0.et", diagnostics);
        if (!step) CHECK(diagnostics.has_errors());
    }
    CHECK(refusal_of(bytes.substr(0, bytes.size() - 1)).find("are left") != std::string::npos);
    CHECK(refusal_of(framed(text(1, "1.0.0"))).find("it has no nodes") != std::string::npos);
    CHECK(refusal_of(bytes + "\xff\xff\xff\xff\x7f").find("MiB are read") != std::string::npos);
    CHECK(refusal_of(bytes + "\xff").find("length of a message is cut") != std::string::npos);
    CHECK(refusal_of(bytes + framed("\x0a")).find("no Node") != std::string::npos);
    CHECK(refusal_of(bytes + framed("")).find("node 0 has type 0, 1 to 7 are known") != std::string::npos);
    std::vector<Node> nodes = one_step;
    nodes[1].id = 7;
    CHECK(refusal_of(trace_of(nodes)).find("two nodes have id 7") != std::string::npos);
    nodes = one_step;
    nodes[6].data = {4, 60};
    CHECK(refusal_of(trace_of(nodes)).find("depends on node 60, which is not in the file") !=
          std::string::npos);
    nodes = one_step;
    nodes[2].data = {6};  // and 6 waits for 3
    const std::string circle = refusal_of(trace_of(nodes));
    CHECK(circle.find("5 nodes wait for each other in a circle") != std::string::npos);
    CHECK(circle.find("node 3") != std::string::npos);
    nodes = one_step;
    for (Node& node : nodes) node.duration_us = 0;
    CHECK(refusal_of(trace_of(nodes)).find("nothing was measured") != std::string::npos);
    nodes[2].duration_us = std::uint64_t(1) << 63;
    CHECK(refusal_of(trace_of(nodes)).find("lasts 9223372036854775808 us") != std::string::npos);
}

#else

TEST_CASE("an execution trace is refused without protobuf, with what to do") {
    core::Diagnostics diagnostics;
    CHECK_FALSE(validation::read_chakra_trace("", "rank0.et", diagnostics));
    CHECK(core::format(diagnostics).find("protobuf-compiler") != std::string::npos);
    WARN("skipped: this build has no protobuf");
}

#endif
