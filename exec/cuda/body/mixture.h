// A mixture of experts: which tokens go to which experts, the routed tokens and what comes back. The
// products of the experts are in expert_products.h, or the library's.
//
// The rows of routed tokens are found without atomic additions: a block counts the choices of one expert,
// first choices before second ones and tokens in order, as on the CPU. Every launch that needs the routing
// computes it anew: that is a fraction of the time of one product of the experts, and nothing has to be kept.
#pragma once

#include "exec/cuda/body/elementwise.h"

namespace exec::cuda::kernel_body {

// What route() leaves in its workspace.
struct RoutingArrays {
    float* weight;         // [tokens, chosen]
    std::int32_t* expert;  // [tokens, chosen]
    std::int32_t* row;     // [tokens, chosen]: of the routed token, -1 = dropped
    std::int32_t* count;   // [experts]: routed tokens before any is dropped
};
SMSIM_HOST_DEVICE RoutingArrays routing_arrays(const RoutingShape& shape, void* workspace) {
    const std::int64_t routed_tokens = shape.tokens * shape.chosen;
    auto* weight = as<float>(workspace);
    auto* expert = reinterpret_cast<std::int32_t*>(weight + routed_tokens);
    return {weight, expert, expert + routed_tokens, expert + 2 * routed_tokens};
}

// The most probable experts of a token; of equals the first.
template <class T>
struct ChooseExperts {
    static constexpr const char* name = "choose_experts";
    RoutingShape shape;
    const T* probabilities;
    RoutingArrays to;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t token) const {
        const T* p = probabilities + token * shape.experts;
        float before = 0, sum = 0;
        std::int64_t last = -1;
        for (std::int64_t j = 0; j < shape.chosen; ++j) {
            std::int64_t best = -1;
            float most = 0;
            for (std::int64_t e = 0; e < shape.experts; ++e) {
                const float x = to_float(p[e]);
                const bool is_left = last < 0 || x < before || (x == before && e > last);
                if (is_left && (best < 0 || x > most)) {
                    best = e;
                    most = x;
                }
            }
            if (best < 0) best = j;  // no numbers: the loss will say so
            to.expert[token * shape.chosen + j] = static_cast<std::int32_t>(best);
            to.weight[token * shape.chosen + j] = most;
            before = most;
            last = best;
            sum += most;
        }
        if (shape.chosen > 1)
            for (std::int64_t j = 0; j < shape.chosen; ++j) to.weight[token * shape.chosen + j] /= sum;
    }
};

// The routed tokens of an expert in order, a block an expert.
struct PlaceRoutedTokens {
    static constexpr bool is_cooperative = true;
    static constexpr int threads = 256, most_threads = threads, warps = threads / 32, parts = 8;
    static constexpr const char* name = "place_routed_tokens";
    static constexpr std::size_t shared = 2 * parts * warps * sizeof(int);
    RoutingShape shape;
    RoutingArrays to;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        int* counts = t.template shared<int>();  // of two rounds in turn: by part and warp
        const auto own = static_cast<std::int32_t>(t.block());
        const int warp = t.thread() / 32, lane = t.thread() % 32;
        const std::int64_t routed_tokens = shape.tokens * shape.chosen;
        std::int64_t found = 0;
        int turn = 0;
        for (std::int64_t begin = 0; begin < routed_tokens; begin += threads * parts, turn ^= 1) {
            int* here = counts + turn * parts * warps;
            unsigned votes[parts];
            std::int64_t choices[parts];
            SMSIM_UNROLL
            for (int part = 0; part < parts; ++part) {
                const std::int64_t i =
                    begin + part * threads + t.thread();  // choice by choice, tokens in order
                const Divided choice = divide(i, shape.tokens);
                choices[part] = choice.remainder * shape.chosen + choice.quotient;
                votes[part] = t.ballot(i < routed_tokens && to.expert[choices[part]] == own);
                if (lane == 0) here[part * warps + warp] = bits(votes[part]);
            }
            t.synchronize();
            std::int64_t before = found;
            SMSIM_UNROLL
            for (int part = 0; part < parts; ++part)
                for (int w = 0; w < warps; ++w) {
                    if (w == warp && (votes[part] >> lane & 1u)) {
                        const std::int64_t index = before + bits(votes[part] & ((1u << lane) - 1u));
                        to.row[choices[part]] =
                            index < shape.capacity ? static_cast<std::int32_t>(index) : -1;
                    }
                    before += here[part * warps + w];
                }
            found = before;
        }
        if (t.thread() == 0) to.count[own] = static_cast<std::int32_t>(found);
    }
    SMSIM_DEVICE static int bits(unsigned x) {
#if defined(__CUDA_ARCH__)
        return __popc(x);
#else
        return __builtin_popcount(x);
#endif
    }
};

SMSIM_DEVICE std::int32_t rows_of(const RoutingShape& shape, std::int32_t count) {
    return count < shape.capacity ? count : static_cast<std::int32_t>(shape.capacity);
}

// Rows of experts follow one another: indices among an expert's routed tokens become rows.
struct PlaceExperts {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "place_experts";
    RoutingShape shape;
    RoutingArrays to;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        std::int32_t* first = t.template shared<std::int32_t>();  // [experts]
        for (std::int64_t e = t.thread(); e < shape.experts; e += t.threads())
            first[e] = rows_of(shape, to.count[e]);
        t.synchronize();
        if (t.thread() == 0) {
            std::int32_t sum = 0;
            for (std::int64_t e = 0; e < shape.experts; ++e) {
                const std::int32_t rows = first[e];
                first[e] = sum;
                sum += rows;
            }
        }
        t.synchronize();
        const std::int64_t routed_tokens = shape.tokens * shape.chosen;
        for (std::int64_t i = t.block() * t.threads() + t.thread(); i < routed_tokens;
             i += t.blocks() * t.threads())
            if (to.row[i] >= 0) to.row[i] += first[to.expert[i]];
    }
};

// Where the rows of each expert begin, and their tiles, for products of all experts.
struct PlaceExpertTable {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "expert_table";
    RoutingShape shape;
    RoutingArrays from;
    std::int32_t* table;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        std::int32_t* rows = t.template shared<std::int32_t>();  // [experts]
        for (std::int64_t e = t.thread(); e < shape.experts; e += t.threads())
            rows[e] = rows_of(shape, from.count[e]);
        t.synchronize();
        if (t.thread() > 0) return;
        constexpr std::int32_t tile = expert_tile_rows;
        std::int32_t *first = table, *first_tile = table + shape.experts + 1;
        first[0] = first_tile[0] = 0;
        for (std::int64_t e = 0; e < shape.experts; ++e) {
            first[e + 1] = first[e] + rows[e];
            first_tile[e + 1] = first_tile[e] + (rows[e] + tile - 1) / tile;
        }
    }
};

// In fp32, for exchanges: exact, far fewer than 2^24.
struct ExpertCounts {
    static constexpr const char* name = "expert_counts";
    RoutingShape shape;
    RoutingArrays from;
    bool is_limited;
    float* counts;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t e) const {
        counts[e] = is_limited ? rows_of(shape, from.count[e]) : from.count[e];
    }
};

// Rows of an array of logits become probabilities of type T. A warp a row.
template <class T>
struct RouterSoftmax {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "router_softmax";
    std::int64_t tokens, experts;
    const float* logits;
    T* probabilities;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t token = t.block() * 4 + t.thread() / 32;
        if (token >= tokens) return;
        const float* row = logits + token * experts;
        float most = -3.402823466e38f, sum = 0;
        for (std::int64_t e = t.thread() % 32; e < experts; e += 32) most = most > row[e] ? most : row[e];
        most = warp_max(t, most);
        for (std::int64_t e = t.thread() % 32; e < experts; e += 32) sum += expf(row[e] - most);
        sum = warp_sum(t, sum);
        for (std::int64_t e = t.thread() % 32; e < experts; e += 32)
            probabilities[token * experts + e] = from_float<T>(expf(row[e] - most) / sum);
    }
};

// Gradients of the logits: through the softmax, with the balance loss's own share, balance * how often an
// expert was chosen.
template <class T>
struct RouterGradient {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "router_gradient";
    std::int64_t tokens, experts;
    float balance;
    const StepFactors* factors;
    const float* chosen;  // [experts]; null without balance
    const T *probabilities, *dy;
    T* dlogits;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t token = t.block() * 4 + t.thread() / 32;
        if (token >= tokens) return;
        const T *p = probabilities + token * experts, *g = dy + token * experts;
        const float weight = factors ? balance * factors->loss_scale : balance;
        const auto gradient = [&](std::int64_t e) {
            return to_float(g[e]) + (chosen ? weight * chosen[e] : 0.0f);
        };
        float sum = 0;
        for (std::int64_t e = t.thread() % 32; e < experts; e += 32) sum += to_float(p[e]) * gradient(e);
        sum = warp_sum(t, sum);
        for (std::int64_t e = t.thread() % 32; e < experts; e += 32)
            dlogits[token * experts + e] = from_float<T>(to_float(p[e]) * (gradient(e) - sum));
    }
};

template <class T>
struct Dispatch {
    static constexpr const char* name = "dispatch";
    RoutingShape shape;
    RoutingArrays routing;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided routed_token = divide(i, shape.hidden);
        const std::int64_t row = routing.row[routed_token.quotient];
        if (row >= 0)
            store<T, V>(y + row * shape.hidden + routed_token.remainder,
                        load<T, V>(x + divide(routed_token.quotient, shape.chosen).quotient * shape.hidden +
                                   routed_token.remainder));
    }
};

// Sums over the routed tokens of a token: of gradients, or of the experts' weighted results.
template <class T, bool is_weighted>
struct Gather {
    static constexpr const char* name = is_weighted ? "combine" : "dispatch_backward";
    RoutingShape shape;
    RoutingArrays routing;
    const T* x;
    T* y;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided token = divide(i, shape.hidden);
        float sum[V] = {};
        for (std::int64_t j = 0; j < shape.chosen; ++j) {
            const std::int64_t routed_token = token.quotient * shape.chosen + j,
                               row = routing.row[routed_token];
            if (row < 0) continue;
            const Pack<T, V> in = load<T, V>(x + row * shape.hidden + token.remainder);
            const float weight = is_weighted ? routing.weight[routed_token] : 1.0f;
            for (int v = 0; v < V; ++v) sum[v] += weight * to_float(in.at[v]);
        }
        put<T, V>(y + i, sum, accumulates);
    }
};

// A warp a token; chosen experts are at most 32.
template <class T, int V>
struct CombineBackward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "combine_backward";
    RoutingShape shape;
    RoutingArrays routing;
    const T *x, *probabilities, *dy;
    T *dx, *dprobabilities;  // null: not wanted
    bool accumulates;        // into dx; the probabilities' is always added to

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t token = t.block() * 4 + t.thread() / 32;
        if (token >= shape.tokens) return;
        const int lane = t.thread() % 32;
        const T* gradient = dy + token * shape.hidden;
        float own = 0;  // gradient of the weight of this lane's routed token
        for (std::int64_t j = 0; j < shape.chosen; ++j) {
            const std::int64_t routed_token = token * shape.chosen + j, row = routing.row[routed_token];
            if (row < 0) continue;  // the whole warp
            const float weight = routing.weight[routed_token];
            float sum = 0;
            for (std::int64_t c = lane * V; c < shape.hidden; c += 32 * V) {
                const Pack<T, V> d = load<T, V>(gradient + c), in = load<T, V>(x + row * shape.hidden + c);
                float out[V];
                for (int v = 0; v < V; ++v) {
                    sum += to_float(d.at[v]) * to_float(in.at[v]);
                    out[v] = weight * to_float(d.at[v]);
                }
                if (dx) put<T, V>(dx + row * shape.hidden + c, out, accumulates);
            }
            sum = warp_sum(t, sum);
            if (lane == j) own = sum;
        }
        if (!dprobabilities) return;
        const bool is_choice = lane < shape.chosen;
        const std::int64_t routed_token = token * shape.chosen + (is_choice ? lane : 0);
        const std::int64_t index = token * shape.experts + routing.expert[routed_token];
        const float total = warp_sum(t, is_choice ? to_float(probabilities[index]) : 0.0f),
                    mean = warp_sum(t, is_choice ? own * routing.weight[routed_token] : 0.0f);
        if (is_choice) add_to(dprobabilities[index], shape.chosen > 1 ? (own - mean) / total : own, true);
    }
};

inline std::size_t routing_bytes(const RoutingShape& shape) {
    return (3 * shape.tokens * shape.chosen + shape.experts) * sizeof(std::int32_t);
}

inline void route(Stream s, Type type, const RoutingShape& shape, const void* probabilities, void* routing) {
    const RoutingArrays to = routing_arrays(shape, routing);
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, shape.tokens, ChooseExperts<T>{shape, as<const T>(probabilities), to});
    });
    launch(s, shape.experts, PlaceRoutedTokens::threads, PlaceRoutedTokens::shared,
           PlaceRoutedTokens{shape, to});
    constexpr std::int64_t threads = 256, most_blocks = 1024;  // some for every multiprocessor
    launch(s, at_most(ceiling(shape.tokens * shape.chosen, threads), most_blocks), threads,
           shape.experts * sizeof(std::int32_t), PlaceExperts{shape, to});
}

inline void expert_table(Stream s, const RoutingShape& shape, const void* routing, std::int32_t* table) {
    launch(s, 1, 256, shape.experts * sizeof(std::int32_t),
           PlaceExpertTable{shape, routing_arrays(shape, const_cast<void*>(routing)), table});
}

inline void expert_counts(Stream s, const RoutingShape& shape, const void* routing, bool is_limited,
                          float* counts) {
    each<1>(s, shape.experts,
            ExpertCounts{shape, routing_arrays(shape, const_cast<void*>(routing)), is_limited, counts});
}

inline void router_softmax(Stream s, Type type, std::int64_t tokens, std::int64_t experts,
                           const float* logits, void* probabilities) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, ceiling(tokens, 4), 128, 0,
               RouterSoftmax<T>{tokens, experts, logits, as<T>(probabilities)});
    });
}

inline void router_gradient(Stream s, Type type, std::int64_t tokens, std::int64_t experts, float balance,
                            const StepFactors* factors, const float* chosen, const void* probabilities,
                            const void* dy, void* dlogits) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, ceiling(tokens, 4), 128, 0,
               RouterGradient<T>{tokens, experts, balance, factors, chosen, as<const T>(probabilities),
                                 as<const T>(dy), as<T>(dlogits)});
    });
}

inline void dispatch(Stream s, Type type, const RoutingShape& shape, const void* routing, const void* x,
                     void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(
            s, shape.tokens * shape.chosen, shape.hidden,
            Dispatch<T>{shape, routing_arrays(shape, const_cast<void*>(routing)), as<const T>(x), as<T>(y)},
            x, y);
    });
}

template <bool is_weighted>
void gather(Stream s, Type type, const RoutingShape& shape, const void* routing, const void* x, void* y,
            bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, shape.tokens, shape.hidden,
                        Gather<T, is_weighted>{shape, routing_arrays(shape, const_cast<void*>(routing)),
                                               as<const T>(x), as<T>(y), accumulates},
                        x, y);
    });
}
inline void dispatch_backward(Stream s, Type type, const RoutingShape& shape, const void* routing,
                              const void* dy, void* dx, bool accumulates) {
    gather<false>(s, type, shape, routing, dy, dx, accumulates);
}
inline void combine(Stream s, Type type, const RoutingShape& shape, const void* routing, const void* x,
                    void* y) {
    gather<true>(s, type, shape, routing, x, y, false);
}

inline void combine_backward(Stream s, Type type, const RoutingShape& shape, const void* routing,
                             const void* x, const void* probabilities, const void* dy, void* dx,
                             void* dprobabilities, bool accumulates) {
    const RoutingArrays from = routing_arrays(shape, const_cast<void*>(routing));
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const auto start = [&]<int V>() {
            launch(s, ceiling(shape.tokens, 4), 128, 0,
                   CombineBackward<T, V>{shape, from, as<const T>(x), as<const T>(probabilities),
                                         as<const T>(dy), as<T>(dx), as<T>(dprobabilities), accumulates});
        };
        if (shape.hidden % wide == 0 && are_aligned(16, x, dy, dx)) start.template operator()<wide>();
        else start.template operator()<1>();
    });
}

inline void fill_mixture(Kernels& table) {
    table.route = route;
    table.expert_counts = expert_counts;
    table.expert_table = expert_table;
    table.router_softmax = router_softmax;
    table.router_gradient = router_gradient;
    table.dispatch = dispatch;
    table.dispatch_backward = dispatch_backward;
    table.combine = combine;
    table.combine_backward = combine_backward;
}

}  // namespace exec::cuda::kernel_body
