// The experts of a mixture as launches: two products with an activation between, and their gradients.
//
// How many routed tokens an expert gets is known on the device only. One launch of ours makes the products of
// all experts and reads these numbers there. The library's products have their sizes on the host: where they
// are taken instead, forward waits for the numbers, once for each mixture and micro-batch, and backward has
// them.
#include <numeric>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "exec/cuda/operator/measured_room.h"
#include "exec/cuda/operator/operators.h"
#include "exec/expert_blocks.h"
#include "exec/unary.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

namespace {

std::int64_t total_of(const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

// The arrays of Kernels::expert_products, and of Kernels::expert_weight_gradients.
struct RowProducts {
    std::int64_t n = 0, k = 0;
    const void *a = nullptr, *weights = nullptr;
    bool transposes = false;
    void* c = nullptr;
    bool accumulates = false;
};
struct WeightProducts {
    std::int64_t m = 0, n = 0;
    const void *a = nullptr, *b = nullptr;
    Sums gradients;
};

// The same by the library, a product for each block. `plain`: what all products have in common.
std::vector<Product> block_by_block(const Product& plain, const std::vector<std::int64_t>& rows,
                                    std::int64_t experts, const RowProducts& of) {
    std::vector<Product> products;
    for (const ExpertBlock& b : expert_blocks(rows, experts)) {
        Product p = plain;
        p.ragged_limit = total_of(rows);
        p.transpose_b = of.transposes;
        p.m = b.rows;
        p.n = p.ldc = of.n;
        p.k = p.lda = of.k;
        p.ldb = of.transposes ? of.k : of.n;
        p.a = at(of.a, b.first * of.k, plain.in);
        p.b = at(of.weights, b.expert * of.n * of.k, plain.in);
        p.c = at(of.c, b.first * of.n, plain.out);
        p.accumulates = of.accumulates;
        products.push_back(p);
    }
    return products;
}

// `is_written`: by expert, whether a product writes or adds to its gradient.
std::vector<Product> block_by_block(const Product& plain, const std::vector<std::int64_t>& rows,
                                    const WeightProducts& of, std::vector<char>& is_written) {
    std::vector<Product> products;
    for (const ExpertBlock& b : expert_blocks(rows, core::count_of(is_written))) {
        char& written = is_written[b.expert];
        Product p = plain;
        p.ragged_limit = total_of(rows);
        p.out = of.gradients.type;
        p.transpose_a = true;
        p.m = p.lda = of.m;
        p.n = p.ldb = p.ldc = of.n;
        p.k = b.rows;
        p.a = at(of.a, b.first * of.m, plain.in);
        p.b = at(of.b, b.first * of.n, plain.in);
        p.c = at(of.gradients.data, b.expert * of.m * of.n, of.gradients.type);
        p.accumulates = of.gradients.accumulates || written != 0;
        written = 1;
        products.push_back(p);
    }
    return products;
}

}  // namespace

bool Operators::joins_experts(model::OperatorId id) const {
    return is_fused(Fused::expert_products, {op(id).attributes.experts_are_gated, id.index, 0},
                    [&] { return joined_experts_or_not(id); });
}

// The first product of experts that get as many rows each, and both of its gradients; the second one is
// alike. That the host waits where products are apart is not measured.
Alternatives Operators::joined_experts_or_not(model::OperatorId id) const {
    const model::MixtureShape shape = model::mixture_shape(graph_, op(id), context_);
    const std::int64_t rows = shape.routed_tokens, hidden = shape.hidden, width = shape.first_width,
                       experts = shape.experts;
    const Type type = type_, gradient_type = gradient_type_;
    const bool uses_tf32 = product().uses_tf32;
    MeasuredRoom room;
    const std::size_t x = room.take((rows * hidden) * size_of(type)),
                      y = room.take((rows * width) * size_of(type)),
                      weights = room.take((experts * width * hidden) * size_of(type)),
                      gradients = room.take((experts * width * hidden) * size_of(gradient_type)),
                      table = room.take(expert_table_bytes(experts));
    const std::vector<std::int64_t> even = divided_evenly(rows, experts);
    const auto forward = [=](char* base) {
        return RowProducts{width, hidden, base + x, base + weights, true, base + y, false};
    };
    const auto input = [=](char* base) {
        return RowProducts{hidden, width, base + y, base + weights, false, base + x, false};
    };
    const auto weight = [=](char* base) {
        return WeightProducts{width, hidden, base + y, base + x, {base + gradients, gradient_type, true}};
    };
    Alternatives result{fmt::format("expert-products:{}:{}:{}:{}:{}:{}:{}", static_cast<int>(type),
                                    static_cast<int>(gradient_type), uses_tf32, experts, rows, hidden, width),
                        room.bytes(),
                        {},
                        [](const Kernels&, Stream, char*) {}};
    result.fused = [=](const Kernels& k, Stream s, char* base) {
        auto* placed = reinterpret_cast<std::int32_t*>(base + table);
        const ExpertBlocks blocks{experts, experts, rows, placed};
        k.known_expert_table(s, even, placed);
        for (const RowProducts& p : {forward(base), input(base)})
            k.expert_products(s, type, uses_tf32, blocks, p.n, p.k, p.a, p.weights, p.transposes, p.c,
                              p.accumulates);
        const WeightProducts w = weight(base);
        k.expert_weight_gradients(s, type, uses_tf32, blocks, w.m, w.n, w.a, w.b, w.gradients);
    };
    result.products = [=, plain = product()](char* base) {
        std::vector<Product> products = block_by_block(plain, even, experts, forward(base));
        const auto append = [&](const std::vector<Product>& more) {
            products.insert(products.end(), more.begin(), more.end());
        };
        append(block_by_block(plain, even, experts, input(base)));
        std::vector<char> is_written(experts, 0);
        append(block_by_block(plain, even, weight(base), is_written));
        return products;
    };
    return result;
}

Operators::ExpertRows Operators::rows_of_experts(model::OperatorId id, const Operands& x,
                                                 bool is_forward) const {
    const model::Operator& o = op(id);
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    ExpertRows result;
    if (x.expert_rows) {
        result.rows = *x.expert_rows;
        result.most = total_of(result.rows);
    } else if (!joins_experts(id)) {
        std::vector<std::int64_t>& rows = kept_rows_[{id.index, x.place->micro_batch}];
        if (is_forward) rows = fetched_rows(o, x);
        result.rows = rows;
        result.most = total_of(result.rows);
    } else {
        result.most = shape.routed_tokens;
        // Without a capacity every token's choices are all there.
        result.is_exact = routing_shape(o).capacity == shape.tokens;
    }
    if (!joins_experts(id)) return result;
    const std::int64_t count = x.expert_rows ? core::count_of(result.rows) : shape.experts;
    auto* table =
        static_cast<std::int32_t*>(execution_.kept(id, x.place->micro_batch, expert_table_bytes(count)));
    if (is_forward && x.expert_rows) kernels_.known_expert_table(execution_.stream(), result.rows, table);
    else if (is_forward)
        kernels_.expert_table(execution_.stream(), routing_shape(o), routing(o, x.inputs[1].data()), table);
    result.blocks = ExpertBlocks{count, shape.experts, result.most, table};
    return result;
}

std::vector<std::int64_t> Operators::fetched_rows(const model::Operator& o, const Operands& x) const {
    const std::size_t experts = o.attributes.experts;
    auto* counts = static_cast<float*>(execution_.scratch(counts_slot, experts * sizeof(float)));
    kernels_.expert_counts(execution_.stream(), routing_shape(o), routing(o, x.inputs[1].data()), true,
                           counts);
    const std::vector<float> fetched = execution_.fetch(counts, experts);
    if (fetched.empty())
        return divided_evenly(model::mixture_shape(graph_, o, context_).routed_tokens, experts);
    return {fetched.begin(), fetched.end()};
}

void Operators::expert_products(const ExpertRows& rows, std::int64_t experts, std::int64_t n, std::int64_t k,
                                const void* a, const void* weights, bool transposes, void* c,
                                bool accumulates) const {
    const Stream s = execution_.stream();
    if (rows.blocks)
        return kernels_.expert_products(s, type_, product().uses_tf32, *rows.blocks, n, k, a, weights,
                                        transposes, c, accumulates);
    for (const Product& p :
         block_by_block(product(), rows.rows, experts, {n, k, a, weights, transposes, c, accumulates}))
        machine_.product(s, p);
}

// An expert that no token chose has a gradient of zeros.
void Operators::expert_weight_gradients(const ExpertRows& rows, std::int64_t experts, std::int64_t m,
                                        std::int64_t n, const void* a, const void* b, Sums gradients) const {
    const Stream s = execution_.stream();
    if (rows.blocks)
        return kernels_.expert_weight_gradients(s, type_, product().uses_tf32, *rows.blocks, m, n, a, b,
                                                gradients);
    std::vector<char> is_written(experts, gradients.accumulates ? 1 : 0);
    for (const Product& p : block_by_block(product(), rows.rows, {m, n, a, b, gradients}, is_written))
        machine_.product(s, p);
    for (std::int64_t e = 0; e < experts; ++e)
        if (!is_written[e])
            machine_.fill_zero(s, at(gradients.data, e * m * n, gradient_type_),
                               (m * n) * size_of(gradient_type_));
}

// Behind the first product, or in an array of its own.
void* Operators::activated_rows(const Operands& x, const ExpertRows& rows, std::int64_t first_width) const {
    return x.late_context ? x.late_context.data()
                          : at(x.saved_context.data(), rows.most * first_width, type_);
}

void Operators::activate_rows(const model::Operator& o, const ExpertRows& rows, std::int64_t width,
                              const void* first, void* activated) const {
    const Stream s = execution_.stream();
    const Unary unary = expert_unary_of<Unary>(o.attributes);
    if (o.attributes.experts_are_gated) kernels_.gated(s, type_, unary, rows.most, width, first, activated);
    else kernels_.unary(s, type_, unary, rows.most * width, first, activated);
}

// Rows behind the last routed token, where a capacity leaves some, are activated as they are: nobody reads
// them.
void Operators::experts(model::OperatorId id, const Operands& x) const {
    const model::Operator& o = op(id);
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    const ExpertRows rows = rows_of_experts(id, x, true);
    const void *first_weights = weight(x.parameters[0], weight_slot),
               *second_weights = weight(x.parameters[1], second_weight_slot);
    void *first = x.saved_context.data(), *activated = activated_rows(x, rows, shape.first_width);
    if (rows.most == 0) return;
    expert_products(rows, shape.experts, shape.first_width, shape.hidden, x.inputs[0].data(), first_weights,
                    true, first, false);
    activate_rows(o, rows, shape.width, first, activated);
    expert_products(rows, shape.experts, shape.hidden, shape.width, activated, second_weights, true,
                    x.output.data(), false);
}

// Leaves the gradient of the first product in the saved context, in its place: the weights' gradients need
// that one.
void Operators::experts_backward(model::OperatorId id, const Operands& x, const void* dy,
                                 const TensorView& dx) const {
    const model::Operator& o = op(id);
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    const ExpertRows rows = rows_of_experts(id, x, false);
    const Stream s = execution_.stream();
    const void *first_weights = weight(x.parameters[0], weight_slot),
               *second_weights = weight(x.parameters[1], second_weight_slot);
    void *first = x.saved_context.data(), *activated = activated_rows(x, rows, shape.first_width);
    void* dactivated = execution_.scratch(expert_slot, (rows.most * shape.width) * size_of(type_));
    const std::size_t dx_bytes = (rows.most * shape.hidden) * size_of(type_);
    const bool adds = dx && !execution_.takes_over_zeros(dx.data(), dx_bytes);
    if (adds) fusion_->copy_now(dx.data());
    if (rows.most == 0) return;
    if (dx && !adds && !rows.is_exact) machine_.fill_zero(s, dx.data(), dx_bytes);
    if (x.late_context) activate_rows(o, rows, shape.width, first, activated);
    expert_products(rows, shape.experts, shape.width, shape.hidden, dy, second_weights, false, dactivated,
                    false);
    const Unary unary = expert_unary_of<Unary>(o.attributes);
    if (o.attributes.experts_are_gated)
        kernels_.gated_backward(s, type_, unary, rows.most, shape.width, first, dactivated, first, false);
    else
        kernels_.unary_backward(s, type_, unary, rows.most * shape.width,
                                unary == Unary::relu ? activated : first, dactivated, first, false);
    if (dx)
        expert_products(rows, shape.experts, shape.hidden, shape.first_width, first, first_weights, false,
                        dx.data(), adds);
}

void Operators::experts_weights(model::OperatorId id, const Operands& x, const void* dy,
                                const std::vector<TensorView>& dparameters) const {
    const model::MixtureShape shape = model::mixture_shape(graph_, op(id), context_);
    const ExpertRows rows = rows_of_experts(id, x, false);
    const void *first = x.saved_context.data(), *activated = activated_rows(x, rows, shape.first_width);
    expert_weight_gradients(rows, shape.experts, shape.first_width, shape.hidden, first, x.inputs[0].data(),
                            sums(dparameters[0]));
    expert_weight_gradients(rows, shape.experts, shape.hidden, shape.width, dy, activated,
                            sums(dparameters[1]));
}

}  // namespace exec::cuda
