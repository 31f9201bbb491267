#include "sim/cost/compute.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/operators/attention_cost.h"
#include "model/operators/fp8_products.h"
#include "model/operators/rank_share.h"
#include "model/operators/signature.h"
#include "schedule/pass/recompute.h"
#include "schedule/program/pieces.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/host_update.h"
#include "sim/cost/kernel/attention.h"
#include "sim/cost/kernel/convolution.h"
#include "sim/cost/kernel/fp8_casts.h"
#include "sim/cost/kernel/product.h"

namespace sim {

namespace {

constexpr double fp32_bytes = 4;
// Operands of two bytes need this alignment, in elements, for tensor cores: 16 bytes.
constexpr int aligned_elements = 8;

// What was measured of an operator; null: nothing. Its name is made only where anything was.
const cluster::MeasuredOperator* measured_of(
    const std::map<std::string_view, const cluster::MeasuredOperator*>& measured,
    const model::ModelGraph& graph, model::OperatorId id, const model::CostContext& context) {
    if (measured.empty()) return nullptr;
    const auto found = measured.find(model::signature(graph, id, context));
    return found == measured.end() ? nullptr : found->second;
}

core::Seconds streaming_time(core::Bytes bytes, const cluster::DeviceSpec& device,
                             const CostConstants& constants) {
    return bytes / memory_rate(device, constants);
}

core::Seconds convolution_time(const model::Kernel& kernel, model::Phase phase,
                               const cluster::DeviceSpec& device, core::DataType compute,
                               const CostConstants& constants, bool is_tuned) {
    const cluster::MatrixProductCurve& curve = device.matrix_product.at(compute);
    // Machines with measured products (CPUs) run convolutions as products.
    if (!curve.points.empty() || !device.architecture.starts_with("sm"))
        return product_time(kernel, device, compute, constants);
    // Newer libraries and sustained load are those of half precision in every format. What newer libraries
    // gained are further algorithms to choose from: their default one is that of the first.
    const double efficiency = convolution_efficiency(kernel, phase, device, compute, is_tuned) *
                              sustained_rate(device, core::DataType::fp16, constants) *
                              (is_tuned ? constants.convolution_rate : 1.0);
    const core::Seconds streaming =
        (kernel.read + kernel.written) /
        (device.memory_bandwidth * convolution_memory_efficiency(device, compute));
    const core::Seconds time =
        curve.launch + std::max(kernel.flops / (device.peak.at(compute) * efficiency), streaming);
    // On tensor cores a convolution is an implicit product (cuDNN, arXiv 1410.0759): it fills tiles and waves
    // no better than a product of its shape. The tables are of V100, where waves are not modelled. (Weight
    // gradients divide their depth, all pixels of the batch, over as many blocks as the device takes.)
    const bool is_implicit_product = compute != core::DataType::fp32 && kernel.batch == 1 &&
                                     phase != model::Phase::backward_weight && has_tiles(device);
    return is_implicit_product ? std::max(time, product_time(kernel, device, compute, constants)) : time;
}

core::Seconds attention_time(const model::Kernel& kernel, model::Phase phase,
                             const cluster::DeviceSpec& device, core::DataType compute,
                             const CostConstants& constants, AttentionKernel attention) {
    // The kernel's FLOPs are of the full square; kernels of the flash family skip what is masked.
    const core::Flops flops = kernel.flops * kernel.visible_share;
    const bool is_backward = phase != model::Phase::forward;
    core::FlopsPerSecond rate =
        attention == AttentionKernel::cudnn && has_cudnn_attention(device)
            ? cudnn_attention_rate(device, compute, kernel.k, kernel.n, kernel.is_causal, is_backward)
            : flash_attention_rate(device, compute, kernel.k, kernel.n, kernel.is_causal, is_backward);
    if (attention == AttentionKernel::flash_1) rate = rate * constants.first_flash_rate;
    return device.kernel_launch +
           std::max(flops / rate, streaming_time(kernel.read + kernel.written, device, constants));
}

// Passes over the counted bytes, by what is known of the framework.
double memory_passes(const model::Kernel& kernel, const cluster::DeviceSpec& device, core::DataType compute,
                     const FrameworkTraits& traits) {
    const std::string_view what = kernel.what;
    const bool is_half = core::size_of(compute).value < fp32_bytes;
    double passes = traits.memory_passes * (is_half ? traits.half_passes : 1);
    const auto is = [&](std::string_view part) { return what.find(part) != std::string_view::npos; };
    // Bytes that a framework's kernels move over those that are counted.
    constexpr double residual_at_hand = 2.0 / 4.0, residual_backward = 8.0 / 6.0;
    constexpr double gelu_in_product = 2.0 / 4.0, gelu_backward_in_product = 2.0 / 6.0;
    constexpr double masked_softmax = 1.5 / 2.0, masked_softmax_backward = 2.0 / 3.0;
    constexpr double composed_rotary = 44.0 / 4.0, composed_rms_norm = 34.0 / 4.0,
                     composed_gate = 16.0 / 10.0;
    // fp32 elementwise kernels with casts around them: 4 + 4 bytes and a cast of 2 + 4 on one side, against 2
    // + 2: (8 + 1.4) / 4.
    if (is_half && !is("batch_norm") &&
        (is("softmax") || is("norm") || is("gelu") || is("dropout") || is("scale") || is("mask")))
        passes *= traits.wide_elementwise;
    if (is("layer_norm") || is("norm_backward") || is("gelu") || is("dropout"))
        passes *= is("batch_norm") ? 1 : traits.composed_elementwise;
    // The sum is at hand when it is normalized: 2 bytes for 4 beside the addition's 6. Backward reads x and
    // dy, and reads and writes the residual's gradient: 8 for 6 + 4 + 6.
    if (traits.has_fused_residual_norm && is("layer_norm")) passes *= residual_at_hand;
    if (traits.has_fused_residual_norm && (is("norm_parameter_gradient") || is("gradient_sum"))) passes = 0;
    if (traits.has_fused_residual_norm && is("norm_backward")) passes *= residual_backward;
    // The product writes its input beside the result: 2 bytes more instead of a kernel's 2 + 2; backward
    // reads it: 2 instead of 4 + 2.
    if (traits.has_fused_gelu && is("gelu") &&
        (device.architecture.starts_with("sm9") || device.architecture.starts_with("sm1")))
        passes *= is("backward") ? gelu_backward_in_product : gelu_in_product;
    // The upper triangle is written but not read: 1.5 passes for 2, backward 2 for 3.
    if (traits.skips_masked_scores && kernel.is_causal && is("softmax"))
        passes *= is("backward") ? masked_softmax_backward : masked_softmax;
    // x.float(), pow, mean, rsqrt, multiply, cast, multiply by the scale: 34 bytes an element instead of 4
    // (PyTorch without a fused kernel). x.float(), cast, multiply as complex numbers, cast: 2 + 4, 4 + 8, 8 +
    // 8, 8 + 2 bytes an element instead of 2 + 2 (Meta's llama, apply_rotary_emb).
    if (traits.composes_llama_kernels && is("rotary")) passes *= composed_rotary;
    if (traits.composes_llama_kernels && is("rms_norm")) passes *= composed_rms_norm;
    // silu and the product as kernels of their own: 4 + 6 bytes an element instead of 6; backward 6 + 10
    // instead of 10.
    if (traits.composes_llama_kernels && is("gated_silu")) passes *= composed_gate;
    return passes;
}

// Does it cost more, or less, than others like it? Data are read and losses waited for once; what runs again
// with an attention is of its own layer.
bool has_own_price(const model::Operator& op, const FrameworkTraits& traits) {
    return op.kind == model::OperatorKind::input || op.kind == model::OperatorKind::cross_entropy ||
           (traits.recomputes_alternate_products && op.in_attention_core);
}

// Operators at the end of each layer whose results no backward pass of the layer reads: a last product (its
// input is saved before it runs) and the addition after it.
std::vector<bool> after_last_saved(const model::ModelGraph& graph) {
    using model::OperatorKind;
    std::vector<bool> is_after(graph.operators.size(), false);
    for (const model::Unit& unit : graph.units)
        for (std::int32_t i = unit.operators.end - 1; i >= unit.operators.begin; --i) {
            const model::Operator& op = graph.operators[i];
            const bool saves_nothing = op.kind == OperatorKind::add ||
                                       op.kind == OperatorKind::parallel_exit ||
                                       (op.kind == OperatorKind::dropout && op.attributes.probability == 0);
            if (!saves_nothing && op.kind != OperatorKind::linear) break;
            is_after[i] = true;
            if (op.kind == OperatorKind::linear) break;
        }
    return is_after;
}

// Does a product turn into words that the framework pads? Its rows then begin where those of the other side
// do.
bool pads_words(const model::ModelGraph& graph, const model::Operator& op, const FrameworkTraits& traits) {
    return traits.vocabulary_multiple % 8 == 0 && op.kind == model::OperatorKind::linear &&
           graph.vocabulary > 0 && graph.parameter(op.parameters[0]).shape[0] == graph.vocabulary;
}

// The epilogues of weight-gradient products read and write an fp32 sum instead of writing half precision.
void add_in_products(std::vector<model::Kernel>& kernels) {
    constexpr double sum_bytes = 4, half_bytes = 2;
    for (model::Kernel& kernel : kernels) {
        if (kernel.kind != model::KernelKind::matrix_product) continue;
        const double elements =
            static_cast<double>(kernel.m) * static_cast<double>(kernel.n) * static_cast<double>(kernel.batch);
        kernel.read += core::Bytes(elements * sum_bytes);
        kernel.written += core::Bytes(elements * (sum_bytes - half_bytes));
    }
}

// Tensor cores convolve channels last; images that lie otherwise are turned around every convolution.
bool converts_layout(ImageLayout layout, core::DataType compute) {
    switch (layout) {
        case ImageLayout::channels_last: return false;
        case ImageLayout::channels_first: return compute != core::DataType::fp32;
        case ImageLayout::channels_last_in_half: return compute == core::DataType::tf32;
    }
    throw core::InternalError("broken promise: every layout of images is known");
}

// Does a linear layer read what a normalization wrote, at most gathered on the way?
bool follows_norm(const model::ModelGraph& graph, const model::Operator& op) {
    using model::OperatorKind;
    if (op.kind != OperatorKind::linear) return false;
    const model::Operator* before = &graph.op(graph.tensor(op.inputs[0]).producer);
    if (before->kind == OperatorKind::parallel_enter)
        before = &graph.op(graph.tensor(before->inputs[0]).producer);
    return before->kind == OperatorKind::layer_norm || before->kind == OperatorKind::rms_norm;
}

std::string formats_of(const std::map<core::DataType, cluster::MatrixProductCurve>& curves) {
    std::vector<std::string> names;
    for (const auto& [type, curve] : curves) names.emplace_back(core::name_of(type));
    return names.empty() ? "none" : core::list_in_words(names);
}

}  // namespace

core::Seconds kernel_time(const model::Kernel& kernel, model::Phase phase, const cluster::DeviceSpec& device,
                          core::DataType compute, const FrameworkTraits& traits,
                          const CostConstants& constants) {
    switch (kernel.kind) {
        case model::KernelKind::matrix_product: {
            if (kernel.alignment < aligned_elements && kernel.batch == 1 && traits.pads_products) {
                model::Kernel padded = kernel;
                padded.alignment = aligned_elements;
                return kernel_time(padded, phase, device, compute, traits, constants);
            }
            return product_time(kernel, device, compute, constants);
        }
        case model::KernelKind::convolution: {
            core::Seconds time =
                convolution_time(kernel, phase, device, compute, constants, traits.tunes_convolutions);
            // What is converted is once read and once written. Half precision: operands and result; tf32
            // has kernels that write the result as it is wanted (cuDNN 8's "nhwckrsc_nchw").
            if (converts_layout(traits.image_layout, compute))
                time += streaming_time(
                    (compute == core::DataType::tf32 ? kernel.read : kernel.read + kernel.written) * 2.0,
                    device, constants);
            return time;
        }
        case model::KernelKind::attention:
            return attention_time(kernel, phase, device, compute, constants, traits.attention_kernel);
        case model::KernelKind::memory:
            return device.kernel_launch + streaming_time((kernel.read + kernel.written) *
                                                             memory_passes(kernel, device, compute, traits),
                                                         device, constants);
    }
    throw core::InternalError("broken promise: every kind of kernel has a price");
}

std::optional<ComputeCost> ComputeCost::make(const model::ModelGraph& graph,
                                             const cluster::DeviceSpec& device, const schedule::Plan& plan,
                                             core::Diagnostics& diagnostics, const CostConstants& given,
                                             int ranks_a_node, const std::vector<std::int32_t>* first_like,
                                             PriceSums sums) {
    const core::DataType compute = plan.precision.compute;
    if (!device.peak.contains(compute) || !device.matrix_product.contains(compute)) {
        diagnostics.error(
            {}, "plan.precision",
            device.name + " has no figure for " + std::string(core::name_of(compute)) + " matrix products",
            "it has " + formats_of(device.matrix_product) + "; an unknown rate is refused, not guessed");
        return std::nullopt;
    }
    CostConstants constants = given;
    if (device.architecture.starts_with("sm")) {
        // The least of n normal variates lies about sqrt(2 ln n) standard deviations below their mean.
        const double pace =
            1 + constants.device_spread * std::sqrt(2 * std::log(static_cast<double>(plan.layout.ranks())));
        constants.sustained_half /= pace;
        constants.sustained_ampere /= pace;
        constants.sustained_hopper /= pace;
        constants.sustained_full /= pace;
    }
    ComputeCost cost;
    cost.device_ = &device;
    cost.plan_ = &plan;
    cost.traits_ = framework_traits(plan.framework, constants);
    cost.constants_ = constants;
    // Convolutional networks run on whole-tensor kernels of the vendor's library: what was counted is what
    // there is.
    for (const model::Operator& op : graph.operators)
        if (op.kind == model::OperatorKind::conv2d) cost.traits_.memory_passes = cost.traits_.half_passes = 1;
    // NVIDIA's Transformer-XL brings its own LAMB, a scripted loop over the tensors.
    if (graph.family == "transformer_xl" && plan.optimizer.kind == schedule::OptimizerKind::lamb) {
        cost.traits_.has_multi_tensor_update = false;
        constexpr int kernels_a_tensor = 13;
        constexpr double bytes_a_parameter = 60;  // beside the update
        cost.traits_.update_kernels_per_tensor = kernels_a_tensor;
        cost.traits_.step_bytes += bytes_a_parameter;
    }
    const FrameworkTraits& traits = cost.traits_;
    const bool is_accelerator = device.architecture.starts_with("sm");
    cost.dispatch_ = traits.dispatch.value > 0 ? traits.dispatch : device.host_dispatch;
    const model::CostContext plain = plan.cost_context();
    model::CostContext context = plain;
    context.fused_dropout_add = context.fused_dropout_add || traits.has_fused_dropout_add;
    context.dense_dispatch_group = traits.dense_dispatch_group;
    context.separate_bias = traits.has_separate_bias;
    context.fused_norm_activation = traits.has_fused_norm_relu && (!traits.fuses_norm_relu_in_half_only ||
                                                                   core::size_of(compute).value < fp32_bytes);
    context.fused_add_activation = traits.fuses_pointwise;
    context.adds_in_convolution = traits.has_fused_norm_relu;

    MeasuredTimes measured;
    for (const cluster::MeasuredOperator& entry : device.measured_operators)
        measured[entry.signature] = &entry;

    // Gradients of several micro-batches, or parts of one, are added up: the fresh gradient and the sum
    // are read, the sum is written. (Sharded gradients are reduced after every micro-batch instead, and only
    // the shard's share is added.)
    const bool accumulates =
        (plan.micro_batches > 1 || !graph.part.is_whole()) && !plan.shards(schedule::Sharding::gradients);
    // Half-precision gradients added to fp32 ones: 2 + 4 read, 4 written.
    constexpr double unscaled_bytes = 10;
    const double accumulated_bytes =
        traits.accumulation_bytes > 0 ? traits.accumulation_bytes
        : traits.unscales_every_micro_batch && core::size_of(compute).value < fp32_bytes
            ? unscaled_bytes
            : core::size_of(plain.compute).value + 2 * core::size_of(plan.precision.gradients).value;

    // Casting fp32 parameters at each use and their gradients back: 4 + 2 bytes each way.
    const bool is_half = compute == core::DataType::fp16 || compute == core::DataType::bf16;
    constexpr double both_casts = 12;
    const double cast_bytes = is_half && plan.precision.parameters == core::DataType::fp32 ? both_casts : 0;
    // Weight gradients added by the product that makes them: 4 bytes read and 4 written instead of 2.
    const bool adds_in_product = traits.fuses_accumulation && core::size_of(compute).value < fp32_bytes;
    const double handled_bytes =
        cast_bytes + (accumulates                                  ? (adds_in_product ? 0 : accumulated_bytes)
                      : plan.shards(schedule::Sharding::gradients) ? traits.sharded_gradient_bytes
                                                                   : 0);

    // With few sums operators that cost the same have one place in the columns, else each has its own.
    Columns columns;
    std::vector<std::int32_t> place_of;
    place_of.reserve(graph.operators.size());
    const bool shares_places = first_like && sums == PriceSums::few;
    const std::vector<bool> is_after_last_saved = after_last_saved(graph);
    cost.gathers_projection_.reserve(graph.operators.size());
    std::size_t measured_count = 0, priced_count = 0;
    bool has_flash = false;
    struct Known {
        std::array<ComputePrice, 3> of_phase;
        std::size_t measured = 0, priced = 0;  // phases
    };
    std::vector<Known> known;  // by place, without what but one of them has
    for (const std::int32_t o : core::indices(graph.operators)) {
        const model::OperatorId op(o);
        const model::Operator& description = graph.op(op);
        const std::int32_t first = first_like ? (*first_like)[o] : o;
        const bool is_known = first < o, is_last = o + 1 == core::count_of(graph.operators);
        if (shares_places && is_known && !is_last && !has_own_price(description, traits) &&
            is_after_last_saved[o] == is_after_last_saved[first]) {
            place_of.push_back(place_of[first]);
            cost.gathers_projection_.push_back(cost.gathers_projection_[first]);
            priced_count += known[place_of[first]].priced;
            measured_count += known[place_of[first]].measured;
            continue;
        }
        // Of a plan in fp8 the linear layers are, and not all of them.
        const core::DataType own_compute =
            compute == core::DataType::fp8 && !model::fp8_unsupported(graph, op, plain)
                ? compute
                : plan.precision.activations();
        const cluster::MeasuredOperator* const entry = measured_of(measured, graph, op, plain);
        Known own;
        if (is_known) own = known[place_of[first]];
        std::array<ComputePrice, 3>& of_phase = own.of_phase;
        for (const model::Phase phase :
             {model::Phase::forward, model::Phase::backward_input, model::Phase::backward_weight}) {
            if (is_known) break;
            ComputePrice& price = of_phase[core::position_of(phase)];
            std::vector<model::Kernel> kernels = model::kernels(graph, op, phase, context);
            if (pads_words(graph, description, traits))
                for (model::Kernel& kernel : kernels)
                    kernel.alignment =
                        std::gcd<std::int64_t>(8, graph.parameter(description.parameters[0]).shape[1]);
            if (adds_in_product && phase == model::Phase::backward_weight) add_in_products(kernels);
            const Fp8Casts casts = {traits.casts_fp8_weights_once ? 1.0 / plan.micro_batches : 1.0,
                                    traits.casts_fp8_in_norm && follows_norm(graph, description)};
            for (const model::Kernel& kernel : kernels) {
                price.flops += kernel.flops;
                has_flash = has_flash || kernel.kind == model::KernelKind::attention;
                if (entry) continue;
                price.device += kernel_time(kernel, phase, device, own_compute, traits, constants);
                if (own_compute == core::DataType::fp8 && kernel.kind == model::KernelKind::matrix_product)
                    price.device += streaming_time(fp8_cast_bytes(kernel, phase, casts), device, constants);
                price.host += cost.dispatch_;
            }
            if (!kernels.empty()) ++own.priced;
            if (entry) {
                price.device = phase == model::Phase::forward          ? entry->forward
                               : phase == model::Phase::backward_input ? entry->backward_input
                                                                       : entry->backward_weight;
                if (!kernels.empty()) ++own.measured;
            } else if (handled_bytes > 0 && phase == model::Phase::backward_weight) {
                for (model::ParameterId parameter : description.parameters) {
                    const double elements =
                        static_cast<double>(model::parameter_elements(graph, parameter, context));
                    price.device += device.kernel_launch +
                                    streaming_time(core::Bytes(elements * handled_bytes), device, constants);
                    price.host += cost.dispatch_;
                }
            }
        }
        if (first_like) known.push_back(own);
        priced_count += own.priced;
        measured_count += own.measured;
        // Launches without work occupy the host only: a third of them in the forward pass.
        if (is_last) {
            const core::Seconds launches =
                cost.dispatch_ * (host_time(device.architecture, constants) *
                                  static_cast<double>(graph.launches_per_step +
                                                      graph.launches_per_sample * context.micro_batch));
            constexpr double phases = 3, backward_share = 2.0 / phases;
            of_phase[0].host += launches / phases;
            of_phase[1].host += launches * backward_share;
        }
        // Images come from pageable memory in fp32, all ranks of a node through its host's copy.
        if (description.kind == model::OperatorKind::input && traits.copies_inputs && is_accelerator) {
            const core::Bytes images = model::tensor_bytes(graph, description.output, context) *
                                       (fp32_bytes / core::size_of(compute).value);
            if (graph.tokens_per_sample <= 1)
                of_phase[0].blocked += images * static_cast<double>(ranks_a_node) /
                                       core::gigabytes_per_second(constants.input_copy_gbs);
        }
        // The host reads the loss of every micro-batch: until then nothing else is queued.
        if (description.kind == model::OperatorKind::cross_entropy)
            of_phase[0].blocked += traits.blocked_per_micro_batch;
        cost.gathers_projection_.push_back(model::gathers_projection(description, context));
        place_of.push_back(core::count_of(columns[forward]));
        const auto append = [&](Column column, const ComputePrice& price) {
            columns[column].push_back(price);
        };
        append(forward, of_phase[0]);
        append(alternate_products, {});
        append(forward_until_saved, is_after_last_saved[o] ? ComputePrice{} : of_phase[0]);
        append(backward_input, of_phase[1]);
        append(backward_weight, of_phase[2]);
    }
    if (plan.tensor_overlap > 1 && plan.layout.tensor > 1)
        cost.price_pieces(graph, context, measured, first_like);
    if (plain.communicates(model::ContextCommunication::ring))
        cost.price_rings(graph, context, measured, first_like);
    if (traits.recomputes_alternate_products)
        cost.recompute_alternate_products(graph, context, place_of, columns);
    const OperatorPrices::Places places = shares_places ? OperatorPrices::places(place_of) : nullptr;
    for (std::size_t column = 0; column < columns.size(); ++column)
        cost.prices_[column] =
            places ? OperatorPrices(columns[column], places) : OperatorPrices(columns[column], place_of);
    if (compute == core::DataType::fp8) cost.assumptions_.push_back(model::fp8_summary(graph, plain));
    if (measured_count > 0)
        cost.assumptions_.push_back(std::to_string(measured_count) + " of " + std::to_string(priced_count) +
                                    " operator phases have times measured on " + device.name +
                                    "; the rest follow its curves");
    if (has_flash) {
        switch (flash_attention_source(device)) {
            case FlashAttentionSource::measured:
                cost.assumptions_.push_back(
                    "attention runs at the published rates of FlashAttention-2 on this architecture");
                break;
            case FlashAttentionSource::by_ratio:
                cost.assumptions_.push_back(
                    "attention runs at FlashAttention-2's share of peak on A100: no curve for " +
                    device.architecture + " is known");
                break;
            case FlashAttentionSource::products:
                cost.assumptions_.push_back(
                    "attention without stored scores is priced as its products at the matrix-product rate: "
                    "FlashAttention-2 has no kernel for " +
                    device.architecture);
                break;
        }
    }
    return cost;
}

// The instructions of selective recomputation are those of attention: each carries what its layer runs again.
void ComputeCost::recompute_alternate_products(const model::ModelGraph& graph,
                                               const model::CostContext& context,
                                               const std::vector<std::int32_t>& place_of,
                                               Columns& columns) const {
    std::vector<ComputePrice> of_unit(graph.units.size());
    std::vector<int> attentions(graph.units.size(), 0);
    for (const std::int32_t o : core::indices(graph.operators)) {
        const model::Operator& op = graph.operators[o];
        const auto i = o;
        const ComputePrice& whole = columns[forward][place_of[o]];
        const double share = schedule::recomputed_share(graph, op);
        ComputePrice& sum = of_unit[op.unit];
        sum += {whole.device * share, share > 0 ? whole.host : core::Seconds(0), {}, whole.flops * share};
        if (!op.in_attention_core) continue;
        ++attentions[op.unit];
        for (const model::Kernel& kernel :
             model::kernels(graph, model::OperatorId(i), model::Phase::forward, context))
            if (std::string_view(kernel.what) == "rotary")
                sum += {kernel_time(kernel, model::Phase::forward, *device_, plan_->precision.activations(),
                                    traits_, constants_),
                        dispatch_,
                        {},
                        {}};
    }
    for (std::size_t o = 0; o < graph.operators.size(); ++o) {
        const model::Operator& op = graph.operators[o];
        ComputePrice& own = columns[alternate_products][place_of[o]];
        if (!op.in_attention_core) continue;
        const ComputePrice& all = of_unit[op.unit];
        const double part = 1.0 / attentions[op.unit];
        own = {all.device * part, all.host * part, {}, all.flops * part};
    }
}

// A product of some of its rows reads all of its weights, and is launched as the whole is. Of a scattered
// result every rank's share has as many rows of a piece: as many products in one launch.
std::array<ComputePrice, 2> ComputeCost::piece_prices(const std::vector<model::Kernel>& kernels,
                                                      model::Phase phase, const PiecePrices& pieces,
                                                      const core::Seconds* measured) const {
    const int shares = plan_->has_sequence_parallelism() ? plan_->layout.tensor : 1;
    std::array<ComputePrice, 2> prices;
    for (const int more : {0, 1}) {
        const std::int64_t rows = pieces.fewer + more;
        const double share = static_cast<double>(rows) / static_cast<double>(pieces.rows);
        ComputePrice& price = prices[std::size_t(more)];
        if (measured) price.device = *measured * share;
        for (model::Kernel kernel : kernels) {
            kernel.flops = kernel.flops * share;
            if (kernel.kind == model::KernelKind::matrix_product) {
                const double element = kernel.written.value / (double(kernel.m) * double(kernel.n));
                const double left_out = double(kernel.m) * (1 - share);
                kernel.read -= core::Bytes(left_out * double(kernel.k) * element);
                kernel.batch = shares;
                kernel.m = rows;
            } else {
                kernel.read = kernel.read * share;
            }
            kernel.written = kernel.written * share;
            price.flops += kernel.flops;
            if (measured) continue;
            price.device +=
                kernel_time(kernel, phase, *device_, plan_->precision.activations(), traits_, constants_);
            price.host += dispatch_;
        }
    }
    return prices;
}

void ComputeCost::price_pieces(const model::ModelGraph& graph, const model::CostContext& context,
                               const MeasuredTimes& measured, const std::vector<std::int32_t>* first_like) {
    const model::CostContext plain = plan_->cost_context();
    for (const std::int32_t o : core::indices(graph.operators)) {
        const model::Operator& op = graph.operators[o];
        if (op.kind != model::OperatorKind::linear) continue;
        if (first_like && (*first_like)[o] < o) {
            if (const auto like = pieces_.find((*first_like)[o]); like != pieces_.end())
                pieces_[o] = like->second;
            continue;
        }
        const model::OperatorId id(o);
        PiecePrices pieces;
        pieces.rows = model::rank_matrix(graph, op.output, plain).rows;
        if (plan_->has_sequence_parallelism()) pieces.rows /= plan_->layout.tensor;
        if (pieces.rows < 2) continue;
        pieces.fewer = pieces.rows / schedule::pieces_of(plan_->tensor_overlap, pieces.rows);
        const cluster::MeasuredOperator* const entry = measured_of(measured, graph, id, plain);
        const auto prices = [&](model::Phase phase, const core::Seconds* time) {
            return piece_prices(model::kernels(graph, id, phase, context), phase, pieces, time);
        };
        pieces.forward = prices(model::Phase::forward, entry ? &entry->forward : nullptr);
        pieces.backward_input =
            prices(model::Phase::backward_input, entry ? &entry->backward_input : nullptr);
        pieces_[o] = pieces;
    }
}

void ComputeCost::price_rings(const model::ModelGraph& graph, const model::CostContext& context,
                              const MeasuredTimes& measured, const std::vector<std::int32_t>* first_like) {
    const model::CostContext plain = plan_->cost_context();
    for (const std::int32_t o : core::indices(graph.operators)) {
        const model::Operator& op = graph.operators[o];
        if (!model::passes_keys(op, plain)) continue;
        if (first_like && (*first_like)[o] < o) {
            rings_[o] = rings_.at((*first_like)[o]);
            continue;
        }
        const cluster::MeasuredOperator* const entry =
            measured_of(measured, graph, model::OperatorId(o), plain);
        const auto prices = [&](model::Phase phase, const core::Seconds* time) {
            std::array<ComputePrice, 3> of_piece;
            const int last = model::ring_pieces(plain) - 1;
            for (const auto& [at, piece] : {std::pair(0, 0), std::pair(1, 1), std::pair(2, last)})
                for (const model::Kernel& kernel :
                     model::attention_piece_kernels(graph, op, phase, context, piece)) {
                    ComputePrice& price = of_piece[std::size_t(at)];
                    price.flops += kernel.flops;
                    if (time) continue;
                    price.device += kernel_time(kernel, phase, *device_, plan_->precision.activations(),
                                                traits_, constants_);
                    price.host += dispatch_;
                }
            if (time)
                for (ComputePrice& price : of_piece) price.device = *time / model::ring_pieces(plain);
            return of_piece;
        };
        rings_[o] = {prices(model::Phase::forward, entry ? &entry->forward : nullptr),
                     prices(model::Phase::backward_input, entry ? &entry->backward_input : nullptr)};
    }
}

ComputePrice ComputeCost::price(model::OperatorRange range, schedule::ComputePhase phase, int piece,
                                int pieces) const {
    using schedule::ComputePhase;
    if (pieces > 1) {
        if (piece == pieces) return between(backward_weight, range);
        const bool is_forward = phase == ComputePhase::forward || phase == ComputePhase::recompute;
        // What a framework does not run again it does not run in pieces either.
        if (is_forward && price(range, phase).device.value <= 0) return {};
        if (const auto ring = rings_.find(range.begin); ring != rings_.end())
            return (is_forward ? ring->second.forward
                               : ring->second.backward_input)[piece == 0           ? 0
                                                              : piece + 1 < pieces ? 1
                                                                                   : 2];
        const PiecePrices& of = pieces_.at(range.begin);
        const std::int64_t more = schedule::rows_of_piece(of.rows, piece, pieces).size() - of.fewer;
        return (is_forward ? of.forward : of.backward_input)[std::size_t(more)];
    }
    switch (phase) {
        case ComputePhase::forward: return between(forward, range);
        case ComputePhase::recompute:
            // Of selective recomputation the instructions are of what runs again and nothing else.
            return between(
                traits_.recomputes_alternate_products && plan_->runs_cores_again_alone() ? alternate_products
                : traits_.stops_recomputation_early && plan_->recompute == schedule::Recompute::full
                    ? forward_until_saved
                    : forward,
                range);
        case ComputePhase::backward: {
            ComputePrice both = between(backward_input, range);
            both += between(backward_weight, range);
            return both;
        }
        case ComputePhase::backward_input: return between(backward_input, range);
        case ComputePhase::backward_weight: return between(backward_weight, range);
    }
    throw core::InternalError("broken promise: every phase has a price");
}

// Gradient, moments and values are read, moments written.
core::Bytes ComputeCost::bytes_before_norms() const {
    if (!schedule::needs_update_norms(plan_->optimizer)) return {};
    return core::size_of(plan_->precision.gradients) +
           2 * schedule::state_bytes_per_parameter(plan_->optimizer) + core::Bytes(fp32_bytes);
}

ComputePrice ComputeCost::update_norm(std::int64_t elements) const {
    ComputePrice price;
    price.device = streaming_time(bytes_before_norms() * static_cast<double>(elements), *device_, constants_);
    return price;
}

ComputePrice ComputeCost::optimizer_step(std::int64_t elements, std::int64_t tensors) const {
    // LAMB reads values and update once more for its two norms (arXiv 1904.00962, algorithm 2).
    double bytes = update_bytes_per_parameter(*plan_);
    if (plan_->optimizer.kind == schedule::OptimizerKind::lamb) bytes += 2 * fp32_bytes;
    bytes -= bytes_before_norms().value;
    bytes += traits_.step_bytes;
    // Momentum alone is one kernel everywhere.
    const bool is_composed =
        traits_.composed_update_bytes > 0 && plan_->optimizer.kind != schedule::OptimizerKind::sgd;
    if (is_composed) bytes += traits_.composed_update_bytes;
    // DDP copies every gradient into its bucket, where it is divided and reduced, and back
    // (torch/csrc/distributed/c10d/reducer.cpp).
    const bool copies = traits_.copies_into_buckets && plan_->layout.data > 1 &&
                        !plan_->shards(schedule::Sharding::optimizer);
    if (copies) bytes += 4 * core::size_of(plan_->precision.gradients).value;
    ComputePrice price;
    price.device = device_->kernel_launch +
                   streaming_time(core::Bytes(bytes * static_cast<double>(elements)), *device_, constants_);
    const std::int64_t count = std::max<std::int64_t>(tensors, 1);
    // A multi-tensor kernel takes up to 36 tensors with four lists (gradient, value, two moments):
    // depth_to_max_tensors in NVIDIA apex, csrc/multi_tensor_apply.cuh.
    constexpr std::int64_t tensors_a_launch = 36;
    const std::int64_t launches = traits_.has_multi_tensor_update && !is_composed
                                      ? (count + tensors_a_launch - 1) / tensors_a_launch
                                      : count * traits_.update_kernels_per_tensor;
    price.host = dispatch_ * static_cast<double>(launches + (copies ? 2 * count : 0));
    const bool is_adam = plan_->optimizer.kind == schedule::OptimizerKind::adam ||
                         plan_->optimizer.kind == schedule::OptimizerKind::adamw;
    price.blocked =
        dispatch_ * static_cast<double>(count * (traits_.statistics_kernels_per_tensor +
                                                 (is_adam ? traits_.statistics_kernels_of_adam : 0)));
    return price;
}

ComputePrice ComputeCost::zero(core::Bytes bytes) const {
    ComputePrice price;
    price.device = device_->kernel_launch + streaming_time(bytes, *device_, constants_);
    price.host = dispatch_;
    price.blocked = traits_.blocked_per_step;
    return price;
}

core::Seconds ComputeCost::exposed(const TensorCollective& collective, core::Seconds time) const {
    using schedule::PayloadKind;
    const bool is_gradient = collective.payload == PayloadKind::activation_gradient;
    if (collective.group != schedule::GroupKind::tensor ||
        !(is_gradient || collective.payload == PayloadKind::activation))
        return time;
    if (collective.operators.end <= core::count_of(gathers_projection_) &&
        gathers_projection_[collective.operators.begin])
        return time;
    if (collective.pieces > 1) return time;
    if (plan_->sequence_parallel) time = beside_product(time, collective);
    if (is_gradient && collective.phase == schedule::ComputePhase::backward)
        time = beside_weight_gradient(time, collective.operators);
    return time;
}

core::Seconds ComputeCost::beside_product(core::Seconds time, const TensorCollective& collective) const {
    using schedule::CollectiveKind;
    using schedule::ComputePhase;
    const bool gathers = collective.kind == CollectiveKind::all_gather;
    const bool scatters = collective.kind == CollectiveKind::reduce_scatter;
    if (!traits_.overlaps_tensor_products || !(gathers || scatters)) return time;
    const bool is_backward =
        collective.phase == ComputePhase::backward || collective.phase == ComputePhase::backward_input;
    // Entering a parallel region gathers tokens forward and scatters their gradients backward.
    const bool enters = is_backward ? scatters : gathers;
    if (is_backward && enters) return time;  // beside the weight gradient
    const auto operators = core::count_of(gathers_projection_);
    const std::int32_t product = enters ? collective.operators.end : collective.operators.begin - 1;
    if (product < 0 || product >= operators) return time;
    const core::Seconds work = between(is_backward ? backward_input : forward, {product, product + 1}).device;
    // The last of the parts in which results are scattered has no product beside it: four parts in half
    // precision, one a rank in fp8, whose results travel as a ring (Megatron-Bridge@067f987,
    // comm_overlap.py).
    constexpr int parts_of_half = 4;
    const bool is_fp8 = plan_->precision.compute == core::DataType::fp8;
    const int parts = is_fp8 ? std::max(parts_of_half, plan_->layout.tensor) : parts_of_half;
    const core::Seconds last = scatters ? time / static_cast<double>(parts) : core::Seconds(0);
    return std::max(time - work, last);
}

core::Seconds ComputeCost::beside_weight_gradient(core::Seconds reduction, model::OperatorRange enter) const {
    const auto operators = core::count_of(gathers_projection_);
    if (!traits_.overlaps_input_gradients || enter.end >= operators) return reduction;
    // What both do at the same time is slowed down as compute beside any collective is.
    const core::Seconds weight = between(backward_weight, {enter.end, enter.end + 1}).device;
    return reduction - std::min(reduction, weight) * (1 - constants_.overlap_loss);
}

}  // namespace sim
