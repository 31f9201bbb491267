#include "exec/reference.h"

#include <algorithm>
#include <cmath>

#include "exec/cpu/operators.h"
#include "exec/parameters.h"
#include "exec/reference_operators.h"

namespace exec {

namespace {

using model::OperatorKind;

void read_data(reference::Context& context, const InputReader& inputs, const std::vector<std::int64_t>& samples) {
    for (const model::Operator& op : context.graph.operators) {
        if (op.kind != OperatorKind::input) continue;
        const auto count = static_cast<std::size_t>(model::element_count(context.graph.tensor(op.output).shape)), t = static_cast<std::size_t>(op.output.index);
        if (context.graph.tensor(op.output).type == core::DataType::int64) {
            context.ids[t].resize(count * samples.size());
            for (std::size_t i = 0; i < samples.size(); ++i) inputs.read(op.output, samples[i], std::span(context.ids[t]).subspan(i * count, count));
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
    ReferenceOptimizer(const model::ModelGraph& graph, const schedule::Optimizer& optimizer) : graph_(graph), o_(optimizer) {
        for (const model::Parameter& parameter : graph.parameters) {
            first_.emplace_back(static_cast<std::size_t>(model::element_count(parameter.shape)), 0.0);
            second_.emplace_back(first_.back());
        }
    }

    void update(int step, std::vector<std::vector<double>>& parameters, const std::vector<std::vector<double>>& gradients) {
        for (std::size_t p = 0; p < parameters.size(); ++p) {
            const double decay = graph_.parameters[p].decays ? o_.weight_decay : 0.0;
            for (std::size_t i = 0; i < parameters[p].size(); ++i) {
                double& w = parameters[p][i];
                double g = gradients[p][i];
                if (o_.kind == schedule::OptimizerKind::sgd) {
                    g += decay * w;
                    first_[p][i] = o_.momentum * first_[p][i] + g;
                    w -= o_.learning_rate * first_[p][i];
                    continue;
                }
                if (o_.kind == schedule::OptimizerKind::adamw) w -= o_.learning_rate * decay * w;
                else g += decay * w;
                first_[p][i] = o_.beta1 * first_[p][i] + (1 - o_.beta1) * g;
                second_[p][i] = o_.beta2 * second_[p][i] + (1 - o_.beta2) * g * g;
                const double mean = first_[p][i] / (1 - std::pow(o_.beta1, step + 1)), square = second_[p][i] / (1 - std::pow(o_.beta2, step + 1));
                w -= o_.learning_rate * mean / (std::sqrt(square) + o_.epsilon);
            }
        }
    }

private:
    const model::ModelGraph& graph_;
    const schedule::Optimizer& o_;
    std::vector<std::vector<double>> first_, second_;
};

}  // namespace

ReferenceResult run_reference(const model::ModelGraph& graph, const schedule::Plan& plan, std::shared_ptr<const DataSource> data,
                              const ReferenceOptions& options) {
    const InputReader inputs(graph, std::move(data));
    ReferenceResult result;
    for (const model::Parameter& parameter : graph.parameters) {
        std::vector<float> start(static_cast<std::size_t>(model::element_count(parameter.shape)));
        initialize(parameter, options.seed, 0, static_cast<std::int64_t>(start.size()), start.data());
        result.parameters.emplace_back(start.begin(), start.end());
        result.gradients.emplace_back(start.size(), 0.0);
    }
    ReferenceOptimizer optimizer(graph, plan.optimizer);
    const auto operators = static_cast<std::int32_t>(graph.operators.size());
    for (int step = 0; step < options.steps; ++step) {
        for (auto& gradient : result.gradients) std::fill(gradient.begin(), gradient.end(), 0.0);
        double loss = 0;
        for (int replica = 0; replica < plan.layout.data; ++replica)
            for (int k = 0; k < plan.micro_batches; ++k) {
                reference::Context context{
                    graph, plan.micro_batch, {}, {}, {}, &result.parameters, &result.gradients, {}, 1.0 / (plan.micro_batches * plan.layout.data)};
                context.values.resize(graph.tensors.size());
                context.gradients.resize(graph.tensors.size());
                context.ids.resize(graph.tensors.size());
                std::vector<std::int64_t> samples;
                for (int i = 0; i < plan.micro_batch; ++i)
                    samples.push_back(global_sample(step, replica, plan.layout.data, plan.micro_batches, plan.micro_batch, k, i));
                context.mask_keys.resize(graph.operators.size());
                for (std::int32_t op = 0; op < operators; ++op)
                    for (const std::int64_t sample : samples)
                        context.mask_keys[static_cast<std::size_t>(op)].push_back(mask_key(options.seed, step, op, sample));
                read_data(context, inputs, samples);
                for (std::int32_t op = 0; op < operators; ++op) reference::forward(context, model::OperatorId(op));
                for (const model::Tensor& tensor : graph.tensors)
                    if (tensor.consumers.empty() && !tensor.is_activation && graph.op(tensor.producer).kind != OperatorKind::input)
                        loss += context.values[static_cast<std::size_t>(&tensor - graph.tensors.data())][0] * context.loss_weight;
                for (std::int32_t op = operators; op-- > 0;) reference::backward(context, model::OperatorId(op));
            }
        result.losses.push_back(loss);
        optimizer.update(step, result.parameters, result.gradients);
    }
    return result;
}

double relative_difference(const std::vector<float>& a, const std::vector<double>& b) {
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
        largest = std::max(largest, std::abs(b[i]));
        difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    }
    return largest > 0 ? difference / largest : difference;
}

}  // namespace exec
