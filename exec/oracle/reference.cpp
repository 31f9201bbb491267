#include "exec/oracle/reference.h"

#include <algorithm>
#include <cmath>

#include "core/index/integers.h"
#include "core/random.h"
#include "exec/backend.h"
#include "exec/oracle/reference_operators.h"
#include "exec/runtime/parameters.h"
#include "schedule/plan/sequence_cut.h"

namespace exec {

namespace {

using model::OperatorKind;

void read_data(oracle::Context& context, const InputReader& inputs,
               const std::vector<std::int64_t>& samples) {
    for (const model::Operator& op : context.graph.operators) {
        if (op.kind != OperatorKind::input) continue;
        const std::int64_t count = model::element_count(context.graph.tensor(op.output).shape);
        const std::int32_t t = op.output.index;
        if (context.graph.tensor(op.output).type == core::DataType::int64) {
            context.ids[t].resize(count * samples.size());
            for (std::size_t i = 0; i < samples.size(); ++i)
                inputs.read(op.output, samples[i], std::span(context.ids[t]).subspan(i * count, count));
        } else {
            std::vector<float> values(count);
            context.values[t].clear();
            for (const std::int64_t sample : samples) {
                inputs.read(op.output, sample, std::span(values));
                context.values[t].insert(context.values[t].end(), values.begin(), values.end());
            }
        }
    }
}

class ReferenceOptimizer {
public:
    ReferenceOptimizer(const model::ModelGraph& graph, const schedule::Optimizer& optimizer,
                       const LearningRateSchedule& rates)
        : graph_(graph), o_(optimizer), rates_(rates) {
        for (const model::Parameter& parameter : graph.parameters) {
            first_.emplace_back(model::element_count(parameter.shape), 0.0);
            second_.emplace_back(first_.back());
        }
    }

    // Before the updates of a step of the training.
    void begin_step(int step) { rate_ = o_.learning_rate * rates_.factor(step); }

    void update(int step, std::size_t p, std::vector<double>& parameter,
                const std::vector<double>& gradient) {
        const double decay = graph_.parameters[p].decays ? o_.weight_decay : 0.0;
        if (o_.kind == schedule::OptimizerKind::lamb)
            return update_by_lamb(step, p, decay, parameter, gradient);
        for (std::size_t i = 0; i < parameter.size(); ++i) {
            double& w = parameter[i];
            double g = gradient[i];
            if (o_.kind == schedule::OptimizerKind::sgd) {
                g += decay * w;
                first_[p][i] = o_.momentum * first_[p][i] + g;
                w -= rate_ * first_[p][i];
                continue;
            }
            if (o_.kind == schedule::OptimizerKind::adamw) w -= rate_ * decay * w;
            else g += decay * w;
            first_[p][i] = o_.beta1 * first_[p][i] + (1 - o_.beta1) * g;
            second_[p][i] = o_.beta2 * second_[p][i] + (1 - o_.beta2) * g * g;
            const double mean = first_[p][i] / (1 - std::pow(o_.beta1, step + 1)),
                         square = second_[p][i] / (1 - std::pow(o_.beta2, step + 1));
            w -= rate_ * mean / (std::sqrt(square) + o_.epsilon);
        }
    }

private:
    // arXiv 1904.00962, algorithm 2, with phi(z) = z.
    void update_by_lamb(int step, std::size_t p, double decay, std::vector<double>& parameter,
                        const std::vector<double>& gradient) {
        std::vector<double> update(parameter.size());
        double values = 0, updates = 0;
        for (std::size_t i = 0; i < parameter.size(); ++i) {
            const double g = gradient[i];
            first_[p][i] = o_.beta1 * first_[p][i] + (1 - o_.beta1) * g;
            second_[p][i] = o_.beta2 * second_[p][i] + (1 - o_.beta2) * g * g;
            const double mean = first_[p][i] / (1 - std::pow(o_.beta1, step + 1)),
                         square = second_[p][i] / (1 - std::pow(o_.beta2, step + 1));
            update[i] = mean / (std::sqrt(square) + o_.epsilon) + decay * parameter[i];
            values += parameter[i] * parameter[i];
            updates += update[i] * update[i];
        }
        const double ratio = values > 0 && updates > 0 ? std::sqrt(values / updates) : 1;
        for (std::size_t i = 0; i < parameter.size(); ++i) parameter[i] -= rate_ * ratio * update[i];
    }

    const model::ModelGraph& graph_;
    const schedule::Optimizer& o_;
    const LearningRateSchedule rates_;
    double rate_ = 0;
    std::vector<std::vector<double>> first_, second_;
};

ReferenceResult start_of(const model::ModelGraph& graph, const ReferenceOptions& options) {
    ReferenceResult result;
    for (const model::ParameterId id : graph.parameters.ids()) {
        const model::Parameter& parameter = graph.parameter(id);
        std::vector<float> start(model::element_count(parameter.shape));
        if (options.initial) options.initial->read(id, 0, start);
        else initialize(parameter, options.seed, element_runs(parameter, ParameterShare{}), start.data());
        result.parameters.emplace_back(start.begin(), start.end());
        result.gradients.emplace_back(start.size(), 0.0);
    }
    return result;
}

// Data are what they are, and the greatest value of a pool is one of its values: backward looks for it.
bool rounds(OperatorKind kind) { return kind != OperatorKind::input && kind != OperatorKind::max_pool; }

// What rounding makes of the results of operators.
class Rounding {
public:
    Rounding(int bits, std::uint64_t seed) : splitter_(std::ldexp(1.0, 53 - bits) + 1), random_(seed) {}
    void apply(std::vector<double>& values) {
        const double grid = 1 + random_.uniform();
        for (double& value : values) {
            // The upper part of T. J. Dekker's splitting, Numerische Mathematik 18 (1971).
            const double scaled = value * grid, product = scaled * splitter_;
            const double rounded = (product - (product - scaled)) / grid;
            if (std::isfinite(rounded)) value = rounded;
        }
    }

private:
    const double splitter_;
    core::Random random_;
};

// Forward and backward of one micro-batch: adds to the gradients, returns the loss times its weight.
double run_micro_batch(const model::ModelGraph& graph, const schedule::Plan& plan, const InputReader& inputs,
                       std::uint64_t seed, int step, int replica, int k, double weight,
                       std::vector<std::vector<double>>& parameters,
                       std::vector<std::vector<double>>& gradients, bool evaluates = false,
                       oracle::RouterMargins* router = nullptr, Rounding* rounding = nullptr) {
    const auto operators = core::count_of(graph.operators);
    oracle::Context context{graph, plan.micro_batch, {}, {}, {}, &parameters, &gradients, {}, weight};
    context.router = router;
    context.parts = plan.layout.context;
    if (plan.layout.spreads_experts_over_tensor()) context.row_parts = plan.layout.tensor;
    context.passes = schedule::passes_per_micro_batch(plan);
    context.values.resize(graph.tensors.size());
    context.gradients.resize(graph.tensors.size());
    context.ids.resize(graph.tensors.size());
    std::vector<std::int64_t> samples;
    for (int i = 0; i < plan.micro_batch; ++i)
        samples.push_back(
            global_sample(step, replica, plan.layout.replicas(), plan.micro_batches, plan.micro_batch, k, i));
    context.is_training = !evaluates;
    context.mask_keys.resize(graph.operators.size());
    for (std::int32_t op = 0; op < operators; ++op)
        for (const std::int64_t sample : samples)
            context.mask_keys[op].push_back(mask_key(seed, step, op, sample));
    read_data(context, inputs, samples);
    for (std::int32_t op = 0; op < operators; ++op) {
        oracle::forward(context, model::OperatorId(op));
        if (rounding && rounds(graph.operators[op].kind))
            rounding->apply(context.values[graph.operators[op].output.index]);
    }
    double loss = 0;
    for (const model::Tensor& tensor : graph.tensors)
        if (tensor.consumers.empty() && !tensor.is_activation &&
            graph.op(tensor.producer).kind != OperatorKind::input)
            loss += context.values[&tensor - graph.tensors.data()][0];
    if (evaluates) return loss;
    for (std::int32_t op = operators; op-- > 0;) {
        oracle::backward(context, model::OperatorId(op));
        if (!rounding) continue;
        for (const model::TensorId input : graph.operators[op].inputs)
            rounding->apply(context.gradients[input.index]);
    }
    return loss;
}

void clip(std::vector<std::vector<double>>& gradients, double limit) {
    double squares = 0;
    for (const auto& gradient : gradients)
        for (const double g : gradient) squares += g * g;
    constexpr double norm_epsilon = 1e-6;  // of torch.nn.utils.clip_grad_norm_
    const double factor = std::min(1.0, limit / (std::sqrt(squares) + norm_epsilon));
    for (auto& gradient : gradients)
        for (double& g : gradient) g *= factor;
}

void clear(std::vector<std::vector<double>>& gradients) {
    for (auto& gradient : gradients) std::fill(gradient.begin(), gradient.end(), 0.0);
}

void evaluate_held_out(const model::ModelGraph& graph, const schedule::Plan& plan,
                       const ReferenceOptions& options, ReferenceResult& result) {
    if (!options.held_out) return;
    const InputReader inputs(graph, options.held_out);
    const int replicas = plan.layout.replicas(),
              micro_batches = options.held_out_batches * plan.micro_batches;
    const double weight = 1.0 / (static_cast<double>(micro_batches) * replicas);
    double loss = 0;
    for (int batch = 0; batch < options.held_out_batches; ++batch)
        for (int replica = 0; replica < replicas; ++replica)
            for (int k = 0; k < plan.micro_batches; ++k)
                loss += weight * run_micro_batch(graph, plan, inputs, options.seed, batch, replica, k, weight,
                                                 result.parameters, result.gradients, true);
    result.held_out_loss = loss;
}

}  // namespace

ReferenceResult run_reference(const model::ModelGraph& graph, const schedule::Plan& plan,
                              std::shared_ptr<const DataSource> data, const ReferenceOptions& options) {
    const InputReader inputs(graph, std::move(data));
    ReferenceResult result = start_of(graph, options);
    ReferenceOptimizer optimizer(graph, plan.optimizer, options.learning_rate);
    const double weight = 1.0 / (plan.micro_batches * plan.layout.replicas());
    std::optional<Rounding> rounding;
    if (options.rounded_bits > 0) rounding.emplace(options.rounded_bits, options.rounding_seed);
    for (int step = 0; step < options.steps; ++step) {
        optimizer.begin_step(step);
        clear(result.gradients);
        double loss = 0;
        oracle::RouterMargins router;
        router.other_way_below = options.other_way_below;
        for (int replica = 0; replica < plan.layout.replicas(); ++replica)
            for (int k = 0; k < plan.micro_batches; ++k)
                loss += weight * run_micro_batch(graph, plan, inputs, options.seed, step, replica, k, weight,
                                                 result.parameters, result.gradients, options.evaluates,
                                                 &router, rounding ? &*rounding : nullptr);
        result.losses.push_back(loss);
        if (router.least) result.router_margins.push_back(*router.least);
        if (options.evaluates) continue;
        if (plan.optimizer.gradient_clipping > 0) clip(result.gradients, plan.optimizer.gradient_clipping);
        for (std::size_t p = 0; p < result.parameters.size(); ++p)
            optimizer.update(step, p, result.parameters[p], result.gradients[p]);
    }
    evaluate_held_out(graph, plan, options, result);
    return result;
}

ReferenceResult run_asynchronous_reference(const model::ModelGraph& graph, const schedule::Plan& plan,
                                           int micro_batches_per_update,
                                           std::shared_ptr<const DataSource> data,
                                           const ReferenceOptions& options) {
    const InputReader inputs(graph, std::move(data));
    ReferenceResult result = start_of(graph, options);
    ReferenceOptimizer optimizer(graph, plan.optimizer, options.learning_rate);
    const int stages = plan.layout.pipeline, m = plan.micro_batches, per_update = micro_batches_per_update;
    std::vector<int> stage_of(graph.parameters.size(), 0);
    for (const model::Operator& op : graph.operators)
        for (const model::ParameterId id : op.parameters)
            for (int s = 0; s < stages; ++s)
                if (op.unit >= plan.partition.first_units[s]) stage_of[id.index] = s;
    // versions[p][u]: parameter p after u updates of this step.
    for (int step = 0; step < options.steps; ++step) {
        optimizer.begin_step(step);
        std::vector<std::vector<std::vector<double>>> versions;
        for (const std::vector<double>& parameter : result.parameters) versions.push_back({parameter});
        clear(result.gradients);
        double loss = 0;
        for (int k = 0; k < m; ++k) {
            std::vector<std::vector<double>> begun_with;
            for (std::size_t p = 0; p < versions.size(); ++p) {
                const int finished = std::max(0, k - (stages - 1 - stage_of[p]));
                begun_with.push_back(versions[p][finished / per_update]);
            }
            const int group = k / per_update, size = std::min(per_update, m - group * per_update);
            for (int replica = 0; replica < plan.layout.replicas(); ++replica)
                loss += run_micro_batch(graph, plan, inputs, options.seed, step, replica, k,
                                        1.0 / (size * plan.layout.replicas()), begun_with, result.gradients) /
                        (m * plan.layout.replicas());
            if (k + 1 != group * per_update + size) continue;
            const int updates = (m + per_update - 1) / per_update;
            for (std::size_t p = 0; p < versions.size(); ++p) {
                versions[p].push_back(versions[p].back());
                optimizer.update(step * updates + group, p, versions[p].back(), result.gradients[p]);
            }
            if (k + 1 < m) clear(result.gradients);
        }
        for (std::size_t p = 0; p < versions.size(); ++p) result.parameters[p] = versions[p].back();
        result.losses.push_back(loss);
    }
    evaluate_held_out(graph, plan, options, result);
    return result;
}

std::vector<double> rounding_bounds(const model::ModelGraph& graph, const schedule::Plan& plan,
                                    std::shared_ptr<const DataSource> data, const ReferenceOptions& options,
                                    const std::vector<double>& exact, int bits) {
    // A sum of some thousand products in lanes and blocks is off by more than one rounding (Higham, "Accuracy
    // and Stability of Numerical Algorithms", 2nd edition, section 4.2), and results are sums.
    constexpr int bits_lost_in_sums = 1;
    // Of three draws from a distribution that is not known, for one that may lie beyond the largest of them.
    constexpr double safety = 3;
    std::vector<double> bounds(exact.size(), 0.0);
    for (const std::uint64_t seed : {1, 2, 3}) {
        ReferenceOptions rounded = options;
        rounded.rounded_bits = bits - bits_lost_in_sums;
        rounded.rounding_seed = seed;
        const std::vector<double> losses = run_reference(graph, plan, data, rounded).losses;
        double largest = 0;  // what was magnified once does not come back
        for (std::size_t i = 0; i < exact.size(); ++i) {
            largest = std::max(largest, std::abs(losses[i] - exact[i]) / std::abs(exact[i]));
            bounds[i] = std::max(bounds[i], safety * largest);
        }
    }
    return bounds;
}

double relative_difference(const std::vector<float>& a, const std::vector<double>& b) {
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
        largest = std::max(largest, std::abs(b[i]));
        difference = std::max(difference, std::abs(a[i] - b[i]));
    }
    return largest > 0 ? difference / largest : difference;
}

}  // namespace exec
