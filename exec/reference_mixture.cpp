#include "exec/reference_mixture.h"

#include <algorithm>
#include <cmath>

#include "exec/reference_activation.h"

namespace exec::reference {

using model::Operator;
using model::OperatorKind;
using std::size_t;

namespace {

// Copies stand in the order of tokens and, inside a token, of falling probability; nothing is grouped here.
struct Choice {
    size_t expert = 0;
    double probability = 0;
    bool is_kept = false;
};

class Mixture {
public:
    Mixture(Context& context, const Operator& op)
        : context_(context),
          op_(op),
          a_(op.attributes),
          experts_(static_cast<size_t>(a_.experts)),
          k_(static_cast<size_t>(a_.experts_per_token)),
          tokens_(static_cast<size_t>(context.samples * shape(op.kind == OperatorKind::router ? op.output : op.inputs[1])[0])),
          hidden_(static_cast<size_t>(shape(op.inputs[0]).back())) {}

    void forward() {
        Array& y = context_.values[index(op_.output)];
        if (op_.kind == OperatorKind::router) return probabilities(y);
        const std::vector<Choice> choices = choose(values(1));
        if (op_.kind == OperatorKind::dispatch) {
            for (size_t copy = 0; copy < choices.size(); ++copy)
                for (size_t i = 0; i < hidden_; ++i) y[copy * hidden_ + i] = values(0)[copy / k_ * hidden_ + i];
        } else if (op_.kind == OperatorKind::experts) {
            for (size_t copy = 0; copy < choices.size(); ++copy) {
                const Array inner = activated(choices[copy].expert, copy);
                for (size_t i = 0; i < hidden_; ++i)
                    for (size_t f = 0; f < inner.size(); ++f) y[copy * hidden_ + i] += second(choices[copy].expert, i, f) * inner[f];
            }
        } else {
            for (size_t copy = 0; copy < choices.size(); ++copy)
                for (size_t i = 0; choices[copy].is_kept && i < hidden_; ++i)
                    y[copy / k_ * hidden_ + i] += weight(choices, copy) * values(0)[copy * hidden_ + i];
        }
    }

    void backward() {
        const Array dy = context_.gradients[index(op_.output)];
        if (op_.kind == OperatorKind::router) return router_backward(dy);
        const std::vector<Choice> choices = choose(values(1));
        if (op_.kind == OperatorKind::dispatch) {
            for (size_t copy = 0; copy < choices.size(); ++copy)
                for (size_t i = 0; i < hidden_; ++i) gradient(0)[copy / k_ * hidden_ + i] += dy[copy * hidden_ + i];
        } else if (op_.kind == OperatorKind::experts) {
            for (size_t copy = 0; copy < choices.size(); ++copy) expert_backward(choices[copy].expert, copy, dy);
        } else {
            combine_backward(choices, dy);
        }
    }

private:
    static size_t index(model::TensorId id) { return static_cast<size_t>(id.index); }
    const std::vector<std::int64_t>& shape(model::TensorId id) const { return context_.graph.tensor(id).shape; }
    const Array& values(size_t input) const { return context_.values[index(op_.inputs[input])]; }
    Array& gradient(size_t input) {
        Array& g = context_.gradients[index(op_.inputs[input])];
        if (g.empty()) g.assign(values(input).size(), 0.0);
        return g;
    }
    const Array& parameter(size_t i) const { return (*context_.parameters)[static_cast<size_t>(op_.parameters[i].index)]; }
    Array& parameter_gradient(size_t i) const { return (*context_.parameter_gradients)[static_cast<size_t>(op_.parameters[i].index)]; }

    void probabilities(Array& y) const {
        for (size_t t = 0; t < tokens_; ++t) {
            double sum = 0;
            for (size_t e = 0; e < experts_; ++e) {
                double logit = 0;
                for (size_t i = 0; i < hidden_; ++i) logit += values(0)[t * hidden_ + i] * parameter(0)[e * hidden_ + i];
                sum += y[t * experts_ + e] = std::exp(logit);
            }
            for (size_t e = 0; e < experts_; ++e) y[t * experts_ + e] /= sum;
        }
    }

    std::vector<Choice> choose(const Array& p) const {
        std::vector<Choice> choices(tokens_ * k_);
        std::vector<double> places(experts_, 1e300);
        if (a_.capacity_factor > 0)
            std::fill(places.begin(), places.end(), std::ceil(a_.capacity_factor * (static_cast<double>(tokens_ * k_) / static_cast<double>(experts_))));
        for (size_t round = 0; round < k_; ++round)
            for (size_t t = 0; t < tokens_; ++t) {
                Choice& choice = choices[t * k_ + round];
                choice.probability = -1;
                for (size_t e = 0; e < experts_; ++e) {
                    const bool is_taken = std::any_of(choices.begin() + static_cast<std::ptrdiff_t>(t * k_),
                                                      choices.begin() + static_cast<std::ptrdiff_t>(t * k_ + round), [&](const Choice& c) { return c.expert == e; });
                    if (!is_taken && p[t * experts_ + e] > choice.probability) choice = {e, p[t * experts_ + e], false};
                }
                choice.is_kept = places[choice.expert] >= 1;
                places[choice.expert] -= 1;
            }
        return choices;
    }

    double sum_of(const std::vector<Choice>& choices, size_t token) const {
        double sum = 0;
        for (size_t j = 0; j < k_; ++j) sum += choices[token * k_ + j].probability;
        return sum;
    }
    double weight(const std::vector<Choice>& choices, size_t copy) const {
        return k_ > 1 ? choices[copy].probability / sum_of(choices, copy / k_) : choices[copy].probability;
    }

    void router_backward(const Array& dy) {
        Array balance(experts_, 0.0);
        for (const Choice& choice : choose(context_.values[index(op_.output)]))
            balance[choice.expert] += a_.auxiliary_loss * static_cast<double>(experts_) / static_cast<double>(tokens_ * k_);
        const Array& p = context_.values[index(op_.output)];
        for (size_t t = 0; t < tokens_; ++t) {
            const auto total = [&](size_t e) { return dy[t * experts_ + e] + context_.loss_weight * balance[e] / static_cast<double>(tokens_); };
            double sum = 0;
            for (size_t e = 0; e < experts_; ++e) sum += p[t * experts_ + e] * total(e);
            for (size_t e = 0; e < experts_; ++e) {
                const double logit = p[t * experts_ + e] * (total(e) - sum);
                for (size_t i = 0; i < hidden_; ++i) {
                    gradient(0)[t * hidden_ + i] += logit * parameter(0)[e * hidden_ + i];
                    parameter_gradient(0)[e * hidden_ + i] += logit * values(0)[t * hidden_ + i];
                }
            }
        }
    }

    size_t width() const { return static_cast<size_t>(a_.expert_hidden); }
    size_t first_width() const { return a_.experts_are_gated ? 2 * width() : width(); }
    double second(size_t expert, size_t i, size_t f) const { return parameter(1)[(expert * hidden_ + i) * width() + f]; }
    Array product(size_t expert, size_t copy) const {
        Array first(first_width(), 0.0);
        for (size_t f = 0; f < first.size(); ++f)
            for (size_t i = 0; i < hidden_; ++i) first[f] += parameter(0)[(expert * first.size() + f) * hidden_ + i] * values(0)[copy * hidden_ + i];
        return first;
    }
    Array activated(size_t expert, size_t copy) const {
        const Array first = product(expert, copy);
        Array inner(width());
        for (size_t f = 0; f < inner.size(); ++f)
            inner[f] = activation_of(a_.expert_activation, a_.is_tanh_approximation, first[f]) * (a_.experts_are_gated ? first[width() + f] : 1.0);
        return inner;
    }

    void expert_backward(size_t expert, size_t copy, const Array& dy) {
        const Array first = product(expert, copy), inner = activated(expert, copy);
        Array dfirst(first.size(), 0.0);
        for (size_t f = 0; f < width(); ++f) {
            double dinner = 0;
            for (size_t i = 0; i < hidden_; ++i) {
                dinner += dy[copy * hidden_ + i] * second(expert, i, f);
                parameter_gradient(1)[(expert * hidden_ + i) * width() + f] += dy[copy * hidden_ + i] * inner[f];
            }
            const double slope = slope_of_activation(a_.expert_activation, a_.is_tanh_approximation, first[f]);
            dfirst[f] = dinner * slope * (a_.experts_are_gated ? first[width() + f] : 1.0);
            if (a_.experts_are_gated) dfirst[width() + f] = dinner * activation_of(a_.expert_activation, a_.is_tanh_approximation, first[f]);
        }
        for (size_t f = 0; f < dfirst.size(); ++f)
            for (size_t i = 0; i < hidden_; ++i) {
                parameter_gradient(0)[(expert * dfirst.size() + f) * hidden_ + i] += dfirst[f] * values(0)[copy * hidden_ + i];
                gradient(0)[copy * hidden_ + i] += dfirst[f] * parameter(0)[(expert * dfirst.size() + f) * hidden_ + i];
            }
    }

    void combine_backward(const std::vector<Choice>& choices, const Array& dy) {
        for (size_t t = 0; t < tokens_; ++t) {
            Array dweight(k_, 0.0);
            double mean = 0;
            for (size_t j = 0; j < k_; ++j) {
                const size_t copy = t * k_ + j;
                for (size_t i = 0; choices[copy].is_kept && i < hidden_; ++i) {
                    dweight[j] += dy[t * hidden_ + i] * values(0)[copy * hidden_ + i];
                    gradient(0)[copy * hidden_ + i] += weight(choices, copy) * dy[t * hidden_ + i];
                }
                mean += dweight[j] * weight(choices, copy);
            }
            for (size_t j = 0; j < k_; ++j)
                gradient(1)[t * experts_ + choices[t * k_ + j].expert] += k_ > 1 ? (dweight[j] - mean) / sum_of(choices, t) : dweight[j];
        }
    }

    Context& context_;
    const Operator& op_;
    const model::Attributes& a_;
    const size_t experts_, k_, tokens_, hidden_;
};

}  // namespace

void mixture_forward(Context& context, const Operator& op) { Mixture(context, op).forward(); }
void mixture_backward(Context& context, const Operator& op) { Mixture(context, op).backward(); }

}  // namespace exec::reference
