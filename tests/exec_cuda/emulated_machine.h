// A GPU that is this processor: our kernels run thread by thread (exec/cuda/emulation/emulation.cpp),
// libraries are loops, every launch is done when it returns.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "core/random.h"
#include "exec/cuda/body/elementwise.h"
#include "exec/cuda/emulation/emulated_kernels.h"
#include "exec/cuda/machine.h"
#include "exec/transport/collective.h"
#include "schedule/collective/rounds.h"

namespace emulated {

using namespace exec::cuda;

inline float value(Type type, const void* data, std::int64_t i) {
    return host_body::value_at({data, type}, i);
}
inline void set(Type type, void* data, std::int64_t i, float x) {
    switch (type) {
        case Type::fp32: static_cast<float*>(data)[i] = x; break;
        case Type::bf16:
            static_cast<host_body::Bf16*>(data)[i] = host_body::from_float<host_body::Bf16>(x);
            break;
        case Type::fp16:
            static_cast<host_body::Fp16*>(data)[i] = host_body::from_float<host_body::Fp16>(x);
            break;
    }
}

// Of an operand of a product, as matrix units see it.
inline float element(const Product& p, bool is_a, std::int64_t i) {
    const void* data = is_a ? p.a : p.b;
    if (!p.in_fp8) return value(p.in, data, i);
    return exec::from_float8(is_a ? p.a_format : p.b_format, static_cast<const std::uint8_t*>(data)[i]);
}

class Emulated : public Machine {
public:
    explicit Emulated(bool fuses = true, bool has_fp8 = true) : fuses_(fuses), has_fp8_(has_fp8) {}
    ~Emulated() override {
        for (void* block : blocks_) std::free(block);
    }
    const Kernels& kernels() const override { return emulated_kernels(); }
    std::string describe() const override { return "emulated"; }

    void* allocate(std::size_t bytes) override {
        void* block = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
        std::memset(block, 0x7F, bytes);  // NaN in every precision: what nobody wrote must not pass for zero
        blocks_.push_back(block);
        return block;
    }
    void release(void*) override {}
    void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
    void release_host(void*) override {}
    // Of nothing the address may be null, as for cudaMemcpy.
    void upload_now(void* to, const void* from, std::size_t bytes) override {
        if (bytes > 0) std::memcpy(to, from, bytes);
    }
    void download_now(void* to, const void* from, std::size_t bytes) override { upload_now(to, from, bytes); }
    void synchronize() override {}
    core::Bytes memory_in_use() override { return {}; }
    Stream stream(schedule::Stream which) override {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(which) + 1);
    }
    Stream message_stream(int number) override {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number) + 100);
    }
    Event make_event(bool) override {
        events_.push_back(0);
        return reinterpret_cast<void*>(events_.size());
    }
    void record(Event event, Stream) override {
        events_[reinterpret_cast<std::uintptr_t>(event) - 1] = ++moment_;
    }
    void wait(Stream, Event event) override {
        core::require(event && events_[reinterpret_cast<std::uintptr_t>(event) - 1] > 0,
                      "what is waited for was recorded");
    }
    bool has_happened(Event) override { return true; }
    core::Seconds between(Event first, Event second) override {
        return core::Seconds(1e-6 *
                             static_cast<double>(events_[reinterpret_cast<std::uintptr_t>(second) - 1] -
                                                 events_[reinterpret_cast<std::uintptr_t>(first) - 1]));
    }
    void fill_zero(Stream, void* to, std::size_t bytes) override { std::memset(to, 0, bytes); }
    void copy(Stream, void* to, const void* from, std::size_t bytes) override {
        std::memmove(to, from, bytes);
    }
    void upload(Stream, void* to, const void* from, std::size_t bytes) override {
        std::memcpy(to, from, bytes);
    }
    void download(Stream, void* to, const void* from, std::size_t bytes) override {
        std::memcpy(to, from, bytes);
    }

    void call(Stream, void (*function)(void*), void* argument) override { function(argument); }

    void product(Stream, const Product& p) override {
        core::require(!p.in_fp8 || is_taken(p),
                      "matrix units take fp8 with k contiguous in both operands, and never e5m2 by e5m2");
        const float unscale = p.in_fp8 ? *p.a_unscale * *p.b_unscale : 1.0f;
        for (std::int64_t b = 0; b < p.batch; ++b)
            for (std::int64_t i = 0; i < p.m; ++i)
                for (std::int64_t j = 0; j < p.n; ++j) {
                    float sum = 0;
                    for (std::int64_t k = 0; k < p.k; ++k)
                        sum += element(p, true,
                                       b * p.stride_a + (p.transpose_a ? k * p.lda + i : i * p.lda + k)) *
                               element(p, false,
                                       b * p.stride_b + (p.transpose_b ? j * p.ldb + k : k * p.ldb + j));
                    sum *= p.alpha * unscale;
                    const std::int64_t at = b * p.stride_c + i * p.ldc + j;
                    if (p.bias) sum += value(p.out, p.bias, j);
                    if (p.accumulates || p.addend) sum += value(p.out, p.addend ? p.addend : p.c, at);
                    if (p.before_gelu) {
                        set(p.out, p.before_gelu, at, sum);
                        sum = host_body::unary_value<Unary::gelu_tanh, float>(sum);
                    }
                    if (p.gelu_input)
                        sum *=
                            host_body::unary_slope<Unary::gelu_tanh, float>(value(p.out, p.gelu_input, at));
                    set(p.out, p.c, at, sum);
                }
        for (std::int64_t i = 0; p.row_sums && i < p.m; ++i) {
            float sum = 0;
            for (std::int64_t k = 0; k < p.k; ++k) sum += value(p.in, p.a, k * p.lda + i);
            set(p.out, p.row_sums, i, sum);
        }
        fused_ += p.has_epilogue();
        added_ += p.addend != nullptr;
        in_fp8_ += p.in_fp8;
    }
    bool offers(const Product& p) const override { return fuses_ && p.n % 8 == 0; }
    bool offers_fp8(const Product& p, const Product& half) const override {
        return has_fp8_ && is_taken(p) && half.m == p.m && !half.in_fp8;
    }
    bool loads_late = false;
    // Products with an epilogue, and those that took an addition over.
    int fused() const { return fused_; }
    int added() const { return added_; }
    int in_fp8() const { return in_fp8_; }

    // As cuDNN, but in every precision.
    std::optional<core::Unsupported> fused_attention_unsupported(
        Type, const FusedAttentionShape& s) const override {
        if (!fuses_attention) return core::Unsupported{"attention that is not emulated"};
        if (s.queries > s.keys) return core::Unsupported{"more queries than keys"};
        if (s.dropout > 0 && (s.window > 0 || (s.is_causal && s.queries != s.keys)))
            return core::Unsupported{"dropout beside this mask"};
        return std::nullopt;
    }
    void fused_attention(Stream, Type type, const FusedAttentionShape& s,
                         const FusedAttentionArrays& a) override {
        ++fused_attentions_;
        for_each_query(type, s, a, [&](const Query& q) {
            float sum = 0;
            for (const float score : q.scores) sum += std::exp(score);
            a.log_sums[q.number] = std::log(sum);
            for (std::int64_t c = 0; c < s.head_dimension; ++c) {
                float y = 0;
                for (std::size_t j = 0; j < q.scores.size(); ++j)
                    y += std::exp(q.scores[j]) / sum * q.kept[j] *
                         value(type, a.values, q.key + static_cast<std::int64_t>(j) * s.key_row + c);
                set(type, a.output, q.output + c, y);
            }
        });
    }
    void fused_attention_backward(Stream, Type type, const FusedAttentionShape& s,
                                  const FusedAttentionArrays& a, const FusedAttentionGradients& g) override {
        ++fused_attentions_;
        std::vector<float> dkeys(static_cast<std::size_t>(s.samples * s.key_sample)), dvalues(dkeys.size());
        for_each_query(type, s, a, [&](const Query& q) {
            std::vector<float> dq(static_cast<std::size_t>(s.head_dimension));
            float delta = 0;
            for (std::int64_t c = 0; c < s.head_dimension; ++c)
                delta += value(type, a.output, q.output + c) * value(type, g.output, q.output + c);
            for (std::size_t j = 0; j < q.scores.size(); ++j) {
                const std::int64_t key = q.key + static_cast<std::int64_t>(j) * s.key_row;
                const float p = std::exp(q.scores[j] - a.log_sums[q.number]);
                float dp = 0;
                for (std::int64_t c = 0; c < s.head_dimension; ++c) {
                    const float dy = value(type, g.output, q.output + c);
                    dp += dy * value(type, a.values, key + c);
                    dvalues[static_cast<std::size_t>(key + c)] += p * q.kept[j] * dy;
                }
                const float ds = p * (dp * q.kept[j] - delta) * s.scale;
                for (std::int64_t c = 0; c < s.head_dimension; ++c) {
                    dq[static_cast<std::size_t>(c)] += ds * value(type, a.keys, key + c);
                    dkeys[static_cast<std::size_t>(key + c)] += ds * value(type, a.queries, q.query + c);
                }
            }
            for (std::int64_t c = 0; c < s.head_dimension; ++c)
                set(type, g.queries, q.query + c, dq[static_cast<std::size_t>(c)]);
        });
        for (std::int64_t sample = 0; sample < s.samples; ++sample)
            for (std::int64_t key = 0; key < s.keys; ++key)
                for (std::int64_t c = 0; c < s.kv_heads * s.head_dimension; ++c) {
                    const std::int64_t at = sample * s.key_sample + key * s.key_row + c;
                    set(type, g.keys, at, dkeys[static_cast<std::size_t>(at)]);
                    set(type, g.values, at, dvalues[static_cast<std::size_t>(at)]);
                }
    }
    bool fuses_attention = false;
    int fused_attentions() const { return fused_attentions_; }

    void convolution(Stream, ConvolutionPass pass, Type type, const ImageShape& s, const void* a,
                     const void* b, void* result, bool accumulates) override {
        const bool is_forward = pass == ConvolutionPass::forward, is_input = pass == ConvolutionPass::input;
        const std::int64_t kernel = s.channels * s.kernel_y * s.kernel_x;
        std::vector<float> sums(
            static_cast<std::size_t>(is_forward ? s.samples * s.out_channels * s.out_rows * s.out_columns
                                     : is_input ? s.samples * s.channels * s.rows * s.columns
                                                : s.out_channels * kernel));
        for (std::int64_t n = 0; n < s.samples; ++n)
            for (std::int64_t o = 0; o < s.out_channels; ++o)
                for (std::int64_t y = 0; y < s.out_rows; ++y)
                    for (std::int64_t x = 0; x < s.out_columns; ++x)
                        for (std::int64_t c = 0; c < s.channels; ++c)
                            for (std::int64_t ky = 0; ky < s.kernel_y; ++ky)
                                for (std::int64_t kx = 0; kx < s.kernel_x; ++kx) {
                                    const std::int64_t py = y * s.stride - s.padding + ky,
                                                       px = x * s.stride - s.padding + kx;
                                    if (py < 0 || py >= s.rows || px < 0 || px >= s.columns) continue;
                                    const std::int64_t in =
                                        ((n * s.channels + c) * s.rows + py) * s.columns + px;
                                    const std::int64_t out =
                                        ((n * s.out_channels + o) * s.out_rows + y) * s.out_columns + x;
                                    const std::int64_t weight =
                                        o * kernel + (c * s.kernel_y + ky) * s.kernel_x + kx;
                                    if (is_forward)
                                        sums[static_cast<std::size_t>(out)] +=
                                            value(type, a, in) * value(type, b, weight);
                                    else if (is_input)
                                        sums[static_cast<std::size_t>(in)] +=
                                            value(type, a, out) * value(type, b, weight);
                                    else
                                        sums[static_cast<std::size_t>(weight)] +=
                                            value(type, a, in) * value(type, b, out);
                                }
        for (std::size_t i = 0; i < sums.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i);
            set(type, result, at, sums[i] + (accumulates ? value(type, result, at) : 0.0f));
        }
    }

    bool can_capture() const override { return false; }
    void begin_capture(Stream) override {}
    void end_capture(Stream) override {}
    void launch_captured(Stream) override {}
    void forget_captured() override {}
    bool loads_kernels_late() const override { return loads_late; }
    void begin_range(const char*) override {}
    void end_range() override {}

private:
    // One query of one head: where it, its result and the first key of its sample begin, the scores of the
    // keys that it sees, and what dropout makes of each.
    struct Query {
        std::int64_t number = 0, query = 0, output = 0, key = 0;
        std::vector<float> scores, kept;
    };
    template <class Visit>
    static void for_each_query(Type type, const FusedAttentionShape& s, const FusedAttentionArrays& a,
                               const Visit& visit) {
        for (std::int64_t number = 0; number < s.samples * s.heads * s.queries; ++number) {
            const std::int64_t sample = number / (s.heads * s.queries), head = number / s.queries % s.heads,
                               i = number % s.queries;
            Query q{number,
                    sample * s.query_sample + i * s.query_row + head * s.head_dimension,
                    sample * s.output_sample + i * s.output_row + head * s.head_dimension,
                    sample * s.key_sample + head / (s.heads / s.kv_heads) * s.head_dimension,
                    {},
                    {}};
            for (std::int64_t j = 0; j < (s.is_causal ? s.keys - s.queries + i + 1 : s.keys); ++j) {
                float score = 0;
                for (std::int64_t c = 0; c < s.head_dimension; ++c)
                    score +=
                        value(type, a.queries, q.query + c) * value(type, a.keys, q.key + j * s.key_row + c);
                // Outside the window nothing is seen.
                const bool is_seen = s.window == 0 || j > s.keys - s.queries + i - s.window;
                q.scores.push_back(is_seen ? s.scale * score : -std::numeric_limits<float>::infinity());
                core::Random random(s.dropout > 0 ? (*a.seed ^ *a.offset * 0x9E3779B97F4A7C15ull) +
                                                        static_cast<std::uint64_t>(number * s.keys + j)
                                                  : 0);
                q.kept.push_back(s.dropout <= 0 ? 1.0f
                                 : random.below(1000) < static_cast<std::uint64_t>(1000 * s.dropout)
                                     ? 0.0f
                                     : 1.0f / (1.0f - s.dropout));
            }
            visit(q);
        }
    }
    int fused_attentions_ = 0;
    static bool is_taken(const Product& p) {
        const bool are_multiples =
            p.m % 16 == 0 && p.n % 16 == 0 && p.k % 16 == 0 && p.lda % 16 == 0 && p.ldb % 16 == 0;
        return are_multiples && !p.transpose_a && p.transpose_b &&
               (p.a_format == exec::Float8::e4m3 || p.b_format == exec::Float8::e4m3);
    }
    const bool fuses_, has_fp8_;
    int fused_ = 0, added_ = 0, in_fp8_ = 0;
    std::vector<void*> blocks_;
    std::vector<std::int64_t> events_;
    std::int64_t moment_ = 0;
};

// Collectives as rounds of messages among the ranks' threads, sums in fp32.
class Messages : public Exchange {
public:
    explicit Messages(exec::Communicator& communicator) : communicator_(communicator) {}
    int make_group(const std::vector<int>& members) override {
        groups_.push_back(members);
        return static_cast<int>(groups_.size()) - 1;
    }
    void all_reduce(Stream, int group, core::DataType type, void* data, std::size_t count, bool) override {
        perform(schedule::CollectiveKind::all_reduce, group, type, data, count);
    }
    void all_gather(Stream, int group, core::DataType type, void* data, std::size_t count) override {
        perform(schedule::CollectiveKind::all_gather, group, type, data, count * size(group));
    }
    void reduce_scatter(Stream, int group, core::DataType type, void* data, std::size_t count) override {
        perform(schedule::CollectiveKind::reduce_scatter, group, type, data, count * size(group));
    }
    void broadcast(Stream, int, core::DataType, void*, std::size_t) override {}
    void all_to_all(Stream s, int group, core::DataType type, const void* from, void* to,
                    std::size_t count) override {
        const std::size_t bytes = count * static_cast<std::size_t>(core::size_of(type).value);
        const auto part = [&](const void* base, int peer) {
            return static_cast<char*>(const_cast<void*>(base)) + static_cast<std::size_t>(peer) * bytes;
        };
        const auto peers = static_cast<int>(size(group));
        for (int peer = 0; peer < peers; ++peer)
            if (is_self(group, peer)) std::memcpy(part(to, peer), part(from, peer), bytes);
            else send(s, group, peer, part(from, peer), bytes, 0);
        for (int peer = 0; peer < peers; ++peer)
            if (!is_self(group, peer)) receive(s, group, peer, part(to, peer), bytes, 0);
    }
    void begin_messages() override {}
    void send(Stream, int group, int peer, const void* data, std::size_t bytes, exec::Tag) override {
        auto copy = std::make_shared<std::vector<float>>((bytes + 3) / 4);
        std::memcpy(copy->data(), data, bytes);
        communicator_.start_send(groups_[static_cast<std::size_t>(group)][static_cast<std::size_t>(peer)],
                                 tag(group), *copy, copy);
    }
    void receive(Stream, int group, int peer, void* data, std::size_t bytes, exec::Tag) override {
        std::vector<float> copy((bytes + 3) / 4);
        communicator_.receive(groups_[static_cast<std::size_t>(group)][static_cast<std::size_t>(peer)],
                              tag(group), copy, exec::Arrival::overwrites);
        std::memcpy(data, copy.data(), bytes);
    }
    void end_messages() override {}
    void check() override {}
    void abort() override {}

private:
    bool is_self(int group, int peer) const {
        return groups_[static_cast<std::size_t>(group)][static_cast<std::size_t>(peer)] ==
               communicator_.rank();
    }
    std::size_t size(int group) const { return groups_[static_cast<std::size_t>(group)].size(); }
    // Messages of a group are matched by their order alone, as NCCL does. Groups have other numbers on other
    // ranks: members tell them apart.
    exec::Tag tag(int group) const {
        exec::Tag hash = 1469598103934665603ull;
        for (const int member : groups_[static_cast<std::size_t>(group)])
            hash = (hash ^ static_cast<exec::Tag>(member)) * 1099511628211ull;
        std::uint64_t same = 0;  // several channels of the same two ranks
        for (int g = 0; g < group; ++g)
            same += groups_[static_cast<std::size_t>(g)] == groups_[static_cast<std::size_t>(group)];
        return (hash + same * 64) << 12 >> 2;
    }
    void perform(schedule::CollectiveKind kind, int group, core::DataType type, void* data,
                 std::size_t count) {
        const std::vector<int>& members = groups_[static_cast<std::size_t>(group)];
        const Type storage = type == core::DataType::bf16   ? Type::bf16
                             : type == core::DataType::fp16 ? Type::fp16
                                                            : Type::fp32;
        std::vector<float> wide(count);
        for (std::size_t i = 0; i < count; ++i) wide[i] = value(storage, data, static_cast<std::int64_t>(i));
        const auto ranks = static_cast<int>(members.size());
        exec::perform(communicator_, schedule::find_collective_algorithm("ring")->rounds(kind, ranks, ranks),
                      members, wide, tag(group));
        for (std::size_t i = 0; i < count; ++i) set(storage, data, static_cast<std::int64_t>(i), wide[i]);
    }
    exec::Communicator& communicator_;
    std::vector<std::vector<int>> groups_;
};

}  // namespace emulated
