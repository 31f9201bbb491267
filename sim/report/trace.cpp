#include "sim/report/trace.h"

#include <fmt/core.h>

#include <iterator>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace sim {

namespace {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;

constexpr double microseconds = 1e6;

const char* letter(ComputePhase phase) {
    switch (phase) {
        case ComputePhase::forward: return "F";
        case ComputePhase::recompute: return "R";
        case ComputePhase::backward: return "B";
        case ComputePhase::backward_input: return "I";
        case ComputePhase::backward_weight: return "W";
    }
    throw core::InternalError("broken promise: every phase has a letter");
}

const char* payload_word(schedule::PayloadKind payload) {
    switch (payload) {
        case schedule::PayloadKind::none: return "";
        case schedule::PayloadKind::activation: return "activation";
        case schedule::PayloadKind::activation_gradient: return "gradient of activation";
        case schedule::PayloadKind::parameter_gradient: return "gradient";
        case schedule::PayloadKind::parameter: return "parameters";
        case schedule::PayloadKind::loss: return "loss";
        case schedule::PayloadKind::gradient_norm: return "gradient norm";
        case schedule::PayloadKind::update_norm: return "update norms";
    }
    throw core::InternalError("broken promise: every payload has a word");
}

}  // namespace

std::string label(const schedule::Program& program, const Instruction& instruction, bool full) {
    std::string text;
    const std::string micro_batch = schedule::micro_batch_text(program, instruction.micro_batch);
    switch (instruction.kind) {
        case InstructionKind::compute:
            text = fmt::format("{}{}", letter(instruction.phase), micro_batch);
            break;
        case InstructionKind::send:
            text = fmt::format("send {} {}", payload_word(instruction.payload), micro_batch);
            break;
        case InstructionKind::receive:
            text = fmt::format("receive {} {}", payload_word(instruction.payload), micro_batch);
            break;
        case InstructionKind::collective:
            text = fmt::format("{} {}", schedule::name_of(instruction.collective),
                               payload_word(instruction.payload));
            if (instruction.bucket) text += fmt::format(" {}", *instruction.bucket);
            if (instruction.micro_batch >= 0) text += " " + micro_batch;
            break;
        case InstructionKind::copy:
            text = fmt::format("{} {}", instruction.loads ? "load" : "offload", instruction.micro_batch);
            break;
        case InstructionKind::optimizer_step: text = "optimizer step"; break;
        case InstructionKind::zero_gradients: text = "zero gradients"; break;
        case InstructionKind::gradient_norm: text = "gradient norm"; break;
        case InstructionKind::update_norm: text = "update norms"; break;
    }
    if (!full) return text;
    if (instruction.stage >= 0 && program.stages.size() > 1)
        text += fmt::format(" stage {}", instruction.stage);
    if (instruction.kind == InstructionKind::collective)
        text += fmt::format(" over {}", schedule::name_of(instruction.group));
    if (instruction.bytes.value > 0) text += " " + core::format(instruction.bytes);
    return text;
}

namespace {

class TraceWriter {
public:
    explicit TraceWriter(const schedule::Program& program) : program_(program) {}

    void add(std::size_t pid, const std::string& name, const schedule::Timeline& timeline, std::size_t p,
             const schedule::MemoryTimeline& memory) {
        auto out = std::back_inserter(text_);
        const schedule::RankProgram& list = program_.classes[timeline.class_of[p]];
        fmt::format_to(out,
                       "{}{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":\"{}\"}}}}",
                       is_first_ ? "" : ",\n", pid, name);
        is_first_ = false;
        for (int stream = 0; stream < schedule::stream_count; ++stream)
            fmt::format_to(out,
                           ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{"
                           "\"name\":\"{}\"}}}}",
                           pid, stream, schedule::name_of(static_cast<schedule::Stream>(stream)));
        for (const schedule::Span& span : timeline.spans[p]) {
            const Instruction& instruction = list.instructions[span.instruction];
            fmt::format_to(out,
                           ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"name\":\"{"
                           "}\",\"cat\":\"{}\",\"args\":{{\"instruction\":{},"
                           "\"stage\":{},\"micro_batch\":{},\"bytes\":{:.0f}}}}}",
                           pid, core::position_of(instruction.stream), span.start.value * microseconds,
                           (span.end - span.start).value * microseconds, label(program_, instruction, false),
                           schedule::name_of(instruction.stream), span.instruction, instruction.stage,
                           instruction.micro_batch, instruction.bytes.value);
        }
        if (p >= memory.samples.size()) return;
        for (const schedule::MemorySample& sample : memory.samples[p]) {
            fmt::format_to(out,
                           ",\n{{\"ph\":\"C\",\"pid\":{},\"name\":\"memory GiB\",\"ts\":{:.3f},\"args\":{{",
                           pid, sample.time.value * microseconds);
            for (int kind = 0; kind < schedule::memory_kind_count; ++kind)
                fmt::format_to(out, "{}\"{}\":{:.6f}", kind == 0 ? "" : ",",
                               schedule::name_of(static_cast<schedule::MemoryKind>(kind)),
                               core::to_gibibytes(sample.bytes[kind]));
            text_ += "}}";
        }
    }
    void add(const TraceMark& mark) {
        fmt::format_to(std::back_inserter(text_),
                       ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"name\":\"{}\"}}",
                       mark.performer, core::position_of(mark.stream), mark.time.value * microseconds,
                       mark.text);
    }
    std::string take() { return std::move(text_) + "\n]}\n"; }

private:
    const schedule::Program& program_;
    std::string text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    bool is_first_ = true;
};

}  // namespace

std::string chrome_trace(const schedule::Program& program, const schedule::Timeline& timeline,
                         const schedule::MemoryTimeline& memory, const std::vector<TraceMark>& marks) {
    core::require(timeline.spans.size() == timeline.class_of.size(),
                  "a trace needs the spans of every performer");
    TraceWriter writer(program);
    for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
        const int pipeline = program.classes[timeline.class_of[p]].pipeline;
        writer.add(p, fmt::format("rank {} (pipeline {})", timeline.rank[p], pipeline), timeline, p, memory);
    }
    for (const TraceMark& mark : marks) writer.add(mark);
    return writer.take();
}

std::string comparison_trace(const schedule::Program& program, const schedule::Timeline& predicted,
                             const schedule::MemoryTimeline& predicted_memory,
                             const schedule::Timeline& measured,
                             const schedule::MemoryTimeline& measured_memory) {
    core::require(predicted.spans.size() == predicted.class_of.size() &&
                      measured.spans.size() == measured.class_of.size(),
                  "a trace needs the spans of every performer");
    TraceWriter writer(program);
    for (std::size_t p = 0; p < measured.spans.size(); ++p) {
        const int rank = measured.rank[p];
        // The rank itself where every rank was simulated, else its class's representative.
        std::size_t of_rank = predicted.class_of.size();
        for (std::size_t q = 0; q < predicted.class_of.size(); ++q)
            if (predicted.rank[q] == rank ||
                (of_rank == predicted.class_of.size() && predicted.class_of[q] == measured.class_of[p]))
                of_rank = q;
        if (of_rank < predicted.class_of.size())
            writer.add(2 * p, fmt::format("rank {} predicted", rank), predicted, of_rank, predicted_memory);
        writer.add(2 * p + 1, fmt::format("rank {} measured", rank), measured, p, measured_memory);
    }
    return writer.take();
}

}  // namespace sim
