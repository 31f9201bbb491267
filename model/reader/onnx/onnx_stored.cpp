#include "model/reader/onnx/onnx_stored.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "model/operator.h"

namespace model {

namespace {

// Between a bias of scores and their softmax: shapes for windows, masks, and shapes back. No chain of copies
// is longer either.
constexpr int most_steps_to_softmax = 6;

class Classifier {
public:
    explicit Classifier(const OnnxGraph& g) : graph_(g), is_fixed_(g.values.size(), true) {
        stored_.is_constant.assign(g.values.size(), false);
        for (int input : g.inputs) is_fixed_[input] = false;
        for (const OnnxNode& node : g.nodes)
            for (int input : node.inputs)
                if (input >= 0 && !is_fixed_[input])
                    for (int output : node.outputs)
                        if (output >= 0) is_fixed_[output] = false;
    }

    OnnxStored run() {
        for (const std::int32_t v : core::indices(graph_.values)) {
            const OnnxValue& value = graph_.values[v];
            if (!value.is_initializer || value.type != OnnxType::floating || element_count(value.shape) < 2)
                continue;
            if (value.is_parameter && !*value.is_parameter) leave_out(v, buffers_);
            else if (is_mask(value)) leave_out(v, masks_);
            else if (is_folded_norm(value)) leave_out(v, norms_);
            else if (is_grid(v)) leave_out(v, grids_);
            else if (is_folded_constant(value)) leave_out(v, masks_);
            else if (!is_matrix_per_head(value) && is_folded_sum(value)) sums_ += element_count(value.shape);
        }
        for (const std::int32_t v : core::indices(graph_.values))
            if (is_fixed_[v] && is_matrix_per_head(graph_.values[v])) take_scores(v);
        for (const OnnxNode& node : graph_.nodes)
            if (node.type == "Sqrt" && node.domain.empty() && is_variance(node.input(0))) freeze_norm(node);
        for (const OnnxNode& node : graph_.nodes)
            if ((node.type == "LSTM" || node.type == "GRU" || node.type == "RNN") && node.domain.empty())
                for (const std::size_t i : {1, 2, 3}) join_parts(node.input(i));
        remark();
        return std::move(stored_);
    }

private:
    const OnnxNode& node(int n) const { return graph_.nodes[n]; }
    void leave_out(int value, std::int64_t& elements) {
        if (stored_.is_constant[value]) return;
        stored_.is_constant[value] = true;
        elements += element_count(graph_.value(value).shape);
    }

    bool all_readers(const OnnxValue& value, std::initializer_list<const char*> types) const {
        return !value.consumers.empty() &&
               std::all_of(value.consumers.begin(), value.consumers.end(), [&](int n) {
                   return std::any_of(types.begin(), types.end(),
                                      [&](const char* type) { return node(n).type == type; });
               });
    }

    // Through sums and other shapes alone.
    bool reaches_softmax(const OnnxValue& value, int steps) const {
        if (steps == 0) return false;
        return std::any_of(value.consumers.begin(), value.consumers.end(), [&](int n) {
            const std::string& type = node(n).type;
            if (type == "Softmax") return true;
            const bool keeps = type == "Add" || type == "Reshape" || type == "Squeeze" || type == "Unsqueeze";
            return keeps && node(n).output() >= 0 &&
                   reaches_softmax(graph_.value(node(n).output()), steps - 1);
        });
    }

    // Scores that are only ever added in front of a softmax, the same for all heads: exporters fold causal
    // masks to one such matrix, masks of shifted windows to one a window, [1, windows, 1, tokens, tokens].
    bool is_mask(const OnnxValue& scores) const {
        const std::size_t rank = scores.shape.size();
        if (rank < 3 || !all_readers(scores, {"Add"})) return false;
        const bool is_one_matrix =
            element_count(scores.shape) == scores.shape[rank - 1] * scores.shape[rank - 2];
        if (is_one_matrix)
            return std::all_of(scores.consumers.begin(), scores.consumers.end(), [&](int n) {
                return node(n).output() >= 0 && all_readers(graph_.value(node(n).output()), {"Softmax"});
            });
        return scores.shape[rank - 1] == scores.shape[rank - 2] && scores.shape[rank - 3] == 1 &&
               reaches_softmax(scores, most_steps_to_softmax);
    }

    // A scale or shift [channels, 1, 1] beside the output of a convolution: the exporter made it of a frozen
    // norm's four vectors. A trained one keeps its module's name.
    bool is_folded_norm(const OnnxValue& value) const {
        const std::size_t rank = value.shape.size();
        if (!is_named_by_exporter(graph_, value) || rank < 3 || !all_readers(value, {"Mul", "Add"}) ||
            value.shape[rank - 3] != element_count(value.shape))
            return false;
        return std::all_of(value.consumers.begin(), value.consumers.end(),
                           [&](int n) { return follows_convolution(node(n), 2); });
    }
    // Coordinates [.., rows, columns, 2], as many as the grid has axes, of which products with weights and no
    // input make something (Swin v2's biases of positions, arXiv 2111.09883, section 3.3): what a network is
    // asked at, not what it learned. Learned queries that pass products first are wider than they have axes.
    bool is_grid(int v) const {
        const OnnxValue& value = graph_.value(v);
        if (value.shape.size() < 3) return false;
        const std::int64_t axes =
            std::count_if(value.shape.begin(), value.shape.end() - 1, [](std::int64_t n) { return n > 1; });
        return axes >= 2 && value.shape.back() == axes && is_asked(v, most_steps_to_softmax);
    }
    // Only ever the rows of products that no input reaches; equal tables are stored once.
    bool is_asked(int v, int steps) const {
        const std::vector<int>& readers = graph_.value(v).consumers;
        return steps > 0 && !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](int n) {
                   const int output = node(n).output();
                   if (output < 0 || !is_fixed_[output]) return false;
                   if (node(n).type == "Identity") return is_asked(output, steps - 1);
                   return node(n).type == "MatMul" && node(n).input(0) == v && node(n).input(1) != v;
               });
    }
    bool follows_convolution(const OnnxNode& from, int steps) const {
        return std::any_of(from.inputs.begin(), from.inputs.end(), [&](int input) {
            if (input < 0 || is_fixed_[input] || graph_.value(input).producer < 0) return false;
            const OnnxNode& before = node(graph_.value(input).producer);
            return before.type == "Conv" ||
                   (steps > 1 && before.type == "Mul" && follows_convolution(before, steps - 1));
        });
    }

    bool is_matrix_per_head(const OnnxValue& value) const {
        const std::size_t rank = value.shape.size();
        if (value.type != OnnxType::floating || rank < 3 || !all_readers(value, {"Add"})) return false;
        const std::int64_t tokens = value.shape[rank - 1], heads = value.shape[rank - 3];
        return tokens > 1 && tokens == value.shape[rank - 2] && heads > 1 &&
               element_count(value.shape) == heads * tokens * tokens &&
               reaches_softmax(value, most_steps_to_softmax);
    }
    // The initialiser that the value is in another shape, or -1.
    int stored_whole(int value) const {
        const std::int64_t count = element_count(graph_.value(value).shape);
        while (value >= 0 && !graph_.value(value).is_initializer) {
            const int n = graph_.value(value).producer;
            if (n < 0 ||
                (node(n).type != "Reshape" && node(n).type != "Transpose" && node(n).type != "Unsqueeze" &&
                 node(n).type != "Squeeze" && node(n).type != "Identity"))
                return -1;
            value = node(n).input(0);
        }
        return value >= 0 && element_count(graph_.value(value).shape) == count ? value : -1;
    }
    void take_scores(int scores) {
        const OnnxValue& value = graph_.value(scores);
        const int source = stored_whole(scores);
        if (source < 0 || stored_.tables.contains(source)) return;
        const std::int64_t tokens = value.shape.back(), heads = value.shape[value.shape.size() - 3];
        const std::int64_t window = std::llround(std::sqrt(static_cast<double>(tokens)));
        if (is_named_by_exporter(graph_, graph_.value(source)) && window * window == tokens) {
            stored_.tables[source] = {(2 * window - 1) * (2 * window - 1), heads};
            table_elements_ += element_count(stored_.tables[source]);
            folded_scores_ += element_count(value.shape);
        } else {
            scores_ += element_count(value.shape);
        }
    }
    // Of what the exporter computed, what only makes other constants: subtracted, compared, chosen, written
    // into them (masks of shifted windows).
    bool is_folded_constant(const OnnxValue& value) const {
        const bool is_written_into = std::any_of(value.consumers.begin(), value.consumers.end(), [&](int n) {
            return node(n).type.starts_with("Scatter") && node(n).output() >= 0 &&
                   is_fixed_[node(n).output()];
        });
        return is_named_by_exporter(graph_, value) &&
               (is_written_into || makes_constants(value, most_steps_to_softmax));
    }
    bool makes_constants(const OnnxValue& value, int steps) const {
        return steps > 0 && !value.consumers.empty() &&
               std::all_of(value.consumers.begin(), value.consumers.end(), [&](int n) {
                   const OnnxNode& reader = node(n);
                   if (reader.output() < 0 || !is_fixed_[reader.output()]) return false;
                   if (reader.type == "Reshape" || reader.type == "Unsqueeze" || reader.type == "Transpose" ||
                       reader.type == "Slice")
                       return makes_constants(graph_.value(reader.output()), steps - 1);
                   return reader.type == "Sub" || reader.type == "Equal" || reader.type == "Where" ||
                          reader.type == "ScatterND" || reader.type == "ScatterElements";
               });
    }

    // Rows that an exporter looked up itself: positions, token types.
    bool is_folded_sum(const OnnxValue& value) const {
        return is_named_by_exporter(graph_, value) && value.shape.size() >= 2 &&
               all_readers(value, {"Add"}) && element_count(value.shape) > value.shape.back();
    }

    // A stored vector (in whatever shape) plus a small number, under a root that no input reaches.
    bool is_variance(int value) const {
        if (value < 0 || !is_fixed_[value] || graph_.value(value).producer < 0) return false;
        const OnnxNode& sum = node(graph_.value(value).producer);
        return sum.type == "Add" && std::any_of(sum.inputs.begin(), sum.inputs.end(), [&](int input) {
                   const int source = stored_vector(input);
                   return source >= 0 && element_count(graph_.value(source).shape) > 1;
               });
    }
    // The initialiser of one dimension behind other shapes, or -1.
    int stored_vector(int value) const {
        while (value >= 0 && !graph_.value(value).is_initializer) {
            const int n = graph_.value(value).producer;
            if (n < 0 ||
                (node(n).type != "Reshape" && node(n).type != "Unsqueeze" && node(n).type != "Identity"))
                return -1;
            value = node(n).input(0);
        }
        return value >= 0 && graph_.value(value).shape.size() == 1 &&
                       graph_.value(value).type == OnnxType::floating
                   ? value
                   : -1;
    }
    // x w / sqrt(v + e) + (b - m w / sqrt(v + e)): what is computed of the root without an input
    // (torchvision's FrozenBatchNorm2d) reads the four vectors.
    void freeze_norm(const OnnxNode& root) {
        std::vector<const OnnxNode*> open{&node(graph_.value(root.input(0)).producer), &root};
        while (!open.empty()) {
            const OnnxNode& from = *open.back();
            open.pop_back();
            if (from.output() < 0 || !is_fixed_[from.output()]) continue;
            for (int input : from.inputs)
                if (const int source = stored_vector(input); source >= 0) leave_out(source, norms_);
            for (int n : graph_.value(from.output()).consumers) open.push_back(&node(n));
        }
    }

    // A weight of a recurrence that is stored in parts: TorchScript's exporter, when it folds nothing, cuts
    // the gates of torch's weights, joins them in ONNX's order, and joins those of two directions.
    void join_parts(int weight) {
        if (weight < 0 || !is_fixed_[weight] || graph_.value(weight).is_initializer) return;
        std::vector<int> open{weight}, nodes;
        std::set<int> sources, seen;
        while (!open.empty()) {
            const int value = open.back();
            open.pop_back();
            if (value < 0 || !seen.insert(value).second) continue;
            if (graph_.value(value).is_initializer) {
                if (graph_.value(value).type == OnnxType::floating) sources.insert(value);
                continue;
            }
            const int n = graph_.value(value).producer;
            if (n < 0 || node(n).type == "Constant") continue;
            nodes.push_back(n);
            const bool is_cut = node(n).type == "Slice" || node(n).type == "Unsqueeze" ||
                                node(n).type == "Reshape" || node(n).type == "Identity";
            if (!is_cut && node(n).type != "Concat") return;
            // What else these read are places and shapes.
            for (std::size_t i = 0; i < (is_cut ? 1 : node(n).inputs.size()); ++i)
                open.push_back(node(n).inputs[i]);
        }
        std::int64_t stored = 0;
        for (const int source : sources) stored += element_count(graph_.value(source).shape);
        if (stored != element_count(graph_.value(weight).shape)) return;
        stored_.joined.insert(weight);
        for (const int source : sources) stored_.is_constant[source] = true;
        for (const int n : nodes) stored_.joining.insert(n);
    }

    // The elements of an exporter's matrix [width, words] beside a table [words, width] that is looked up.
    std::int64_t untied_head() const {
        for (const int output : graph_.outputs) {
            for (const OnnxNode& lookup : graph_.nodes) {
                if (lookup.type != "Gather" || lookup.input(0) < 0) continue;
                const OnnxValue& table = graph_.value(lookup.inputs[0]);
                if (!table.is_initializer || table.shape.size() != 2) continue;
                if (const OnnxValue* const head = head_of(output);
                    head && head->shape == std::vector<std::int64_t>{table.shape[1], table.shape[0]})
                    return element_count(head->shape);
            }
        }
        return 0;
    }
    // The exporter's matrix of the product that makes the value, before a bias.
    const OnnxValue* head_of(int value) const {
        int n = graph_.value(value).producer;
        if (n >= 0 && node(n).type == "Add")
            for (const int input : node(n).inputs)
                if (input >= 0 && !is_fixed_[input]) value = input;
        n = graph_.value(value).producer;
        if (n < 0 || node(n).type != "MatMul" || node(n).input(1) < 0) return nullptr;
        const OnnxValue& weight = graph_.value(node(n).inputs[1]);
        return weight.is_initializer && is_named_by_exporter(graph_, weight) ? &weight : nullptr;
    }

    void remark() {
        const auto say = [&](std::int64_t elements, const char* text) {
            if (elements > 0) stored_.remarks.push_back(fmt::format("{} {}", elements, text));
        };
        say(masks_,
            "stored scores that are added in front of a softmax, the same for all heads, are masks and "
            "not trained");
        say(buffers_, "stored values are buffers by the file's own word, and not trained");
        say(grids_,
            "stored coordinates of grids, from which products with weights compute biases, are not trained");
        say(norms_,
            "stored scales and shifts behind convolutions are those of frozen norms, and not trained");
        if (folded_scores_ > 0)
            stored_.remarks.push_back(fmt::format(
                "{} stored scores of heads are taken for {} parameters in tables of relative "
                "positions in square windows, which torch.onnx looked up when it exported; export "
                "with do_constant_folding = False to keep the tables",
                folded_scores_, table_elements_));
        say(scores_,
            "stored scores of heads count as parameters: torch.onnx folds smaller tables of relative "
            "positions to them; export with do_constant_folding = False to keep the tables");
        if (const std::int64_t repeated = untied_head(); repeated > 0)
            say(repeated,
                "weights in front of the scores have the extents of a table of embeddings, transposed: where "
                "the "
                "two are tied, torch.onnx wrote them twice, and they count twice");
        say(sums_,
            "stored values that the exporter computed and the graph adds count as parameters: rows that it "
            "looked up in tables of positions or token types, which may be longer or shorter; export with "
            "do_constant_folding = False to keep the tables");
    }

    const OnnxGraph& graph_;
    std::vector<bool> is_fixed_;  // follows from weights and constants alone
    OnnxStored stored_;
    std::int64_t masks_ = 0, buffers_ = 0, norms_ = 0, grids_ = 0, folded_scores_ = 0, table_elements_ = 0,
                 scores_ = 0, sums_ = 0;
};

}  // namespace

bool is_named_by_exporter(const OnnxGraph& graph, const OnnxValue& value) {
    if (value.name.starts_with("onnx::")) return true;
    return graph.lists_parameters && !value.is_parameter;
}

OnnxStored classify_stored(const OnnxGraph& graph) { return Classifier(graph).run(); }

}  // namespace model
