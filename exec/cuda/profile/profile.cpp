#include "exec/cuda/profile/profile.h"
#include "exec/cuda/operator/fused_parts.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/make_backend.h"
#include "exec/profile/profiled_program.h"
#include "exec/runtime/run.h"
#include "model/operators/cost.h"

namespace exec::cuda {

namespace {

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Median over steps of all forward, or all backward, passes of a step.
double time_of_passes(const RunResult& result, const schedule::Program& program, bool is_forward) {
    std::vector<double> sums;
    for (std::size_t step = 2; step < result.timelines.size(); ++step) {
        double time = 0;
        for (const schedule::Span& span : result.timelines[step].spans[0]) {
            const schedule::Instruction& instruction = program.classes[0].instructions[span.instruction];
            if (instruction.kind == schedule::InstructionKind::compute &&
                (instruction.phase == schedule::ComputePhase::forward) == is_forward)
                time += (span.end - span.start).value;
        }
        sums.push_back(time);
    }
    return median(std::move(sums));
}

// Marks between operators keep their kernels from following one another closely: times are scaled so that
// they add up to passes without marks.
void scale_to_passes(OperatorTimes& times, const RunResult& unmarked, const schedule::Program& program) {
    for (const bool is_forward : {true, false}) {
        const auto belongs = [&](const auto& entry) {
            return (entry.first.phase == model::Phase::forward) == is_forward;
        };
        double sum = 0;
        for (const auto& entry : times)
            if (belongs(entry)) sum += program.whole_micro_batches() * entry.second;
        const double passes = time_of_passes(unmarked, program, is_forward);
        if (sum <= 0 || passes <= 0) continue;
        for (auto& entry : times)
            if (belongs(entry)) entry.second *= std::clamp(passes / sum, 0.5, 1.5);
    }
}

}  // namespace

GpuPlanProfile profile_plan(const schedule::Plan& plan, const model::ModelGraph& graph,
                            std::shared_ptr<const DataSource> data, bool measures_products) {
    const schedule::Program program = profiled_program(plan, 1, 1, graph);

    RunOptions options;
    options.steps = 16;  // to make the parameters of a billion takes longer
    options.make_backend = gpu_backend({.measures_products = measures_products}, false);
    const RunResult unmarked = run(program, graph, data, options);
    options.times_operators = true;
    const RunResult result = run(program, graph, data, options);

    GpuPlanProfile profile;
    profile.overhead = result.memory.at_peak[0][core::position_of(schedule::MemoryKind::overhead)];
    std::map<OperatorPass, std::vector<double>> by_operator;
    for (const OperatorSample& sample : result.operator_samples)
        if (sample.step > 1)
            by_operator[{sample.op, sample.segment, sample.phase}].push_back(sample.time.value);
    OperatorTimes times;
    for (const auto& [key, of_one] : by_operator) times[key] = median(of_one);
    scale_to_passes(times, unmarked, program);
    if (plan.layout.tensor == 1) profile.operators = by_signature(program, graph, times);

    // Bytes as the simulator counts them: states and master read and written, the gradient read, the
    // parameter written (and read without a master).
    const schedule::Precision& precision = plan.precision;
    const double an_element =
        core::size_of(precision.gradients).value +
        2 * schedule::state_bytes_per_parameter(plan.optimizer).value +
        (precision.has_master_parameters ? 8 + core::size_of(precision.parameters).value
                                         : 2 * core::size_of(precision.parameters).value) +
        (schedule::needs_update_norms(plan.optimizer) ? 8 : 0);
    double elements = 0;
    for (const schedule::ParameterBucket& bucket : program.classes[0].buckets) elements += bucket.elements;
    std::vector<double> updates;
    for (std::size_t step = 2; step < unmarked.timelines.size(); ++step) {
        double time = 0;
        for (const schedule::Span& span : unmarked.timelines[step].spans[0]) {
            const schedule::InstructionKind kind = program.classes[0].instructions[span.instruction].kind;
            if (kind == schedule::InstructionKind::optimizer_step ||
                kind == schedule::InstructionKind::update_norm)
                time += (span.end - span.start).value;
        }
        updates.push_back(time);
    }
    profile.update_bandwidth = core::BytesPerSecond(elements * an_element / std::max(1e-9, median(updates)));
    return profile;
}

void apply(const GpuPlanProfile& profile, cluster::InstanceType& instance) {
    instance.device.measured_operators = profile.operators;
    instance.device.memory_bandwidth = profile.update_bandwidth;
    instance.device.memory_efficiency = 1;
    // Operators were timed on their stream, with whatever the host kept them waiting for.
    instance.device.host_dispatch = core::Seconds(0);
    instance.device.context_memory = profile.overhead;
    instance.device.first_communicator_memory = instance.device.further_communicator_memory = core::Bytes(0);
    instance.device.fragmentation = 0;
}

namespace {

// Times work on the compute stream with events: three warm-ups, then the median of some repetitions.
class Stopwatch {
public:
    explicit Stopwatch(Machine& machine)
        : machine_(machine), stream_(machine.stream(schedule::Stream::compute)) {}
    Stream stream() const { return stream_; }

    // A repetition is `inner` times the work, so that one launch's gap does not count.
    core::Seconds time(const std::function<void()>& work, int inner = 10, int repetitions = 7) {
        const Event begin = machine_.make_event(true), end = machine_.make_event(true);
        for (int i = 0; i < 3; ++i) work();
        std::vector<double> times;
        for (int r = 0; r < repetitions; ++r) {
            machine_.record(begin, stream_);
            for (int i = 0; i < inner; ++i) work();
            machine_.record(end, stream_);
            machine_.synchronize();
            times.push_back(machine_.between(begin, end).value / inner);
        }
        return core::Seconds(median(times));
    }

private:
    Machine& machine_;
    const Stream stream_;
};

class Block {
public:
    Block(Machine& machine, std::size_t bytes) : machine_(machine), data_(machine.allocate(bytes)) {
        // Random-looking bits that are small numbers in every precision: products of zeros run faster than
        // real ones.
        std::vector<std::uint16_t> pattern(std::min<std::size_t>(bytes / 2, std::size_t{1} << 22));
        std::uint32_t state = 12345;
        for (std::uint16_t& word : pattern) {
            state = state * 1664525u + 1013904223u;
            word = static_cast<std::uint16_t>((state >> 16 & 0x83FFu) | 0x3C00u);
        }
        for (std::size_t at = 0; at < bytes; at += pattern.size() * 2)
            machine.upload_now(as<char>() + at, pattern.data(), std::min(bytes - at, pattern.size() * 2));
    }
    ~Block() { machine_.release(data_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    void* at(std::size_t offset = 0) const { return as<char>() + offset; }
    // As an array of what kernels take there.
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

private:
    Machine& machine_;
    void* data_;
};

void time_products(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    const std::size_t most = std::size_t{8192} * 8192 * 4;
    const Block a(machine, most), b(machine, most), c(machine, most);
    struct Precision {
        core::DataType type;
        Type storage;
        bool uses_tf32;
    };
    for (const Precision& precision : {Precision{core::DataType::bf16, Type::bf16, false},
                                       Precision{core::DataType::fp16, Type::fp16, false},
                                       Precision{core::DataType::tf32, Type::fp32, true},
                                       Precision{core::DataType::fp32, Type::fp32, false}})
        for (const std::int64_t n : {128, 256, 512, 1024, 2048, 4096, 8192}) {
            double rate = 0;
            const double flops = 2.0 * n * n * n;
            // x W^T (forward), dy W (input), dy^T x (weight).
            for (const auto& [transpose_a, transpose_b, layout] :
                 {std::tuple{false, true, "nt"}, std::tuple{false, false, "nn"},
                  std::tuple{true, false, "tn"}}) {
                Product p;
                p.in = p.out = precision.storage;
                p.uses_tf32 = precision.uses_tf32;
                p.transpose_a = transpose_a;
                p.transpose_b = transpose_b;
                p.m = p.n = p.k = p.lda = p.ldb = p.ldc = n;
                p.a = a.at();
                p.b = b.at();
                p.c = c.at();
                const core::Seconds time =
                    watch.time([&] { machine.product(watch.stream(), p); }, n <= 1024 ? 50 : 5);
                profile.rates.push_back({fmt::format("product {} {} x {} x {} {}",
                                                     core::name_of(precision.type), n, n, n, layout),
                                         core::Flops(flops),
                                         core::Bytes(3.0 * n * n * size_of(precision.storage)), time});
                rate += flops / time.value / 3;
            }
            profile.products[precision.type].push_back({core::Flops(flops), core::FlopsPerSecond(rate)});
        }
}

// Of octets with the common dimension contiguous, which is all there is: forward in the fast mode, both
// gradients of e5m2 by e4m3. Casts are priced apart.
void time_fp8_products(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    constexpr std::int64_t most = std::int64_t{8192} * 8192;
    const Block x(machine, 2 * most), c(machine, 2 * most), a(machine, most), b(machine, most),
        head(machine, 4096);
    const Kernels& k = machine.kernels();
    auto *unscale = head.as<float>(), *partials = head.as<float>() + 1024 / sizeof(float);
    for (const std::int64_t n : {128, 256, 512, 1024, 2048, 4096, 8192}) {
        double rate = 0;
        const double flops = 2.0 * n * n * n;
        for (const bool is_forward : {true, false}) {
            Product half;
            half.in = half.out = Type::bf16;
            half.transpose_b = true;
            half.m = half.n = half.k = half.lda = half.ldb = half.ldc = n;
            half.a = half.b = x.at();
            half.c = c.at();
            Product p = half;
            p.in_fp8 = true;
            p.a = a.at();
            p.b = b.at();
            p.a_unscale = p.b_unscale = unscale;
            p.a_format = is_forward ? Float8::e4m3 : Float8::e5m2;
            p.accumulates_fast = is_forward;
            if (!machine.offers_fp8(p, half)) return;
            k.largest_magnitudes(watch.stream(), Type::bf16, n * n, x.at(), partials);
            k.cast_to_float8(watch.stream(), Type::bf16, p.a_format, n, n, x.at(), partials, unscale,
                             a.as<std::uint8_t>(), nullptr);
            k.cast_to_float8(watch.stream(), Type::bf16, p.b_format, n, n, x.at(), partials, unscale,
                             b.as<std::uint8_t>(), nullptr);
            const core::Seconds time =
                watch.time([&] { machine.product(watch.stream(), p); }, n <= 1024 ? 50 : 5);
            profile.rates.push_back({fmt::format("product fp8 {} x {} x {} {}", n, n, n,
                                                 is_forward ? "e4m3 by e4m3, fast sums" : "e5m2 by e4m3"),
                                     core::Flops(flops), core::Bytes(4.0 * n * n), time});
            rate += flops / time.value * (is_forward ? 1 : 2) / 3;
        }
        profile.products[core::DataType::fp8].push_back({core::Flops(flops), core::FlopsPerSecond(rate)});
    }
}

void time_attention(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    for (const std::int64_t tokens : {1024, 2048, 4096})
        for (const std::int64_t head : {64, 128}) {
            AttentionShape shape;
            shape.samples = 16384 / tokens;
            shape.tokens = tokens;
            shape.heads = shape.kv_heads = 2048 / head;
            shape.head_dimension = head;
            shape.is_causal = true;
            shape.scale = 0.125f;
            const std::size_t rows = shape.samples * shape.tokens;
            const std::size_t packed = rows * shape.row() * 2, plain = rows * 2048 * 2,
                              sums = rows * shape.heads * 4;
            const Block qkv(machine, packed), dqkv(machine, packed), y(machine, plain), dy(machine, plain),
                log_sums(machine, sums), workspace(machine, sums);
            const bool fused = !fused_attention_unsupported(machine, Type::bf16, shape);
            const double flops = 4.0 * (shape.samples * shape.heads) * (tokens * tokens) * head / 2;
            const Stream s = watch.stream();
            const Kernels& k = machine.kernels();
            const auto forward = [&] {
                if (fused)
                    fused_attention(machine, s, Type::bf16, shape, qkv.at(), nullptr, y.at(),
                                    log_sums.as<float>());
                else k.attention(s, Type::bf16, shape, qkv.at(), nullptr, y.at(), log_sums.as<float>());
            };
            const auto backward = [&] {
                const auto* kept = log_sums.as<const float>();
                if (fused)
                    fused_attention_backward(machine, s, Type::bf16, shape, qkv.at(), nullptr, y.at(), kept,
                                             dy.at(), dqkv.at(), nullptr, nullptr);
                else
                    k.attention_backward(s, Type::bf16, shape, qkv.at(), nullptr, y.at(), kept, dy.at(),
                                         dqkv.at(), nullptr, workspace.at());
            };
            const std::string what =
                fmt::format("attention bf16 causal {} x {} tokens x {} heads of {} ({})", shape.samples,
                            tokens, shape.heads, head, fused ? "cuDNN" : "own kernel");
            profile.rates.push_back(
                {what + " forward", core::Flops(flops), core::Bytes(0), watch.time(forward, 3)});
            profile.rates.push_back(
                {what + " backward", core::Flops(2.5 * flops), core::Bytes(0), watch.time(backward, 3)});
        }
}

// Adds a rate, and its share of the pace of a copy.
void add_rate(GpuProfile& profile, std::string what, double bytes, core::Seconds time) {
    const double share = bytes / time.value / profile.copy_bandwidth.value;
    if (share < profile.worst_kernel_share) {
        profile.worst_kernel_share = share;
        profile.worst_kernel = what;
    }
    profile.rates.push_back({std::move(what), core::Flops(0), core::Bytes(bytes), time});
}

// Our own memory-bound kernels against a copy of as many bytes.
void time_streams(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    constexpr std::int64_t rows = 32768, width = 4096, count = rows * width;
    constexpr double tensor = 2.0 * count;
    const Block x(machine, 2 * count), y(machine, 2 * count), z(machine, 2 * count),
        statistics(machine, 8 * rows), mask(machine, count);
    const Block scale(machine, 4 * width), sums(machine, 4 * width), labels(machine, 8 * rows),
        workspace(machine, norm_workspace(rows, width));
    const Block keys(machine, 8 * 64);
    const Stream s = watch.stream();
    const Kernels& k = machine.kernels();
    profile.copy_bandwidth = core::BytesPerSecond(
        2 * tensor / watch.time([&] { machine.copy(s, y.at(), x.at(), 2 * count); }).value);
    const std::vector<std::int64_t> ids = [&] {
        std::vector<std::int64_t> values(rows);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = i * 7919 % width;
        return values;
    }();
    machine.upload_now(labels.at(), ids.data(), ids.size() * 8);
    const auto kept = [](const Block& block) { return block.as<float>(); };
    const Values factors{scale.at(), Type::fp32};
    const auto* classes = labels.as<const std::int64_t>();
    const auto measure = [&](const char* what, double bytes, const std::function<void()>& work) {
        add_rate(profile, fmt::format("{} bf16 {} x {}", what, rows, width), bytes, watch.time(work));
    };
    const ClassShape shape{rows, width, width, 0, 1};
    measure("add", 3 * tensor, [&] { k.add(s, Type::bf16, count, x.at(), y.at(), z.at()); });
    measure("gelu", 2 * tensor, [&] { k.unary(s, Type::bf16, Unary::gelu_tanh, count, x.at(), y.at()); });
    measure("gelu backward", 3 * tensor,
            [&] { k.unary_backward(s, Type::bf16, Unary::gelu_tanh, count, x.at(), y.at(), z.at(), false); });
    measure("swiglu", 1.5 * tensor,
            [&] { k.gated(s, Type::bf16, Unary::silu, rows, width / 2, x.at(), y.at()); });
    measure("layer norm", 2 * tensor, [&] {
        k.layer_norm(s, Type::bf16, rows, width, 1e-5f, x.at(), factors, factors, y.at(), kept(statistics));
    });
    measure("layer norm backward", 3 * tensor, [&] {
        k.layer_norm_backward(s, Type::bf16, rows, width, x.at(), kept(statistics), factors, y.at(), z.at(),
                              nullptr);
    });
    measure("layer norm weights", 2 * tensor, [&] {
        k.norm_weights(s, Type::bf16, true, rows, width, x.at(), kept(statistics), y.at(),
                       {sums.at(), Type::fp32}, {sums.at(), Type::fp32}, workspace.at());
    });
    measure("rms norm", 2 * tensor, [&] {
        k.rms_norm(s, Type::bf16, rows, width, 1e-5f, x.at(), factors, y.at(), kept(statistics));
    });
    measure("column sums", tensor, [&] {
        k.column_sums(s, Type::bf16, rows, width, x.at(), {sums.at(), Type::fp32}, workspace.at());
    });
    auto* partials = kept(sums);
    auto *octets = y.as<std::uint8_t>(), *turned = z.as<std::uint8_t>();
    measure("largest magnitude", tensor,
            [&] { k.largest_magnitudes(s, Type::bf16, count, x.at(), partials); });
    measure("cast to fp8", 1.5 * tensor, [&] {
        k.cast_to_float8(s, Type::bf16, Float8::e4m3, rows, width, x.at(), partials, kept(statistics), octets,
                         nullptr);
    });
    measure("cast to fp8 and transposed", 2 * tensor, [&] {
        k.cast_to_float8(s, Type::bf16, Float8::e5m2, rows, width, x.at(), partials, kept(statistics), octets,
                         turned);
    });
    DropoutShape dropout{rows, width, rows / 64, width, 0, 0, 0.1f, keys.as<const std::uint64_t>()};
    measure("dropout and residual", 3.5 * tensor,
            [&] { k.dropout(s, Type::bf16, dropout, x.at(), y.at(), z.at(), mask.as<std::uint8_t>()); });
    measure("loss statistics", tensor,
            [&] { k.loss_statistics(s, Type::bf16, shape, x.at(), classes, kept(workspace), nullptr); });
    measure("cross-entropy backward", 2 * tensor, [&] {
        k.cross_entropy_backward(s, Type::bf16, shape, 1e-3f, nullptr, x.at(), kept(workspace), nullptr,
                                 classes, z.at(), false);
    });
    measure("embedding", 2 * tensor, [&] {
        k.embedding(s, Type::bf16, rows, width, 0, width, classes, {x.at(), Type::bf16}, y.at());
    });
}

// Norms at the shapes of GPT-2 124M, GPT-2 1.5B and a Llama of a billion, where rows are short or lie badly.
void time_norms(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    const Stream s = watch.stream();
    const Kernels& k = machine.kernels();
    for (const auto& shape :
         {std::pair<std::int64_t, std::int64_t>{32768, 768}, {8192, 1600}, {16384, 2048}}) {
        const std::int64_t rows = shape.first, width = shape.second;  // clang 14 captures no bindings
        const std::int64_t count = rows * width;
        const double tensor = 2.0 * count;
        // Larger together than any second-level cache: what one step reads another one has written long
        // before.
        constexpr int copies = 8;
        const Block x(machine, 2 * count * copies), y(machine, 2 * count * copies),
            z(machine, 2 * count * copies), scale(machine, 4 * width), statistics(machine, 8 * rows),
            workspace(machine, norm_workspace(rows, width));
        const Values factors{scale.at(), Type::bf16};
        auto* kept = statistics.as<float>();
        int turn = 0;
        const auto at = [&](const Block& block) { return block.at(turn % copies * 2 * count); };
        const auto measure = [&](const char* what, double bytes, const std::function<void()>& work) {
            add_rate(profile, fmt::format("{} bf16 {} x {}", what, rows, width), bytes, watch.time([&] {
                work();
                ++turn;
            }));
        };
        measure("layer norm", 2 * tensor, [&] {
            k.layer_norm(s, Type::bf16, rows, width, 1e-5f, at(x), factors, factors, at(y), kept);
        });
        measure("layer norm backward to a residual", 4 * tensor, [&] {
            k.layer_norm_backward(s, Type::bf16, rows, width, at(x), kept, factors, at(y), at(z), at(y));
        });
        measure("rms norm", 2 * tensor,
                [&] { k.rms_norm(s, Type::bf16, rows, width, 1e-5f, at(x), factors, at(y), kept); });
        measure("rms norm backward", 3 * tensor, [&] {
            k.rms_norm_backward(s, Type::bf16, rows, width, at(x), kept, factors, at(y), at(z), nullptr);
        });
        measure("norm weights", 2 * tensor, [&] {
            k.norm_weights(s, Type::bf16, true, rows, width, at(x), kept, at(y), {scale.at(), Type::bf16},
                           {scale.at(), Type::bf16}, workspace.at());
        });
        measure("column sums", tensor, [&] {
            k.column_sums(s, Type::bf16, rows, width, at(x), {scale.at(), Type::bf16}, workspace.at());
        });
    }
}

// The loss over GPT-2's own vocabulary, which lies across, and its table.
void time_vocabulary(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    const Stream s = watch.stream();
    const Kernels& k = machine.kernels();
    constexpr std::int64_t rows = 8192, classes = 50257, width = 768;
    ClassShape shape{rows, classes, classes, 0, 1};
    shape.is_across = true;
    const Block logits(machine, 2 * rows * classes), dlogits(machine, 2 * rows * classes),
        labels(machine, 8 * rows), statistics(machine, 12 * rows), workspace(machine, loss_workspace(shape)),
        table(machine, 2 * classes * width), dy(machine, 2 * rows * width),
        sorted(machine, embedding_workspace(rows, width));
    std::vector<std::int64_t> ids(rows);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i * 7919 % classes;
    machine.upload_now(labels.at(), ids.data(), ids.size() * 8);
    const auto* own = labels.as<const std::int64_t>();
    auto* kept = statistics.as<float>();
    constexpr double all = 2.0 * rows * classes;
    add_rate(profile, "loss statistics across bf16 8192 x 50257", all, watch.time([&] {
        k.loss_statistics(s, Type::bf16, shape, logits.at(), own, kept, workspace.at());
    }));
    add_rate(profile, "cross-entropy backward across bf16 8192 x 50257", 2 * all, watch.time([&] {
        k.cross_entropy_backward(s, Type::bf16, shape, 1e-3f, nullptr, logits.at(), kept, nullptr, own,
                                 dlogits.at(), false);
    }));
    // It sorts ids first: told, and not counted among those that memory binds alone.
    profile.rates.push_back({"embedding weight bf16 8192 x 768 of 50257", core::Flops(0),
                             core::Bytes(3 * 2.0 * rows * width), watch.time([&] {
                                 k.embedding_weight(s, Type::bf16, rows, width, 0, classes, own, dy.at(),
                                                    {table.at(), Type::bf16}, sorted.at());
                             })});
}

// Updates of parameters in bf16 with fp32 master weights and moments. Bytes an element: AdamW reads gradient,
// master and moments and writes master, moments and parameter; the first half of LAMB reads the same and
// writes the moments; its second half reads master and moments and writes master and parameter.
void time_updates(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    constexpr double half = 2, single = 4;
    constexpr double adam_bytes = half + 3 * single + 3 * single + half,
                     lamb_norm_bytes = half + 3 * single + 2 * single,
                     lamb_step_bytes = 3 * single + single + half;
    const Stream s = watch.stream();
    const Kernels& k = machine.kernels();
    constexpr std::int64_t elements = 128 << 20;
    const Block parameters(machine, 2 * elements), gradients(machine, 2 * elements),
        master(machine, 4 * elements), first(machine, 4 * elements), second(machine, 4 * elements),
        ranges(machine, sizeof(DeviceRange)), chunks(machine, elements / update_chunk * sizeof(UpdateChunk)),
        factors(machine, sizeof(StepFactors)), norm(machine, 256),
        partials(machine, 2 * elements / update_chunk * sizeof(float));
    const DeviceRange range{parameters.at(),
                            gradients.at(),
                            master.as<float>(),
                            first.as<float>(),
                            second.as<float>(),
                            elements,
                            0.1f};
    machine.upload_now(ranges.at(), &range, sizeof range);
    std::vector<UpdateChunk> list;
    for (std::int64_t begin = 0; begin < elements; begin += update_chunk) list.push_back({0, begin});
    machine.upload_now(chunks.at(), list.data(), list.size() * sizeof(UpdateChunk));
    const StepFactors step{1e-4f, 0.9f, 0.99f, 1e-8f, 0, 1e-4f, 1, 1, 1, 0, 0.1f, 0.01f};
    machine.upload_now(factors.at(), &step, sizeof step);
    const auto* device_ranges = ranges.as<const DeviceRange>();
    const auto* device_chunks = chunks.as<const UpdateChunk>();
    const auto* device_factors = factors.as<const StepFactors>();
    const auto count = std::ssize(list);
    add_rate(profile, fmt::format("AdamW bf16 with fp32 master weights, {}", elements), adam_bytes * elements,
             watch.time(
                 [&] {
                     k.update(s, UpdateRule::adam, Type::bf16, Type::bf16, device_ranges, device_chunks,
                              count, device_factors, nullptr, nullptr);
                 },
                 3));
    auto* const sums = norm.as<float>();
    add_rate(profile, fmt::format("LAMB bf16, moments and norms, {}", elements), lamb_norm_bytes * elements,
             watch.time(
                 [&] {
                     k.update_norms(s, Type::bf16, Type::bf16, device_ranges, 1, device_chunks, count,
                                    device_factors, nullptr, nullptr, partials.as<float>(), sums);
                 },
                 3));
    add_rate(profile, fmt::format("LAMB bf16, step, {}", elements), lamb_step_bytes * elements,
             watch.time(
                 [&] {
                     k.lamb(s, Type::bf16, device_ranges, device_chunks, count, device_factors, nullptr,
                            sums);
                 },
                 3));
    add_rate(profile, fmt::format("norm of gradients bf16, {}", elements), half * elements,
             watch.time(
                 [&] {
                     k.gradient_norm(s, Type::bf16, device_ranges, device_chunks, count, device_factors,
                                     partials.as<float>(), norm.as<float>());
                 },
                 3));
}

void time_launches(Machine& machine, Stopwatch& watch, GpuProfile& profile) {
    const Block x(machine, 4096);
    const Stream s = watch.stream();
    const Kernels& k = machine.kernels();
    const auto tiny = [&] { k.add(s, Type::fp32, 32, x.at(), x.at(), x.at()); };
    profile.kernel = watch.time(tiny, 500);
    machine.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    constexpr int launches = 500;  // fewer than a stream holds back
    for (int i = 0; i < launches; ++i) tiny();
    profile.launch = core::Seconds(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / launches);
    machine.synchronize();
    constexpr std::size_t large = std::size_t{256} << 20;
    const Block device(machine, large);
    void* host = machine.allocate_host(large);
    profile.copy_latency = watch.time([&] { machine.upload(s, device.at(), host, 64); }, 50);
    profile.to_device = core::BytesPerSecond(
        large / watch.time([&] { machine.upload(s, device.at(), host, large); }, 2).value);
    profile.to_host = core::BytesPerSecond(
        large / watch.time([&] { machine.download(s, host, device.at(), large); }, 2).value);
    machine.release_host(host);
}

}  // namespace

GpuProfile profile_gpu(Machine& machine) {
    GpuProfile profile;
    Stopwatch watch(machine);
    time_launches(machine, watch, profile);
    time_streams(machine, watch, profile);
    time_norms(machine, watch, profile);
    time_vocabulary(machine, watch, profile);
    time_updates(machine, watch, profile);
    time_products(machine, watch, profile);
    time_fp8_products(machine, watch, profile);
    time_attention(machine, watch, profile);
    return profile;
}

void apply(const GpuProfile& profile, cluster::InstanceType& instance, const std::string& date) {
    cluster::DeviceSpec& device = instance.device;
    const std::string source = "measured by `smexec profile --backend cuda` on this machine";
    for (const auto& [type, points] : profile.products) {
        if (!device.peak.contains(type))
            continue;  // peaks are the vendor's: a measured curve lies below them
        cluster::MatrixProductCurve& curve = device.matrix_product[type];
        curve.points = points;
        curve.launch = profile.kernel;
        if (curve.compute_efficiency <= 0)
            curve.compute_efficiency = std::min(1.0, points.back().rate.value / device.peak[type].value);
        if (curve.memory_efficiency <= 0) curve.memory_efficiency = 1;
        instance.provenance[fmt::format("device.precision.{}", core::name_of(type))] = {source, date,
                                                                                        "measured"};
    }
    device.memory_efficiency = std::min(1.0, profile.copy_bandwidth.value / device.memory_bandwidth.value);
    device.kernel_launch = profile.kernel;
    device.host_dispatch = profile.launch;
    instance.provenance["device"] = {source, date, "measured"};
    instance.notes.push_back(fmt::format(
        "{}, {}: copies {} on the device, {} to it, {} from it; a small kernel {}, its launch {}", source,
        date, core::format(profile.copy_bandwidth), core::format(profile.to_device),
        core::format(profile.to_host), core::format(profile.kernel), core::format(profile.launch)));
    for (const GpuProfile::Rate& rate : profile.rates) {
        if (!rate.what.starts_with("attention")) continue;
        instance.notes.push_back(fmt::format("{}: {} in {}", rate.what, core::format(rate.flops / rate.time),
                                             core::format(rate.time)));
    }
}

}  // namespace exec::cuda
