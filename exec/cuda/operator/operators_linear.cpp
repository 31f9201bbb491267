// Products of linear layers, and what goes along with them: an approximate GELU, the addition of a residual,
// gradients of biases.
#include "exec/cuda/operator/operators.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using model::OperatorKind;

// Logits go to the loss alone, which reads them either way. A bias would lie along the wrong dimension.
bool Operators::is_stored_across(model::TensorId logits) const {
    const model::Tensor& tensor = graph_.tensor(logits);
    const model::Operator& producer = op(tensor.producer);
    if (producer.kind != OperatorKind::linear || producer.attributes.has_bias || tensor.consumers.empty())
        return false;
    for (const model::OperatorId reader : tensor.consumers)
        if (op(reader).kind != OperatorKind::loss_statistics &&
            op(reader).kind != OperatorKind::cross_entropy)
            return false;
    // Tensor cores want rows at multiples of 16 bytes (cuBLAS documentation, "Tensor Core Usage"): GPT-2's
    // 50,257 classes are none, tokens nearly always are.
    const Sizes sizes = sizes_of(logits);
    const auto size = static_cast<std::int64_t>(size_of(type_));
    return sizes.columns * size % 16 != 0 && sizes.rows * size % 16 == 0;
}

void Operators::linear(model::OperatorId id, const Operands& x) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    const std::int64_t inputs = extent(o.parameters[0], 1);
    const void* in = x.inputs[0].data();
    for (const model::OperatorId reader : graph_.tensor(o.output).consumers)
        if (x.place) turned_.erase({reader.index, x.place->micro_batch});  // what is written is not turned
    if (o.attributes.input_scale != 1.0) {
        kernels_.scale(execution_.stream(), type_, y.rows * inputs,
                       static_cast<float>(o.attributes.input_scale), in, x.saved_context.data(), false);
        in = x.saved_context.data();
    }
    const void* own_weight = is_in_fp8(id) ? x.parameters[0].data() : weight(x.parameters[0], weight_slot);
    const bool is_across = is_stored_across(o.output);
    Product p = product();
    p.transpose_b = true;
    p.m = is_across ? y.columns : y.rows;
    p.n = is_across ? y.rows : y.columns;
    p.k = inputs;
    p.a = is_across ? own_weight : in;
    p.b = is_across ? in : own_weight;
    p.lda = p.ldb = inputs;
    p.c = x.output.data();
    p.ldc = p.n;
    // Partial sums: the bias counts once.
    const bool is_partial =
        graph_.tensor(o.output).split == model::TensorSplit::partial && context_.tensor_parallel > 1;
    if (o.attributes.has_bias && (!is_partial || tensor_rank_ == 0))
        p.bias = weight(x.parameters[1], bias_slot);
    if (is_in_fp8(id)) {
        if (const std::optional<Product> low = forward_in_fp8(
                id, p, {type_, y.rows, inputs, in}, weight_matrix(o.parameters[0], x.parameters[0])))
            p = *low;
        else p.b = weight(x.parameters[0], weight_slot);
    }
    const model::Operator* reader = only_reader(o.output);
    if (reader && (is_approximate_gelu(*reader) || reader->kind == OperatorKind::add))
        fusion_->hold(id.index, p);
    else fusion_->launch(p);
}

// Of the layer held, whose result stays for backward.
bool Operators::gelu_with_product(const Operands& x) const {
    std::optional<Product> p = fusion_->held_product();
    if (!p || p->c != x.inputs[0].data() || !execution_.allows(Fused::gelu)) return false;
    p->before_gelu = p->c;
    p->c = x.output.data();
    if (!machine_.offers(*p)) return false;
    fusion_->drop_held();
    fusion_->launch(*p);
    return true;
}

void Operators::add(model::OperatorId id, const Operands& x) const {
    const model::Operator& o = op(id);
    for (std::size_t i = 0; i < 2; ++i) {
        if (!fusion_->holds(x.inputs[i].data())) continue;
        const void* residual = x.inputs[1 - i].data();
        std::optional<Product> product = fusion_->held_product();
        std::optional<HeldDropout> dropout = fusion_->held_dropout();
        fusion_->drop_held();
        if (product) {
            product->addend = residual;
            product->c = x.output.data();
            return fusion_->launch(*product);
        }
        dropout->y = x.output.data();
        return fusion_->launch(*dropout, residual);
    }
    const HeldSum sum{x.inputs[0].data(), x.inputs[1].data(), x.output.data(), sizes_of(o.output).count()};
    fusion_->hold(id.index, sum);  // a norm may come next
}

// The gradient of both terms is that of the sum: as a rule no copy is made.
void Operators::add_backward(const model::Operator& o, const void* dy,
                             const std::vector<TensorView>& dx) const {
    const std::int64_t count = sizes_of(o.output).count();
    for (std::size_t i = 0; i < dx.size(); ++i) {
        if (!dx[i]) continue;
        const void* base = base_of(dx[i]);
        if (!base) fusion_->copy_later(dx[i].data(), dy, count * size_of(type_));
        else if (base == dx[i].data())
            kernels_.scale(execution_.stream(), type_, count, 1.0f, dy, dx[i].data(), true);
        else kernels_.add(execution_.stream(), type_, count, base, dy, dx[i].data());
    }
}

void Operators::linear_backward(model::OperatorId id, const Operands& x, const void* dy,
                                const TensorView& dx) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    const std::int64_t inputs = extent(o.parameters[0], 1);
    const bool is_across = is_stored_across(o.output);
    Product p = product();
    p.transpose_a = is_across;
    p.m = y.rows;
    p.n = inputs;
    p.k = y.columns;
    p.alpha = static_cast<float>(o.attributes.input_scale);
    p.a = dy;
    p.lda = is_across ? y.rows : y.columns;
    p.b = is_in_fp8(id) ? x.parameters[0].data() : weight(x.parameters[0], weight_slot);
    p.ldb = inputs;
    p.c = dx.data();
    p.ldc = inputs;
    const void* base = base_of(dx);
    p.accumulates = base == dx.data();
    if (base && base != dx.data()) p.addend = base;
    if (is_in_fp8(id)) {
        if (const std::optional<Product> low = backward_in_fp8(
                id, p, {type_, y.rows, y.columns, dy}, weight_matrix(o.parameters[0], x.parameters[0])))
            p = *low;
        else p.b = weight(x.parameters[0], weight_slot);
    }
    // The gradient of a GELU's result is read by that GELU alone.
    model::TensorId in = o.inputs[0];
    while (is_identity(op(graph_.tensor(in).producer))) in = op(graph_.tensor(in).producer).inputs[0];
    if (!base && is_approximate_gelu(op(graph_.tensor(in).producer)) && only_reader(in) == &o)
        fusion_->hold(id.index, p);
    else fusion_->launch(p);
}

bool Operators::gelu_backward_with_product(const model::Operator& o, const Operands& x, const void* dy,
                                           const TensorView& dx) const {
    std::optional<Product> p = fusion_->held_product();
    if (!p || p->c != dy || !execution_.allows(Fused::gelu)) return false;
    p->gelu_input = x.inputs[0].data();
    p->c = dx.data();
    if (!machine_.offers(*p)) return false;
    if (accumulates(dx)) {
        fusion_->flush();
        kernels_.unary_backward(execution_.stream(), type_, Unary::gelu_tanh, sizes_of(o.output).count(),
                                x.inputs[0].data(), dy, dx.data(), true);
        return true;
    }
    fusion_->drop_held();
    fusion_->launch(*p);
    return true;
}

void Operators::forward_rows(model::OperatorId id, const Operands& x, const schedule::PieceRows& rows,
                             const MicroBatchPosition&) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    Product p = product();
    p.transpose_b = true;
    p.whole_rows = y.rows;
    p.m = rows.rows;
    p.n = y.columns;
    p.k = extent(o.parameters[0], 1);
    p.a = x.inputs[0].rows(rows.from, rows.rows).data();
    p.b = weight(x.parameters[0], weight_slot);
    p.lda = p.ldb = p.k;
    p.c = x.output.rows(rows.to, rows.rows).data();
    p.ldc = p.n;
    p.batch = rows.count;
    p.stride_a = rows.stride * p.k;
    p.stride_c = rows.rows * p.n;
    // Partial sums: the bias counts once.
    if (o.attributes.has_bias && tensor_rank_ == 0) p.bias = weight(x.parameters[1], bias_slot);
    machine_.product(execution_.stream(), p);
}

void Operators::backward_input_rows(model::OperatorId id, const Operands& x, ConstTensorView dy,
                                    TensorView dx, const schedule::PieceRows& rows,
                                    const MicroBatchPosition&) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    const TensorView own = dx.rows(rows.to, rows.size());
    Product p = product();
    p.whole_rows = y.rows;
    p.m = rows.rows;
    p.n = extent(o.parameters[0], 1);
    p.k = y.columns;
    p.a = dy.rows(rows.from, rows.rows).data();
    p.b = weight(x.parameters[0], weight_slot);
    p.lda = y.columns;
    p.ldb = p.n;
    p.c = own.data();
    p.ldc = p.n;
    p.batch = rows.count;
    p.stride_a = rows.stride * y.columns;
    p.stride_c = rows.rows * p.n;
    p.accumulates = !execution_.takes_over_zeros(own.data(), own.bytes());
    machine_.product(execution_.stream(), p);
}

void Operators::linear_weights(model::OperatorId id, const Operands& x, const void* dy,
                               const std::vector<TensorView>& dparameters) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    const std::int64_t inputs = extent(o.parameters[0], 1);
    const bool is_across = is_stored_across(o.output);
    Product p = product();
    p.out = gradient_type_;
    p.transpose_a = !is_across;
    p.m = y.columns;
    p.n = inputs;
    p.k = y.rows;
    p.a = dy;
    p.lda = is_across ? y.rows : y.columns;
    p.b = o.attributes.input_scale != 1.0 ? x.saved_context.data() : x.inputs[0].data();
    p.ldb = inputs;
    p.c = dparameters[0].data();
    p.ldc = inputs;
    p.accumulates = sums(dparameters[0]).accumulates;
    if (is_in_fp8(id))
        if (const std::optional<Product> low = weights_in_fp8(id, p, {type_, y.rows, y.columns, dy},
                                                              {type_, y.rows, inputs, x.inputs[0].data()}))
            p = *low;
    if (!o.attributes.has_bias) return fusion_->launch(p);
    // The gradient of the bias comes with that of the weight where the library can fuse them. Scratch for
    // both cases is reserved always, since the machine of planning may answer otherwise.
    const Sums bias = sums(dparameters[1]);
    void* workspace = execution_.scratch(sums_slot, norm_workspace(y.rows, y.columns));
    void* own = execution_.scratch(partial_slot, y.columns * size_of(gradient_type_));
    Product both = p;
    both.row_sums = bias.accumulates ? own : bias.data;
    if (!p.in_fp8 && execution_.allows(Fused::bias_gradient) &&
        machine_.offers(
            both)) {  // a bias's gradient is a sum and no product: of numbers that are not rounded
        fusion_->launch(both);
        if (bias.accumulates)
            kernels_.scale(execution_.stream(), gradient_type_, y.columns, 1.0f, own, bias.data, true);
        return;
    }
    fusion_->launch(p);
    kernels_.column_sums(execution_.stream(), type_, y.rows, y.columns, dy, bias, workspace);
}

}  // namespace exec::cuda
