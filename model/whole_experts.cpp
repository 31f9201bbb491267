#include "model/whole_experts.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"

namespace model {

namespace {

bool is_of_mixture(OperatorKind kind) {
    return kind == OperatorKind::router || kind == OperatorKind::dispatch || kind == OperatorKind::experts ||
           kind == OperatorKind::combine;
}

// Where a mixture inside a region begins and ends.
struct MixturePlace {
    OperatorId enter, combine;
    // Adds what a shared expert, or attention, makes in the same region; not valid where nothing does.
    OperatorId sum;
    OperatorId exit;
};

// Nothing where the region is not of this form.
std::optional<MixturePlace> place_of(const ModelGraph& graph, OperatorId combine) {
    const auto producer = [&](TensorId tensor) { return graph.tensor(tensor).producer; };
    const auto only_reader = [&](OperatorId op) {
        const std::vector<OperatorId>& readers = graph.tensor(graph.op(op).output).consumers;
        return readers.size() == 1 ? readers[0] : OperatorId();
    };
    const OperatorId router = producer(graph.op(combine).inputs[1]);
    MixturePlace place{producer(graph.op(router).inputs[0]), combine, {}, only_reader(combine)};
    const Operator& enter = graph.op(place.enter);
    const bool is_border =
        enter.in_parallel_region && !graph.op(producer(enter.inputs[0])).in_parallel_region;
    if (!is_border || !place.exit.is_valid()) return std::nullopt;
    if (graph.op(place.exit).kind == OperatorKind::add) {
        place.sum = std::exchange(place.exit, only_reader(place.exit));
        if (!place.exit.is_valid() || place.exit.index != place.sum.index + 1) return std::nullopt;
    }
    if (graph.op(place.exit).kind != OperatorKind::parallel_exit) return std::nullopt;
    return place;
}

class Rewriting {
public:
    explicit Rewriting(const ModelGraph& graph) : graph_(graph) { graph_.whole_experts_of = hash_of(graph); }

    ModelGraph result() {
        for (const std::int32_t i : core::indices(graph_.operators))
            if (graph_.operators[i].kind == OperatorKind::combine && graph_.operators[i].in_parallel_region)
                move_out(*place_of(graph_, OperatorId(i)));
        for (Operator& op : graph_.operators)
            if (is_of_mixture(op.kind) && op.in_parallel_region) leave_region(op);
        check(graph_);
        return std::move(graph_);
    }

private:
    Operator& op(OperatorId id) { return graph_.operators[id]; }
    Tensor& tensor(TensorId id) { return graph_.tensors[id]; }

    void leave_region(Operator& op) {
        op.in_parallel_region = false;
        tensor(op.output).split = TensorSplit::whole;
        for (const ParameterId id : op.parameters) {
            Parameter& parameter = graph_.parameters[id];
            parameter.has_partial_gradient = false;
            if (!parameter.is_expert) continue;
            parameter.split_dimension = 0;
            parameter.split_blocks = 1;
        }
    }

    void become_view(Operator& op) {
        op.kind = OperatorKind::reshape;
        op.in_parallel_region = false;
    }

    void move_out(const MixturePlace& place) {
        const TensorId entered = op(place.enter).output, source = op(place.enter).inputs[0];
        std::vector<OperatorId>& readers = tensor(entered).consumers;
        const auto others = std::stable_partition(readers.begin(), readers.end(), [&](OperatorId reader) {
            return !is_of_mixture(op(reader).kind);
        });
        if (others == readers.begin()) {
            become_view(op(place.enter));
        } else {
            std::vector<OperatorId>& of_source = tensor(source).consumers;
            for (auto reader = others; reader != readers.end(); ++reader) {
                op(*reader).inputs[0] = source;
                of_source.push_back(*reader);
            }
            std::sort(of_source.begin(), of_source.end(),
                      [](OperatorId a, OperatorId b) { return a.index < b.index; });
            readers.erase(others, readers.end());
        }
        if (place.sum.is_valid()) sum_behind_exit(place);
        else become_view(op(place.exit));
    }

    // exit(sum(routed, other)) becomes sum(routed, exit(other)): the two operators, one behind the other,
    // change places.
    void sum_behind_exit(const MixturePlace& place) {
        Operator &first = op(place.sum), &second = op(place.exit);
        const TensorId routed = op(place.combine).output, left = first.output;
        const std::size_t of_other = first.inputs[0] == routed ? 1 : 0;
        const TensorId other = first.inputs[of_other];
        std::vector<TensorId> terms = first.inputs;
        terms[of_other] = left;
        std::swap(first.kind, second.kind);
        std::swap(first.attributes, second.attributes);
        std::swap(first.name, second.name);
        first.inputs = {other};
        second.inputs = std::move(terms);
        first.in_parallel_region = second.in_parallel_region = false;
        tensor(left).split = TensorSplit::whole;
        tensor(routed).consumers = {place.exit};
        std::swap(tensor(left).name, tensor(second.output).name);
        swap_leaves(place);
    }

    void swap_leaves(const MixturePlace& place) {
        Module *of_sum = nullptr, *of_exit = nullptr;
        for (Module& module : graph_.modules) {
            if (!module.children.empty() || module.operators.size() != 1) continue;
            if (module.operators.begin == place.sum.index) of_sum = &module;
            if (module.operators.begin == place.exit.index) of_exit = &module;
        }
        if (of_sum && of_exit) std::swap(of_sum->name, of_exit->name);
    }

    ModelGraph graph_;
};

}  // namespace

std::optional<core::Unsupported> whole_experts_unsupported(const ModelGraph& graph) {
    bool has_experts = false;
    for (const std::int32_t i : core::indices(graph.operators)) {
        const Operator& op = graph.operators[i];
        if (op.kind != OperatorKind::combine) continue;
        has_experts = true;
        if (!op.in_parallel_region || !place_of(graph, OperatorId(i)))
            return core::Unsupported{op.name + " shares its parallel region with other work"};
    }
    if (!has_experts) return core::Unsupported{"the model has no experts"};
    return std::nullopt;
}

ModelGraph with_whole_experts(const ModelGraph& graph) {
    core::require(!whole_experts_unsupported(graph), "experts stay whole where nothing is against it");
    return Rewriting(graph).result();
}

}  // namespace model
