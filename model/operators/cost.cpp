#include "model/operators/cost.h"

#include "core/index/integers.h"
#include "model/operators/attention_cost.h"
#include "model/operators/element_bytes.h"
#include "model/operators/kernel_list.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

// One operator in one phase: the sizes every arm needs, and the list it writes to.
class KernelWriter {
public:
    KernelWriter(const ModelGraph& g, const Operator& o, Phase p, const CostContext& c)
        : graph(g), op(o), phase(p), context(c) {
        size = core::size_of(context.compute).value;
        y = bytes(op.output);
        x = op.inputs.empty() ? 0 : bytes(op.inputs[0]);
    }

    std::vector<Kernel> write() {
        if (op.attributes.is_frozen && !forward()) return {};
        // Masks and indices computed on the way have no gradient.
        if (!forward() && !graph.tensor(op.output).is_activation && op.kind != OperatorKind::cross_entropy)
            return {};
        switch (op.kind) {
            case OperatorKind::input:
            case OperatorKind::flatten:
            case OperatorKind::reshape:
            case OperatorKind::parallel_enter:
            case OperatorKind::parallel_exit: break;
            case OperatorKind::embedding: embedding(); break;
            case OperatorKind::position_embedding: position_embedding(); break;
            case OperatorKind::prepend_token:
                if (forward()) memory("prepend_token", x, y);
                else if (backward_input()) memory("prepend_token_backward", x, x);
                else memory("class_token_gradient", y - x, parameter_bytes(0));
                break;
            case OperatorKind::linear: linear(); break;
            case OperatorKind::layer_norm: norm("layer_norm", 8); break;
            case OperatorKind::rms_norm: norm("rms_norm", 4); break;
            case OperatorKind::batch_norm:
                // Statistics over the batch first, then the result: two passes over the input each way.
                if (op.attributes.has_fixed_statistics) {
                    if (forward()) memory("scale_channels", x, y);
                    else if (backward_input()) memory("scale_channels_backward", y, x);
                } else if (forward())
                    memory("batch_norm", 2 * x + parameter_bytes(0) + parameter_bytes(1), y);
                else if (backward_input()) memory("batch_norm_backward", 2 * (x + y) + parameter_bytes(0), x);
                break;
            case OperatorKind::attention: append_attention_kernels(list, graph, op, phase, context); break;
            case OperatorKind::gelu: elementwise("gelu", "gelu_backward"); break;
            case OperatorKind::relu:
                if (!is_fused_into_norm() && !(forward() && is_fused_into_addition()))
                    elementwise("relu", "relu_backward");
                break;
            case OperatorKind::silu: elementwise("silu", "silu_backward"); break;
            case OperatorKind::tanh: elementwise("tanh", "tanh_backward"); break;
            case OperatorKind::gated_silu: elementwise("gated_silu", "gated_silu_backward"); break;
            case OperatorKind::gated_gelu: elementwise("gated_gelu", "gated_gelu_backward"); break;
            case OperatorKind::dropout:
                if (forward() && !is_fused_into_add()) memory("dropout", x, y + y / size);
                else if (backward_input()) memory("dropout_backward", y + y / size, x);
                break;
            case OperatorKind::add:
                if (forward() && is_fused_into_norm()) memory("add", y, 0);
                else if (forward()) memory("add", 2 * y, y + fused_mask_bytes());
                break;
            case OperatorKind::conv2d: convolution(); break;
            case OperatorKind::max_pool:
                if (forward()) memory("max_pool", x, y + maximum_bytes());
                else if (backward_input()) memory("max_pool_backward", y + maximum_bytes(), x);
                break;
            case OperatorKind::average_pool: moved("average_pool", "average_pool_backward"); break;
            case OperatorKind::transpose: moved("transpose", "transpose_backward"); break;
            case OperatorKind::merge_patches: moved("merge_patches", "merge_patches_backward"); break;
            case OperatorKind::average_tokens: moved("average_tokens", "average_tokens_backward"); break;
            case OperatorKind::select_first_token:
            case OperatorKind::select_positions:
                // Backward fills zeros over the whole input and adds the selected rows.
                if (forward()) memory("select_rows", y, y);
                else if (backward_input()) memory("select_rows_backward", 2 * y, x + y);
                break;
            case OperatorKind::router:
            case OperatorKind::dispatch:
            case OperatorKind::experts:
            case OperatorKind::combine: mixture(); break;
            case OperatorKind::loss_statistics:
                if (forward()) statistics();
                break;
            case OperatorKind::cross_entropy: cross_entropy(); break;
            case OperatorKind::matrix_product: general_product(); break;
            case OperatorKind::elementwise:
            case OperatorKind::unknown: general_elementwise(); break;
            case OperatorKind::softmax: elementwise("softmax", "softmax_backward"); break;
            case OperatorKind::normalization:
                if (forward()) memory("normalization", 2 * x + all_parameter_bytes(), y);
                else if (backward_input())
                    memory("normalization_backward", 2 * (x + y) + all_parameter_bytes(), x);
                else if (!op.parameters.empty())
                    memory("normalization_parameter_gradient", x + y, all_parameter_bytes());
                break;
            case OperatorKind::reduce:
            case OperatorKind::pooling:
                if (forward()) memory(name(), x, y + (op.attributes.is_maximum ? maximum_bytes() : 0));
                else if (backward_input() && has_gradient(graph, op.inputs[0]))
                    memory("reduce_backward", y + (op.attributes.is_maximum ? maximum_bytes() : 0), x);
                break;
            case OperatorKind::permute: moved("permute", "permute_backward"); break;
            case OperatorKind::concat:
                if (forward()) memory("concat", y, y);
                else if (backward_input()) memory("concat_backward", gradient_bytes(), gradient_bytes());
                else if (!op.parameters.empty())
                    memory("parameter_gradient", all_parameter_bytes(), all_parameter_bytes());
                break;
            case OperatorKind::slice:
                // Backward fills zeros over the whole input and copies the part.
                if (forward()) memory("slice", y, y);
                else if (backward_input() && has_gradient(graph, op.inputs[0]))
                    memory("slice_backward", y, x + y);
                break;
            case OperatorKind::gather:
                if (forward()) memory("gather", y + (op.inputs.empty() ? 0 : bytes(op.inputs.back())), y);
                else if (backward_input() && gradient_bytes() > 0)
                    memory("gather_backward", 2 * y, gradient_bytes() + y);
                else if (!forward() && !backward_input() && !op.parameters.empty())
                    memory("gather_gradient", 2 * y, all_parameter_bytes() + y);
                break;
            case OperatorKind::convolution: general_convolution(); break;
        }
        if (backward_input()) sum_gradients();
        return std::move(list);
    }

private:
    bool forward() const { return phase == Phase::forward; }
    bool backward_input() const { return phase == Phase::backward_input; }
    double bytes(TensorId tensor) const { return tensor_bytes(graph, tensor, context).value; }
    double parameter_bytes(std::size_t i) const {
        return parameter_elements(graph, op.parameters[i], context) * size;
    }
    // A dropout that only a residual addition reads.
    bool is_fused_into_add() const { return is_fused_into_add(op); }
    bool is_fused_into_add(const Operator& dropout) const {
        const std::vector<OperatorId>& readers = graph.tensor(dropout.output).consumers;
        return context.fused_dropout_add && dropout.kind == OperatorKind::dropout && readers.size() == 1 &&
               graph.op(readers[0]).kind == OperatorKind::add;
    }
    // A relu behind a batch norm, or behind an addition to one; and that addition.
    bool is_fused_into_norm() const {
        if (!context.fused_norm_activation) return false;
        const auto follows = [this](const Operator& o, OperatorKind kind) {
            for (TensorId input : o.inputs)
                if (graph.op(graph.tensor(input).producer).kind == kind) return true;
            return false;
        };
        if (follows(op, OperatorKind::batch_norm)) return true;
        if (op.kind != OperatorKind::relu) return false;
        const Operator& before = graph.op(graph.tensor(op.inputs[0]).producer);
        return before.kind == OperatorKind::add && follows(before, OperatorKind::batch_norm);
    }
    bool is_fused_into_addition() const {
        return context.fused_add_activation &&
               graph.op(graph.tensor(op.inputs[0]).producer).kind == OperatorKind::add;
    }
    double fused_mask_bytes() const {
        double mask = 0;
        for (TensorId input : op.inputs)
            if (is_fused_into_add(graph.op(graph.tensor(input).producer))) mask += y / size;
        return mask;
    }
    double maximum_bytes() const { return y / size * index_bytes; }  // indices of the maxima
    void memory(const char* what, double read, double written) {
        list.push_back(memory_kernel(what, read, written));
    }

    // `kernel` holds what all phases of a convolution share.
    void convolve(Kernel kernel, const char* what, std::int64_t m, std::int64_t n, std::int64_t k,
                  double read, double written) {
        kernel.m = m;
        kernel.n = n;
        kernel.k = k;
        kernel.read = core::Bytes(read);
        kernel.written = core::Bytes(written);
        kernel.what = what;
        list.push_back(kernel);
    }

    void moved(const char* what, const char* backward) {
        if (forward()) memory(what, x, y);
        else if (backward_input()) memory(backward, y, x);
    }

    // Backward reads the gradient and what was saved (the input, or for relu and tanh the output, of the same
    // size).
    void elementwise(const char* what, const char* backward) {
        if (forward()) memory(what, x, y);
        else if (backward_input()) memory(backward, x + y, x);
    }

    void embedding() {
        const double ids = bytes(op.inputs[0]);
        if (forward()) memory("embedding", ids + y, y);
        if (phase != Phase::backward_weight) return;
        // A dense gradient: zeros over the table, then the rows added one by one.
        memory("embedding_gradient_zero", 0, parameter_bytes(0));
        memory("embedding_gradient", ids + 2 * y, y);
    }

    void position_embedding() {
        const double rows = y / context.micro_batch;
        if (forward()) memory("position_embedding", x + rows, y);
        if (phase == Phase::backward_weight) memory("position_embedding_gradient", y, rows);
    }

    void linear() {
        const Parameter& weight = graph.parameter(op.parameters[0]);
        const std::int64_t rows = rank_matrix(graph, op.output, context).rows,
                           outputs = rank_extent(weight, 0, context),
                           inputs = rank_extent(weight, 1, context);
        const bool is_scaled = op.attributes.input_scale != 1.0;
        if (forward()) {
            if (is_scaled) memory("scale", x, x);
            Kernel product = product_kernel("linear", 1, rows, outputs, inputs, size);
            if (op.attributes.has_bias && !context.separate_bias)
                product.read += core::Bytes(parameter_bytes(1));  // added in the product's epilogue
            list.push_back(product);
            if (op.attributes.has_bias && context.separate_bias) memory("bias", y + parameter_bytes(1), y);
        } else if (backward_input()) {
            if (!has_gradient(graph, op.inputs[0])) return;
            list.push_back(product_kernel("linear_input_gradient", 1, rows, inputs, outputs, size));
            if (is_scaled) memory("scale_backward", x, x);
        } else {
            list.push_back(
                transposed_product_kernel("linear_weight_gradient", 1, outputs, inputs, rows, size));
            if (op.attributes.has_bias) memory("bias_gradient", y, parameter_bytes(1));
        }
    }

    void norm(const char* what, double statistics_per_row) {
        const double statistics = statistics_per_row * rank_matrix(graph, op.output, context).rows;
        double parameters = 0;
        for (std::size_t i = 0; i < op.parameters.size(); ++i) parameters += parameter_bytes(i);
        if (forward()) memory(what, x + parameters, y + statistics);
        else if (backward_input()) memory("norm_backward", x + y + statistics + parameter_bytes(0), x);
        else memory("norm_parameter_gradient", x + y + statistics, parameters);
    }

    void convolution() {
        const std::vector<std::int64_t>& in = graph.tensor(op.inputs[0]).shape;
        const std::vector<std::int64_t>& out = graph.tensor(op.output).shape;
        const Attributes& a = op.attributes;
        const std::int64_t outputs = context.micro_batch * out[1] * out[2], area = a.kernel_y * a.kernel_x;
        Kernel kernel;
        kernel.kind = KernelKind::convolution;
        kernel.kernel_y = a.kernel_y;
        kernel.kernel_x = a.kernel_x;
        kernel.stride = a.stride;
        kernel.flops = core::Flops(2.0 * outputs * out[0] * (in[0] * area));
        const double weight = parameter_bytes(0);
        if (forward()) {
            convolve(kernel, "convolution", outputs, out[0], in[0] * area, x + weight, y);
            if (a.has_bias) memory("convolution_bias", y + parameter_bytes(1), y);
        } else if (backward_input()) {
            if (has_gradient(graph, op.inputs[0]))
                convolve(kernel, "convolution_input_gradient", context.micro_batch * in[1] * in[2], in[0],
                         out[0] * area, y + weight, x);
        } else {
            convolve(kernel, "convolution_weight_gradient", out[0], in[0] * area, outputs, x + y, weight);
            if (a.has_bias) memory("bias_gradient", y, parameter_bytes(1));
        }
    }

    // One product a group: [slots, tokens of the group] by [tokens, hidden]; each expert has slots for its
    // even share of the routed tokens.
    bool dense_dispatch(const char* what, const MixtureShape& s, int times) {
        const std::int64_t group = context.dense_dispatch_group;
        if (group == 0 || s.tokens == 0) return false;
        const std::int64_t groups = (s.tokens + group - 1) / group,
                           slots = group * op.attributes.experts_per_token;
        for (int i = 0; i < times; ++i)
            list.push_back(product_kernel(what, groups, slots, s.hidden, group, size));
        return true;
    }

    // Two grouped products between permutations (Mixtral, arXiv 2401.04088, section 2.1), experts loaded
    // evenly.
    void mixture() {
        const MixtureShape s = mixture_shape(graph, op, context);
        const double routed = static_cast<double>(s.routed_tokens) * s.hidden * size;
        const double first = static_cast<double>(s.routed_tokens) * s.first_width * size,
                     inner = static_cast<double>(s.routed_tokens) * s.width * size;
        const double router = static_cast<double>(s.tokens) * op.attributes.experts * size,
                     choices = s.routed_tokens * (fp32_bytes + index_bytes);  // weight, expert
        const std::int64_t experts = op.attributes.experts;
        if (op.kind == OperatorKind::router) {
            if (forward()) {
                list.push_back(product_kernel("router", 1, s.tokens, experts, s.hidden, size));
                memory("router_softmax", router, router / size * fp32_bytes);
                memory("router_choice", router / size * fp32_bytes, choices);
            } else if (backward_input()) {
                memory("router_softmax_backward", choices + router / size * fp32_bytes, router);
                list.push_back(product_kernel("router_input_gradient", 1, s.tokens, s.hidden, experts, size));
            } else {
                list.push_back(transposed_product_kernel("router_weight_gradient", 1, experts, s.hidden,
                                                         s.tokens, size));
            }
        } else if (op.kind == OperatorKind::dispatch) {
            if (forward() && !dense_dispatch("dispatch", s, 1)) memory("dispatch", routed + choices, routed);
            if (backward_input()) memory("dispatch_backward", routed + choices, x);
        } else if (op.kind == OperatorKind::experts) {
            if (forward()) {
                list.push_back(product_kernel("expert_first", s.experts, s.rows_per_expert, s.first_width,
                                              s.hidden, size));
                memory("expert_activation", first, inner);
                list.push_back(
                    product_kernel("expert_second", s.experts, s.rows_per_expert, s.hidden, s.width, size));
            } else if (backward_input()) {
                if (context.remakes_expert_activation) memory("expert_activation", first, inner);
                list.push_back(product_kernel("expert_second_input_gradient", s.experts, s.rows_per_expert,
                                              s.width, s.hidden, size));
                memory("expert_activation_backward", first + inner, first);
                list.push_back(product_kernel("expert_first_input_gradient", s.experts, s.rows_per_expert,
                                              s.hidden, s.first_width, size));
            } else {
                list.push_back(transposed_product_kernel("expert_second_weight_gradient", s.experts, s.hidden,
                                                         s.width, s.rows_per_expert, size));
                list.push_back(transposed_product_kernel("expert_first_weight_gradient", s.experts,
                                                         s.first_width, s.hidden, s.rows_per_expert, size));
            }
        } else if (forward()) {
            if (!dense_dispatch("combine", s, 1)) memory("combine", routed + choices, y);
        } else if (backward_input()) {
            dense_dispatch("dispatch_backward", s, 3);
            memory("combine_backward", y + routed + choices, routed + choices);
        }
    }

    const char* name() const { return name_of(op.kind).data(); }  // a literal: it ends with a zero
    double all_parameter_bytes() const {
        double sum = 0;
        for (std::size_t i = 0; i < op.parameters.size(); ++i) sum += parameter_bytes(i);
        return sum;
    }
    double input_bytes() const {
        double sum = 0;
        for (TensorId input : op.inputs) sum += bytes(input);
        return sum;
    }
    // Bytes of the inputs into which a gradient flows.
    double gradient_bytes() const {
        double sum = 0;
        for (TensorId input : op.inputs)
            if (has_gradient(graph, input)) sum += bytes(input);
        return sum;
    }

    void general_product() {
        const Attributes::Product& p = op.attributes.product;
        const bool has_second_input = op.inputs.size() == 2;
        // Samples share a parameter: they are rows of one product.
        const std::int64_t batch = p.batch * (has_second_input ? context.micro_batch : 1),
                           m = p.m * (has_second_input ? 1 : context.micro_batch);
        if (forward()) list.push_back(product_kernel("matrix_product", batch, m, p.n, p.k, size));
        if (backward_input()) {
            if (has_gradient(graph, op.inputs[0]))
                list.push_back(product_kernel("matrix_product_first_gradient", batch, m, p.k, p.n, size));
            if (has_second_input && has_gradient(graph, op.inputs[1]))
                list.push_back(
                    transposed_product_kernel("matrix_product_second_gradient", batch, p.k, p.n, m, size));
        }
        if (phase == Phase::backward_weight && !has_second_input)
            list.push_back(
                transposed_product_kernel("matrix_product_weight_gradient", batch, p.k, p.n, m, size));
    }

    // Backward reads the gradient and what was saved, and writes a gradient for each input that has one;
    // parameters' gradients are sums over the output.
    void general_elementwise() {
        const bool is_unknown = op.kind == OperatorKind::unknown;
        const double saved = (is_unknown || op.attributes.saves_inputs ? input_bytes() : 0) +
                             (op.attributes.saves_output ? y : 0);
        if (forward()) memory(name(), input_bytes() + all_parameter_bytes(), y);
        else if (backward_input() && gradient_bytes() > 0)
            memory(is_unknown ? "unknown_backward" : "elementwise_backward", y + saved, gradient_bytes());
        else if (phase == Phase::backward_weight && !op.parameters.empty())
            memory("parameter_gradient", y + saved, all_parameter_bytes());
    }

    // Groups are a batch of independent convolutions; each pixel of the output (transposed: of the input)
    // meets the whole kernel.
    void general_convolution() {
        const std::vector<std::int64_t>& weight = graph.parameter(op.parameters[0]).shape;
        const Attributes& a = op.attributes;
        const std::int64_t channels_in = graph.tensor(op.inputs[0]).shape[0] / a.groups,
                           channels_out = graph.tensor(op.output).shape[0] / a.groups;
        const std::int64_t area = element_count(weight) / (weight[0] * weight[1]);
        const double bytes_of_weight = parameter_bytes(0);
        const std::int64_t pixels_in =
                               context.micro_batch *
                               (element_count(graph.tensor(op.inputs[0]).shape) / (channels_in * a.groups)),
                           pixels_out = context.micro_batch * (element_count(graph.tensor(op.output).shape) /
                                                               (channels_out * a.groups));
        Kernel kernel;
        kernel.kind = KernelKind::convolution;
        kernel.batch = a.groups;
        kernel.kernel_y = a.kernel_y;
        kernel.kernel_x = a.kernel_x;
        kernel.stride = a.stride;
        kernel.flops = core::Flops(2.0 * a.groups * (a.is_transposed ? pixels_in : pixels_out) * channels_in *
                                   channels_out * area);
        if (forward()) {
            convolve(kernel, "convolution", pixels_out, channels_out, channels_in * area, x + bytes_of_weight,
                     y);
            if (a.has_bias) memory("convolution_bias", y + parameter_bytes(1), y);
        } else if (backward_input()) {
            if (has_gradient(graph, op.inputs[0]))
                convolve(kernel, "convolution_input_gradient", pixels_in, channels_in, channels_out * area,
                         y + bytes_of_weight, x);
        } else {
            convolve(kernel, "convolution_weight_gradient", channels_out, channels_in * area, pixels_out,
                     x + y, bytes_of_weight);
            if (a.has_bias) memory("bias_gradient", y, parameter_bytes(1));
        }
    }

    bool casts_logits() const { return size < 4; }

    // Bytes per logit (b = bytes of the compute type): PyTorch casts to fp32 and keeps a log-softmax: (b + 4)
    // + 8 forward, 4 + 12 + (4 + b) backward: 36 with 2-byte types. Over a split vocabulary Megatron-LM's
    // vocab_parallel_cross_entropy casts, takes the maximum, subtracts, exponentiates, sums, divides in
    // passes of their own: 52.
    void statistics() {
        const double logits = bytes(op.inputs[0]), wide = logits / size * fp32_bytes;
        if (context.fused_cross_entropy) return memory("loss_statistics", logits, y);
        if (casts_logits()) memory("logits_to_fp32", logits, wide);
        if (context.tensor_parallel == 1) return memory("log_softmax", wide, wide);
        memory("logits_maximum", wide, y / 3);
        memory("logits_subtract", wide, wide);
        memory("logits_exponential", wide, wide);
        memory("logits_sum", wide, y / 3);
    }

    void cross_entropy() {
        const double logits = x, wide = logits / size * fp32_bytes, statistics = bytes(op.inputs[1]);
        if (forward()) {
            if (!context.fused_cross_entropy && context.tensor_parallel > 1)
                memory("softmax_divide", wide, wide);
            memory("cross_entropy", statistics * context.tensor_parallel, y);
        } else if (backward_input()) {
            if (context.fused_cross_entropy)
                return memory("cross_entropy_backward", logits + statistics, logits);
            if (context.tensor_parallel == 1) {
                memory("negative_log_likelihood_backward", 0, wide);
                memory("log_softmax_backward", 2 * wide, wide);
            } else {
                memory("softmax_gradient", wide, wide);
            }
            if (casts_logits()) memory("logits_gradient_from_fp32", wide, logits);
        }
    }

    // A tensor read by several operators collects their gradients: one addition for each but the first to
    // arrive, which is the last consumer's.
    void sum_gradients() {
        if (op.kind == OperatorKind::loss_statistics || op.kind == OperatorKind::cross_entropy) return;
        for (TensorId input : op.inputs) {
            // Only the weights of the combination pass a gradient on to the probabilities.
            if ((op.kind == OperatorKind::dispatch || op.kind == OperatorKind::experts) &&
                input == op.inputs[1])
                continue;
            if (!has_gradient(graph, input) ||
                graph.tensor(input).consumers.back() == graph.tensor(op.output).producer)
                continue;
            if (context.adds_in_convolution && op.kind == OperatorKind::conv2d)
                memory("gradient_sum", bytes(input), 0);
            else memory("gradient_sum", 2 * bytes(input), bytes(input));
        }
    }

    const ModelGraph& graph;
    const Operator& op;
    const Phase phase;
    const CostContext& context;
    double size = 0, x = 0, y = 0;
    std::vector<Kernel> list;
};

}  // namespace

std::vector<Kernel> kernels(const ModelGraph& graph, OperatorId op, Phase phase, const CostContext& context) {
    return KernelWriter(graph, graph.op(op), phase, context).write();
}

PhaseCost phase_cost(const ModelGraph& graph, OperatorRange range, Phase phase, const CostContext& context) {
    PhaseCost total;
    for (std::int32_t i = range.begin; i < range.end; ++i)
        for (const Kernel& kernel : kernels(graph, OperatorId(i), phase, context)) {
            total.flops += kernel.flops;
            total.read += kernel.read;
            total.written += kernel.written;
            ++total.kernels;
        }
    return total;
}

core::Flops forward_flops_per_sample(const ModelGraph& graph) {
    return phase_cost(graph, {0, core::count_of(graph.operators)}, Phase::forward, CostContext{}).flops;
}

}  // namespace model
