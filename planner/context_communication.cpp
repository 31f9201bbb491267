#include "planner/context_communication.h"

#include "model/operators/rank_share.h"

namespace planner {

using schedule::ContextCommunication;

namespace {

constexpr double most_moved = 2;  // of what gathered keys move

// As much is computed either way, and exchanged heads keep more. Keys are gathered twice and their gradients
// scattered, heads exchanged forward and backward; of each a rank lacks the same share.
bool moves_little(const model::ModelGraph& graph, const schedule::Plan& gathering,
                  const model::CostContext& exchanging) {
    double gathered = 0, exchanged = 0;
    for (const model::Operator& op : graph.operators) {
        if (!model::exchanges_heads(op, exchanging)) continue;
        gathered += 3 * model::gathered_key_bytes(graph, op, gathering.cost_context()).value;
        for (const model::TensorId tensor : {op.inputs[0], op.output})
            exchanged += 2 * model::tensor_bytes(graph, tensor, exchanging).value;
    }
    return exchanged <= most_moved * gathered;
}

}  // namespace

std::vector<ContextCommunication> communication_choices(const model::ModelGraph& graph, schedule::Plan plan,
                                                        bool is_asked_for) {
    plan.context_communication = ContextCommunication::all_gather;
    schedule::Plan exchanging = plan;
    exchanging.context_communication = ContextCommunication::all_to_all;
    const model::CostContext context = exchanging.cost_context();
    std::vector<ContextCommunication> choices = {ContextCommunication::all_gather};
    if (!context.communicates(ContextCommunication::all_to_all)) return choices;  // one rank has all tokens
    if (!model::head_exchange_unsupported(graph, context) &&
        (is_asked_for || moves_little(graph, plan, context)))
        choices.push_back(ContextCommunication::all_to_all);
    plan.context_communication = ContextCommunication::ring;
    if (is_asked_for && !model::ring_unsupported(graph, plan.cost_context()))
        choices.push_back(ContextCommunication::ring);
    return choices;
}

}  // namespace planner
