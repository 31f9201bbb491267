#include "exec/oracle/reference_mixture.h"

#include <algorithm>
#include <cmath>

#include "exec/oracle/reference_activation.h"
#include "model/model_graph.h"

namespace exec::oracle {

using model::Operator;
using model::OperatorKind;
using std::size_t;

namespace {

// A routed token is a token at one of its experts. Routed tokens are in the order of tokens and, inside a
// token, of falling probability; nothing is grouped here.
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
          experts_(a_.experts),
          k_(a_.experts_per_token),
          tokens_(context.samples * shape(op.kind == OperatorKind::router ? op.output : op.inputs[1])[0]),
          hidden_(shape(op.inputs[0]).back()),
          passes_(context.passes),
          parts_(context.parts),
          row_parts_(context.row_parts),
          a_sequence_(tokens_ / context.samples) {}

    void forward() {
        Array& y = context_.values[index(op_.output)];
        if (op_.kind == OperatorKind::router) return probabilities(y);
        const std::vector<Choice> choices = choose(values(1));
        if (op_.kind == OperatorKind::dispatch) {
            for (size_t routed_token = 0; routed_token < choices.size(); ++routed_token)
                for (size_t i = 0; i < hidden_; ++i)
                    y[routed_token * hidden_ + i] = values(0)[routed_token / k_ * hidden_ + i];
        } else if (op_.kind == OperatorKind::experts) {
            for (size_t e = 0; e < experts_; ++e) {
                const Expert expert = work_of(e, choices);
                const Array result = product(expert.count(), hidden(), width(), expert.inner,
                                             transposed(hidden(), width(), second(e)));
                for (size_t n = 0; n < expert.routed_tokens.size(); ++n)
                    for (size_t i = 0; i < hidden_; ++i)
                        y[expert.routed_tokens[n] * hidden_ + i] = result[n * hidden_ + i];
            }
        } else {
            for (size_t routed_token = 0; routed_token < choices.size(); ++routed_token)
                for (size_t i = 0; choices[routed_token].is_kept && i < hidden_; ++i)
                    y[routed_token / k_ * hidden_ + i] +=
                        weight(choices, routed_token) * values(0)[routed_token * hidden_ + i];
        }
    }

    void backward() {
        const Array dy = context_.gradients[index(op_.output)];
        if (op_.kind == OperatorKind::router) return router_backward(dy);
        const std::vector<Choice> choices = choose(values(1));
        if (op_.kind == OperatorKind::dispatch) {
            for (size_t routed_token = 0; routed_token < choices.size(); ++routed_token)
                for (size_t i = 0; i < hidden_; ++i)
                    gradient(0)[routed_token / k_ * hidden_ + i] += dy[routed_token * hidden_ + i];
        } else if (op_.kind == OperatorKind::experts) {
            for (size_t e = 0; e < experts_; ++e) expert_backward(e, work_of(e, choices), dy);
        } else {
            combine_backward(choices, dy);
        }
    }

private:
    static size_t index(model::TensorId id) { return id.index; }
    const std::vector<std::int64_t>& shape(model::TensorId id) const {
        return context_.graph.tensor(id).shape;
    }
    const Array& values(size_t input) const { return context_.values[index(op_.inputs[input])]; }
    Array& gradient(size_t input) {
        Array& g = context_.gradients[index(op_.inputs[input])];
        if (g.empty()) g.assign(values(input).size(), 0.0);
        return g;
    }
    const Array& parameter(size_t i) const { return (*context_.parameters)[op_.parameters[i].index]; }
    Array& parameter_gradient(size_t i) const {
        return (*context_.parameter_gradients)[op_.parameters[i].index];
    }

    void probabilities(Array& y) const {
        for (size_t t = 0; t < tokens_; ++t) {
            double sum = 0;
            for (size_t e = 0; e < experts_; ++e) {
                double logit = 0;
                for (size_t i = 0; i < hidden_; ++i)
                    logit += values(0)[t * hidden_ + i] * parameter(0)[e * hidden_ + i];
                sum += y[t * experts_ + e] = std::exp(logit);
            }
            for (size_t e = 0; e < experts_; ++e) y[t * experts_ + e] /= sum;
        }
    }

    // The tokens of a micro-batch that go through the model together are those of one pass of the
    // sequences, and on one rank those of its two parts.
    size_t pass_of(size_t token) const { return token % a_sequence_ / (a_sequence_ / passes_); }
    size_t part_of(size_t token) const {
        if (parts_ == 1) return 0;
        const size_t half = token % a_sequence_ / (a_sequence_ / (2 * parts_));
        return std::min(half, 2 * parts_ - 1 - half);
    }
    // Of the ranks that divide the rows of a pass and part, sample by sample, the one that has the token.
    size_t row_part_of(size_t token) const {
        if (row_parts_ == 1) return 0;
        const size_t a_pass = a_sequence_ / passes_, rows = a_pass / parts_;
        size_t row = token % a_pass;
        if (parts_ > 1) {
            const size_t a_half = a_sequence_ / (2 * parts_), half = token % a_sequence_ / a_half;
            row = token % a_half + (half == part_of(token) ? 0 : a_half);
        }
        return (token / a_sequence_ * rows + row) / (tokens_ / a_sequence_ * rows / row_parts_);
    }
    // Tokens that are on one rank at once, and which of those a token is among.
    size_t batches() const { return passes_ * parts_ * row_parts_; }
    size_t batch_of(size_t token) const {
        return (pass_of(token) * parts_ + part_of(token)) * row_parts_ + row_part_of(token);
    }

    std::vector<Choice> choose(const Array& p) const {
        std::vector<Choice> choices(tokens_ * k_);
        // [batch][expert]: capacity is of the tokens that a rank has at once, as Megatron-LM's is.
        std::vector<double> all_places(batches() * experts_, 1e300);
        const double even = static_cast<double>(tokens_ / batches() * k_) / experts_;
        if (a_.capacity_factor > 0)
            std::fill(all_places.begin(), all_places.end(), std::ceil(a_.capacity_factor * even));
        for (size_t round = 0; round < k_; ++round)
            for (size_t t = 0; t < tokens_; ++t) {
                Choice& choice = choices[t * k_ + round];
                choice.probability = -1;
                for (size_t e = 0; e < experts_; ++e) {
                    const bool is_taken =
                        std::any_of(choices.begin() + (t * k_), choices.begin() + (t * k_ + round),
                                    [&](const Choice& c) { return c.expert == e; });
                    if (!is_taken && p[t * experts_ + e] > choice.probability)
                        choice = {e, p[t * experts_ + e], false};
                }
                if (round + 1 == k_) weigh(choices, p, t, choice);
                double& places = all_places[batch_of(t) * experts_ + choice.expert];
                choice.is_kept = places >= 1;
                places -= 1;
            }
        return choices;
    }

    // The margin of the last choice against the likeliest expert that is not chosen.
    void weigh(const std::vector<Choice>& choices, const Array& p, size_t t, Choice& last) const {
        if (!context_.router || k_ == experts_) return;
        Choice next;
        next.probability = -1;
        for (size_t e = 0; e < experts_; ++e) {
            const bool is_taken = std::any_of(choices.begin() + (t * k_), choices.begin() + ((t + 1) * k_),
                                              [&](const Choice& c) { return c.expert == e; });
            if (!is_taken && p[t * experts_ + e] > next.probability) next = {e, p[t * experts_ + e], false};
        }
        const double margin = last.probability - next.probability;
        std::optional<double>& least = context_.router->least;
        if (!least || margin < *least) least = margin;
        if (margin < context_.router->other_way_below) last = next;
    }

    double sum_of(const std::vector<Choice>& choices, size_t token) const {
        double sum = 0;
        for (size_t j = 0; j < k_; ++j) sum += choices[token * k_ + j].probability;
        return sum;
    }
    double weight(const std::vector<Choice>& choices, size_t routed_token) const {
        return k_ > 1 ? choices[routed_token].probability / sum_of(choices, routed_token / k_)
                      : choices[routed_token].probability;
    }

    void router_backward(const Array& dy) {
        // The mean over the passes of a micro-batch, each with a balance of its own over the ranks that
        // share it.
        const size_t together = tokens_ / passes_;
        Array balance(passes_ * experts_, 0.0);
        const std::vector<Choice> choices = choose(context_.values[index(op_.output)]);
        for (size_t routed_token = 0; routed_token < choices.size(); ++routed_token)
            balance[pass_of(routed_token / k_) * experts_ + choices[routed_token].expert] +=
                a_.auxiliary_loss * experts_ / (together * k_) / passes_;
        const Array& p = context_.values[index(op_.output)];
        for (size_t t = 0; t < tokens_; ++t) {
            const auto total = [&](size_t e) {
                return dy[t * experts_ + e] +
                       context_.loss_weight * balance[pass_of(t) * experts_ + e] / together;
            };
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

    // One expert's routed tokens as rows, their first product and its activation.
    struct Expert {
        std::vector<size_t> routed_tokens;
        Array x, first, inner;
        std::int64_t count() const { return routed_tokens.size(); }
    };
    std::int64_t width() const { return a_.expert_hidden; }
    std::int64_t first_width() const { return a_.experts_are_gated ? 2 * width() : width(); }
    std::int64_t hidden() const { return hidden_; }
    Array part(size_t i, size_t expert) const {
        const size_t size = parameter(i).size() / experts_;
        return {parameter(i).begin() + (expert * size), parameter(i).begin() + ((expert + 1) * size)};
    }
    Array first(size_t expert) const { return part(0, expert); }   // [first_width, hidden]
    Array second(size_t expert) const { return part(1, expert); }  // [hidden, width]

    Expert work_of(size_t e, const std::vector<Choice>& choices) const {
        Expert expert;
        for (size_t routed_token = 0; routed_token < choices.size(); ++routed_token)
            if (choices[routed_token].expert == e) expert.routed_tokens.push_back(routed_token);
        for (const size_t routed_token : expert.routed_tokens)
            for (size_t i = 0; i < hidden_; ++i) expert.x.push_back(values(0)[routed_token * hidden_ + i]);
        expert.first = product(expert.count(), first_width(), hidden(), expert.x,
                               transposed(first_width(), hidden(), first(e)));
        const size_t w = width(), all = first_width();
        for (size_t n = 0; n < expert.routed_tokens.size(); ++n)
            for (size_t f = 0; f < w; ++f)
                expert.inner.push_back(
                    activation_of(a_.expert_activation, a_.is_tanh_approximation, expert.first[n * all + f]) *
                    (a_.experts_are_gated ? expert.first[n * all + w + f] : 1.0));
        return expert;
    }

    void add_to_parameter(size_t i, size_t expert, const Array& gradient) {
        for (size_t k = 0; k < gradient.size(); ++k)
            parameter_gradient(i)[expert * gradient.size() + k] += gradient[k];
    }

    void expert_backward(size_t e, const Expert& expert, const Array& dy) {
        Array own;
        for (const size_t routed_token : expert.routed_tokens)
            for (size_t i = 0; i < hidden_; ++i) own.push_back(dy[routed_token * hidden_ + i]);
        add_to_parameter(1, e,
                         product(hidden(), width(), expert.count(), transposed(expert.count(), hidden(), own),
                                 expert.inner));
        const Array dinner = product(expert.count(), width(), hidden(), own, second(e));
        Array dfirst(expert.first.size());
        const size_t w = width(), all = first_width();
        for (size_t n = 0; n < expert.routed_tokens.size(); ++n)
            for (size_t f = 0; f < w; ++f) {
                const double gate = expert.first[n * all + f], gradient = dinner[n * w + f];
                const double slope =
                    slope_of_activation(a_.expert_activation, a_.is_tanh_approximation, gate);
                dfirst[n * all + f] =
                    gradient * slope * (a_.experts_are_gated ? expert.first[n * all + w + f] : 1.0);
                if (a_.experts_are_gated)
                    dfirst[n * all + w + f] =
                        gradient * activation_of(a_.expert_activation, a_.is_tanh_approximation, gate);
            }
        add_to_parameter(0, e,
                         product(first_width(), hidden(), expert.count(),
                                 transposed(expert.count(), first_width(), dfirst), expert.x));
        const Array dx = product(expert.count(), hidden(), first_width(), dfirst, first(e));
        for (size_t n = 0; n < expert.routed_tokens.size(); ++n)
            for (size_t i = 0; i < hidden_; ++i)
                gradient(0)[expert.routed_tokens[n] * hidden_ + i] += dx[n * hidden_ + i];
    }

    void combine_backward(const std::vector<Choice>& choices, const Array& dy) {
        for (size_t t = 0; t < tokens_; ++t) {
            Array dweight(k_, 0.0);
            double mean = 0;
            for (size_t j = 0; j < k_; ++j) {
                const size_t routed_token = t * k_ + j;
                for (size_t i = 0; choices[routed_token].is_kept && i < hidden_; ++i) {
                    dweight[j] += dy[t * hidden_ + i] * values(0)[routed_token * hidden_ + i];
                    gradient(0)[routed_token * hidden_ + i] +=
                        weight(choices, routed_token) * dy[t * hidden_ + i];
                }
                mean += dweight[j] * weight(choices, routed_token);
            }
            for (size_t j = 0; j < k_; ++j)
                gradient(1)[t * experts_ + choices[t * k_ + j].expert] +=
                    k_ > 1 ? (dweight[j] - mean) / sum_of(choices, t) : dweight[j];
        }
    }

    Context& context_;
    const Operator& op_;
    const model::Attributes& a_;
    const size_t experts_, k_, tokens_, hidden_;
    const size_t passes_, parts_, row_parts_, a_sequence_;
};

}  // namespace

void mixture_forward(Context& context, const Operator& op) { Mixture(context, op).forward(); }
void mixture_backward(Context& context, const Operator& op) { Mixture(context, op).backward(); }

}  // namespace exec::oracle
