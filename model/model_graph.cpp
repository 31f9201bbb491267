#include "model/model_graph.h"

#include "core/index/integers.h"

#include <cstring>
#include <string_view>

namespace model {

namespace {

// 64-bit FNV-1a (draft-eastlake-fnv): a structural fingerprint, not a cryptographic one.
class Fingerprint {
public:
    void add(std::string_view text) {
        for (char c : text) add_byte(c);
        add_byte(0);
    }
    void add(std::int64_t number) {
        for (int i = 0; i < 8; ++i)
            add_byte(static_cast<unsigned char>(static_cast<std::uint64_t>(number) >> (8 * i)));
    }
    void add(double number) {
        std::uint64_t bits;
        static_assert(sizeof bits == sizeof number);
        std::memcpy(&bits, &number, sizeof bits);
        add(static_cast<std::int64_t>(bits));
    }
    void add(const std::vector<std::int64_t>& numbers) {
        add(std::int64_t(std::ssize(numbers)));
        for (std::int64_t number : numbers) add(number);
    }
    std::string text() const {
        std::string digits(16, '0');
        for (std::size_t i = 0; i < 16; ++i) digits[15 - i] = "0123456789abcdef"[(state_ >> (4 * i)) & 15];
        return digits;
    }

private:
    void add_byte(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
    std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

void add(Fingerprint& print, const Attributes& a) {
    for (std::int64_t n : {std::int64_t(a.has_bias),
                           a.heads,
                           a.kv_heads,
                           a.head_dimension,
                           std::int64_t(a.is_causal),
                           std::int64_t(a.is_rotary),
                           std::int64_t(a.has_alibi),
                           std::int64_t(a.has_relative_bias),
                           std::int64_t(a.is_cross_attention),
                           a.window,
                           a.local_window,
                           a.relative_buckets,
                           a.relative_distance,
                           a.position_offset,
                           std::int64_t(a.is_tanh_approximation),
                           a.kernel_y,
                           a.kernel_x,
                           a.stride,
                           a.padding,
                           a.experts,
                           a.experts_per_token,
                           a.expert_hidden,
                           std::int64_t(a.experts_are_gated),
                           std::int64_t(a.is_shifted)})
        print.add(n);
    for (double n :
         {a.rotary_fraction, a.rotary_base, a.epsilon, a.probability, a.softmax_scale, a.input_scale})
        print.add(n);
    if (a.capacity_factor != 0 || a.auxiliary_loss != 0)
        for (double n : {a.capacity_factor, a.auxiliary_loss}) print.add(n);
    const Attributes none;
    if (a.expert_activation != none.expert_activation || a.has_relative_positions || a.is_frozen ||
        a.has_fixed_statistics)
        for (std::int64_t n : {std::int64_t(a.expert_activation), std::int64_t(a.has_relative_positions),
                               std::int64_t(a.is_frozen), std::int64_t(a.has_fixed_statistics)})
            print.add(n);
    if (a.value_dimension || a.query_key_norm != QueryKeyNorm::none || a.soft_cap || a.has_sinks) {
        for (std::int64_t n : {value_dimension(a), std::int64_t(a.query_key_norm), std::int64_t(a.has_sinks)})
            print.add(n);
        print.add(a.soft_cap.value_or(0));
    }
    if (has_extended_routing(a)) {
        for (std::int64_t n : {std::int64_t(a.router_has_bias), std::int64_t(a.experts_have_bias),
                               std::int64_t(a.has_sigmoid_scores), std::int64_t(a.has_plain_weights),
                               a.expert_groups, a.chosen_groups})
            print.add(n);
        for (double n : {a.routed_scale, a.activation_limit.value_or(0)}) print.add(n);
    }
    // Of imported graphs alone: graphs without them keep the hash they had before these attributes were
    // known.
    if (a.product != none.product || a.groups != 1 || a.is_transposed || a.is_maximum || a.saves_inputs ||
        a.saves_output)
        for (std::int64_t n : {a.product.batch, a.product.m, a.product.n, a.product.k, a.groups,
                               std::int64_t(a.is_transposed) + 2 * std::int64_t(a.is_maximum) +
                                   4 * std::int64_t(a.saves_inputs) + 8 * std::int64_t(a.saves_output)})
            print.add(n);
}

}  // namespace

std::int64_t parameter_count(const ModelGraph& graph) {
    std::int64_t count = 0;
    for (const Parameter& parameter : graph.parameters)
        if (!parameter.is_task_head) count += element_count(parameter.shape);
    return count;
}

std::int64_t trained_parameter_count(const ModelGraph& graph) {
    std::int64_t count = 0;
    for (const Parameter& parameter : graph.parameters) count += element_count(parameter.shape);
    return count;
}

std::int64_t parameter_count(const ModelGraph& graph, OperatorRange range) {
    std::vector<bool> used(graph.parameters.size(), false);
    for (std::int32_t i = range.begin; i < range.end; ++i)
        for (ParameterId parameter : graph.operators[i].parameters) used[parameter.index] = true;
    std::int64_t count = 0;
    for (std::size_t i = 0; i < used.size(); ++i)
        if (used[i]) count += element_count(graph.parameters[i].shape);
    return count;
}

std::vector<TiedParameter> tied_parameters(const ModelGraph& graph) {
    std::vector<std::vector<std::int32_t>> units(graph.parameters.size());
    for (const Operator& op : graph.operators)
        for (ParameterId parameter : op.parameters) {
            auto& list = units[parameter.index];
            if (list.empty() || list.back() != op.unit) list.push_back(op.unit);
        }
    std::vector<TiedParameter> tied;
    for (const std::int32_t i : core::indices(units))
        if (units[i].size() > 1) tied.push_back({ParameterId(i), std::move(units[i])});
    return tied;
}

std::vector<TensorId> tensors_crossing(const ModelGraph& graph, std::int32_t boundary) {
    std::vector<TensorId> crossing;
    for (const std::int32_t i : core::indices(graph.tensors)) {
        const Tensor& tensor = graph.tensors[i];
        if (tensor.producer.index >= boundary || tensor.consumers.empty() ||
            graph.op(tensor.producer).kind == OperatorKind::input)
            continue;
        if (tensor.consumers.back().index >= boundary) crossing.push_back(TensorId(i));
    }
    return crossing;
}

TensorId storage_of(const ModelGraph& graph, TensorId tensor) {
    while (true) {
        const Operator& producer = graph.op(graph.tensor(tensor).producer);
        if (producer.kind != OperatorKind::parallel_enter && !is_view(producer.kind)) return tensor;
        tensor = producer.inputs[0];
    }
}

std::optional<core::Unsupported> tensor_parallel_unsupported(const ModelGraph& graph, int degree) {
    if (degree == 1) return std::nullopt;
    const auto indivisible = [](const char* what, std::int64_t extent, const Operator& op) {
        return core::Unsupported{std::string(what) + " = " + std::to_string(extent) + " of " + op.name, true};
    };
    // Heads first: widths are their multiples, and a person chooses heads.
    bool has_region = false;
    for (const Operator& op : graph.operators) {
        has_region = has_region || op.in_parallel_region;
        if (op.kind != OperatorKind::attention || !op.in_parallel_region) continue;
        if (op.attributes.heads % degree != 0) return indivisible("heads", op.attributes.heads, op);
        const Attributes& a = op.attributes;
        if (a.kv_heads % degree != 0) {
            // More ranks than heads of keys and values: ranks share a head, and every head has as many.
            const bool is_shared = degree % a.kv_heads == 0 && a.kv_heads * a.head_dimension % degree == 0 &&
                                   !a.is_cross_attention && !a.has_relative_positions && !a.value_dimension;
            if (!is_shared) return indivisible("kv_heads", a.kv_heads, op);
        }
        if (op.attributes.query_key_norm == QueryKeyNorm::all_heads)
            return core::Unsupported{op.name + " has a norm over all heads together"};
    }
    for (const Operator& op : graph.operators) {
        if (!op.in_parallel_region) continue;
        if (op.kind == OperatorKind::experts && op.attributes.expert_hidden % degree != 0)
            return indivisible("expert_hidden", op.attributes.expert_hidden, op);
        if (op.kind != OperatorKind::linear) continue;
        const Parameter& weight = graph.parameter(op.parameters[0]);
        const bool is_head = weight.split_dimension == 0 && weight.shape[0] == graph.vocabulary;
        if (!weight.split_dimension || is_head || !weight.split_sections.empty()) continue;
        const std::int64_t extent = weight.shape[*weight.split_dimension] / weight.split_blocks;
        if (extent % degree != 0) return indivisible("width", extent, op);
    }
    if (!has_region) return core::Unsupported{"the model has no tensor-parallel regions"};
    return std::nullopt;
}

std::optional<core::Unsupported> sequence_parallel_unsupported(const ModelGraph& graph) {
    for (const Operator& op : graph.operators) {
        const bool picks_tokens =
            op.kind == OperatorKind::select_first_token || op.kind == OperatorKind::select_positions ||
            op.kind == OperatorKind::transpose || op.kind == OperatorKind::average_tokens ||
            op.kind == OperatorKind::prepend_token || op.kind == OperatorKind::merge_patches;
        if (picks_tokens && !op.in_parallel_region)
            return core::Unsupported{std::string(name_of(op.kind)) + " of " + op.name +
                                     " needs all tokens of a sample"};
    }
    return std::nullopt;
}

std::optional<core::Unsupported> context_parallel_unsupported(const ModelGraph& graph, int degree) {
    if (degree == 1) return std::nullopt;
    if (graph.tokens_per_sample == 0 || graph.encoder_tokens_per_sample > 0)
        return core::Unsupported{"only models of one sequence of tokens are divided along it"};
    if (graph.tokens_per_sample % (2 * degree) != 0)
        return core::Unsupported{std::to_string(2 * degree) + " parts do not divide its " +
                                     std::to_string(graph.tokens_per_sample) + " tokens",
                                 true};
    if (std::optional<core::Unsupported> unsupported = sequence_parallel_unsupported(graph))
        return unsupported;
    for (const Operator& op : graph.operators) {
        const Attributes& a = op.attributes;
        if (op.kind == OperatorKind::attention &&
            (a.is_cross_attention || a.has_relative_bias || a.has_relative_positions || a.local_window > 0))
            return core::Unsupported{"attention of " + op.name +
                                     " has relative positions or windows of its own"};
        if (op.kind == OperatorKind::batch_norm || op.kind == OperatorKind::unknown ||
            graph.tensor(op.output).shape.empty())
            return core::Unsupported{op.name + " has no tokens to divide"};
    }
    return std::nullopt;
}

std::optional<core::Unsupported> expert_parallel_unsupported(const ModelGraph& graph, int degree) {
    if (degree == 1) return std::nullopt;
    bool has_experts = false;
    for (const Operator& op : graph.operators) {
        if (op.kind != OperatorKind::experts) continue;
        has_experts = true;
        if (op.attributes.experts % degree != 0)
            return core::Unsupported{"experts = " + std::to_string(op.attributes.experts) + " of " + op.name,
                                     true};
    }
    if (!has_experts) return core::Unsupported{"the model has no experts"};
    return std::nullopt;
}

std::string hash_of(const ModelGraph& graph) {
    if (graph.has_whole_experts()) return graph.whole_experts_of;
    Fingerprint print;
    print.add(graph.family);
    for (std::int64_t n :
         {graph.tokens_per_sample, graph.encoder_tokens_per_sample, graph.vocabulary, graph.image_size})
        print.add(n);
    for (const Parameter& p : graph.parameters) {
        print.add(p.name);
        print.add(p.shape);
        print.add(std::int64_t(p.split_dimension.value_or(-1)));
        print.add(p.split_blocks);
        print.add(p.split_sections);
        print.add(std::int64_t(p.initialization));
        print.add(p.deviation);
        print.add(std::int64_t(p.is_expert) + 2 * std::int64_t(p.decays) + 4 * std::int64_t(p.is_task_head));
    }
    for (const Tensor& t : graph.tensors) {
        print.add(t.shape);
        print.add(std::int64_t(t.split));
        print.add(std::int64_t(t.split_dimension.value_or(-1)));
        print.add(core::name_of(t.type));
    }
    for (const Operator& op : graph.operators) {
        print.add(name_of(op.kind));
        print.add(op.name);
        print.add(std::int64_t(std::ssize(op.inputs)));
        for (TensorId tensor : op.inputs) print.add(std::int64_t(tensor.index));
        print.add(std::int64_t(op.output.index));
        print.add(std::int64_t(std::ssize(op.parameters)));
        for (ParameterId parameter : op.parameters) print.add(std::int64_t(parameter.index));
        print.add(std::int64_t(op.unit));
        print.add(std::int64_t(op.in_parallel_region));
        add(print, op.attributes);
    }
    return print.text();
}

}  // namespace model
