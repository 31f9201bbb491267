#include "exec/weights/weight_names.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/core.h>

namespace exec {

using model::OperatorKind;

namespace {

// A weight whose rows are one tensor's: our name of it behind the layer's, theirs behind theirs.
struct Pair {
    const char *own, *theirs;
};

// How one class of transformers names its weights.
struct Scheme {
    const char *layer, *qkv_packed;  // prefix of a layer, with its number in place of {}; the tensor that
                                     // holds queries, keys and values, or null where each has its own
    std::vector<Pair> model, of_layer;
    const char *query = "", *key = "", *value = "";  // without a packed tensor
    const char *gate = "", *up = "";
    const char* expert = "";  // prefix of an expert, with its number in place of {}
    const char *expert_gate = "", *expert_up = "", *expert_down = "";
    bool is_transposed = false;       // products' weights are [inputs, outputs]
    bool is_packed_by_heads = false;  // each head's query, key and value follow one another
};

Scheme llama(bool has_sparse_block) {
    Scheme s{"model.layers.{}.", nullptr, {}, {}};
    s.model = {{"embedding.tokens.weight", "model.embed_tokens.weight"},
               {"head.norm.scale", "model.norm.weight"},
               {"head.logits.weight", "lm_head.weight"}};
    s.of_layer = {
        {"attention_norm.scale", "input_layernorm.weight"},
        {"mlp_norm.scale", "post_attention_layernorm.weight"},
        {"attention.query_norm.scale", "self_attn.q_norm.weight"},
        {"attention.key_norm.scale", "self_attn.k_norm.weight"},
        {"attention.output.weight", "self_attn.o_proj.weight"},
        {"attention.output.bias", "self_attn.o_proj.bias"},
        {"mlp.down.weight", "mlp.down_proj.weight"},
        {"mlp.down.bias", "mlp.down_proj.bias"},
        {"mlp.mixture.router.weight", has_sparse_block ? "block_sparse_moe.gate.weight" : "mlp.gate.weight"}};
    s.query = "self_attn.q_proj.", s.key = "self_attn.k_proj.", s.value = "self_attn.v_proj.";
    s.gate = "mlp.gate_proj.", s.up = "mlp.up_proj.";
    s.expert = has_sparse_block ? "block_sparse_moe.experts.{}." : "mlp.experts.{}.";
    s.expert_gate = has_sparse_block ? "w1." : "gate_proj.";
    s.expert_up = has_sparse_block ? "w3." : "up_proj.";
    s.expert_down = has_sparse_block ? "w2." : "down_proj.";
    return s;
}

Scheme gpt2() {
    Scheme s{"transformer.h.{}.", "attn.c_attn.", {}, {}};
    s.model = {{"embedding.tokens.weight", "transformer.wte.weight"},
               {"embedding.positions.weight", "transformer.wpe.weight"},
               {"head.norm.scale", "transformer.ln_f.weight"},
               {"head.norm.shift", "transformer.ln_f.bias"},
               {"head.logits.weight", "lm_head.weight"}};
    s.of_layer = {{"attention_norm.scale", "ln_1.weight"},
                  {"attention_norm.shift", "ln_1.bias"},
                  {"mlp_norm.scale", "ln_2.weight"},
                  {"mlp_norm.shift", "ln_2.bias"},
                  {"attention.output.weight", "attn.c_proj.weight"},
                  {"attention.output.bias", "attn.c_proj.bias"},
                  {"mlp.up.weight", "mlp.c_fc.weight"},
                  {"mlp.up.bias", "mlp.c_fc.bias"},
                  {"mlp.down.weight", "mlp.c_proj.weight"},
                  {"mlp.down.bias", "mlp.c_proj.bias"}};
    s.is_transposed = true;
    return s;
}

Scheme opt() {
    Scheme s{"model.decoder.layers.{}.", nullptr, {}, {}};
    s.model = {{"embedding.tokens.weight", "model.decoder.embed_tokens.weight"},
               {"embedding.positions.weight", "model.decoder.embed_positions.weight"},
               {"head.norm.scale", "model.decoder.final_layer_norm.weight"},
               {"head.norm.shift", "model.decoder.final_layer_norm.bias"},
               {"head.logits.weight", "lm_head.weight"}};
    s.of_layer = {{"attention_norm.scale", "self_attn_layer_norm.weight"},
                  {"attention_norm.shift", "self_attn_layer_norm.bias"},
                  {"mlp_norm.scale", "final_layer_norm.weight"},
                  {"mlp_norm.shift", "final_layer_norm.bias"},
                  {"attention.output.weight", "self_attn.out_proj.weight"},
                  {"attention.output.bias", "self_attn.out_proj.bias"},
                  {"mlp.up.weight", "fc1.weight"},
                  {"mlp.up.bias", "fc1.bias"},
                  {"mlp.down.weight", "fc2.weight"},
                  {"mlp.down.bias", "fc2.bias"}};
    s.query = "self_attn.q_proj.", s.key = "self_attn.k_proj.", s.value = "self_attn.v_proj.";
    return s;
}

Scheme gpt_neox() {
    Scheme s{"gpt_neox.layers.{}.", "attention.query_key_value.", {}, {}};
    s.model = {{"embedding.tokens.weight", "gpt_neox.embed_in.weight"},
               {"head.norm.scale", "gpt_neox.final_layer_norm.weight"},
               {"head.norm.shift", "gpt_neox.final_layer_norm.bias"},
               {"head.logits.weight", "embed_out.weight"}};
    s.of_layer = {{"attention_norm.scale", "input_layernorm.weight"},
                  {"attention_norm.shift", "input_layernorm.bias"},
                  {"mlp_norm.scale", "post_attention_layernorm.weight"},
                  {"mlp_norm.shift", "post_attention_layernorm.bias"},
                  {"attention.output.weight", "attention.dense.weight"},
                  {"attention.output.bias", "attention.dense.bias"},
                  {"mlp.up.weight", "mlp.dense_h_to_4h.weight"},
                  {"mlp.up.bias", "mlp.dense_h_to_4h.bias"},
                  {"mlp.down.weight", "mlp.dense_4h_to_h.weight"},
                  {"mlp.down.bias", "mlp.dense_4h_to_h.bias"}};
    s.is_packed_by_heads = true;
    return s;
}

Scheme bert() {
    Scheme s{"bert.encoder.layer.{}.", nullptr, {}, {}};
    s.model = {{"embedding.tokens.weight", "bert.embeddings.word_embeddings.weight"},
               {"embedding.positions.weight", "bert.embeddings.position_embeddings.weight"},
               {"embedding.types.weight", "bert.embeddings.token_type_embeddings.weight"},
               {"embedding.norm.scale", "bert.embeddings.LayerNorm.weight"},
               {"embedding.norm.shift", "bert.embeddings.LayerNorm.bias"},
               {"head.pooler.dense.weight", "bert.pooler.dense.weight"},
               {"head.pooler.dense.bias", "bert.pooler.dense.bias"},
               {"head.masked_tokens.transform.weight", "cls.predictions.transform.dense.weight"},
               {"head.masked_tokens.transform.bias", "cls.predictions.transform.dense.bias"},
               {"head.masked_tokens.norm.scale", "cls.predictions.transform.LayerNorm.weight"},
               {"head.masked_tokens.norm.shift", "cls.predictions.transform.LayerNorm.bias"},
               {"head.masked_tokens.logits.bias", "cls.predictions.bias"},
               {"head.next_sentence.logits.weight", "cls.seq_relationship.weight"},
               {"head.next_sentence.logits.bias", "cls.seq_relationship.bias"},
               {"head.classifier.logits.weight", "classifier.weight"},
               {"head.classifier.logits.bias", "classifier.bias"},
               {"head.scores.weight", "qa_outputs.weight"},
               {"head.scores.bias", "qa_outputs.bias"}};
    s.of_layer = {{"attention_norm.scale", "attention.output.LayerNorm.weight"},
                  {"attention_norm.shift", "attention.output.LayerNorm.bias"},
                  {"mlp_norm.scale", "output.LayerNorm.weight"},
                  {"mlp_norm.shift", "output.LayerNorm.bias"},
                  {"attention.output.weight", "attention.output.dense.weight"},
                  {"attention.output.bias", "attention.output.dense.bias"},
                  {"mlp.up.weight", "intermediate.dense.weight"},
                  {"mlp.up.bias", "intermediate.dense.bias"},
                  {"mlp.down.weight", "output.dense.weight"},
                  {"mlp.down.bias", "output.dense.bias"}};
    s.query = "attention.self.query.", s.key = "attention.self.key.", s.value = "attention.self.value.";
    return s;
}

bool has_operator(const model::ModelGraph& graph, const std::string& name) {
    return std::any_of(graph.operators.begin(), graph.operators.end(),
                       [&](const model::Operator& op) { return op.name == name; });
}

const model::Operator* first_of(const model::ModelGraph& graph, OperatorKind kind) {
    const auto found = std::find_if(graph.operators.begin(), graph.operators.end(),
                                    [&](const model::Operator& op) { return op.kind == kind; });
    return found == graph.operators.end() ? nullptr : &*found;
}

std::variant<Scheme, core::Unsupported> scheme_of(const model::ModelGraph& graph) {
    const model::Operator *attention = first_of(graph, OperatorKind::attention),
                          *positions = first_of(graph, OperatorKind::position_embedding);
    if (graph.family == "bert") {
        if (positions && positions->attributes.position_offset != 0)
            return core::Unsupported{"RoBERTa's names of weights are not known here"};
        return bert();
    }
    if (!attention) return core::Unsupported{fmt::format("{} has no attention", graph.name)};
    if (graph.family == "gpt") {
        if (positions && positions->attributes.position_offset == 0) return gpt2();
        if (positions) return opt();
        if (attention->attributes.is_rotary && has_operator(graph, "layers.0.mlp_norm")) return gpt_neox();
        return core::Unsupported{fmt::format("{} is neither like GPT-2, OPT nor GPT-NeoX", graph.name)};
    }
    const bool is_llama = attention->attributes.is_rotary && attention->attributes.rotary_fraction == 1 &&
                          first_of(graph, OperatorKind::rms_norm);
    // Gemma scales its embeddings, and keeps the scales of its norms less one.
    if (!is_llama || has_operator(graph, "embedding.scale"))
        return core::Unsupported{fmt::format("{} has no layers like Llama's", graph.name)};
    return llama(graph.family == "mixtral");
}

std::string numbered(const std::string& pattern, std::int64_t number) {
    const std::size_t at = pattern.find("{}");
    return at == std::string::npos ? pattern
                                   : pattern.substr(0, at) + std::to_string(number) + pattern.substr(at + 2);
}

std::int64_t rows_of(const std::vector<std::int64_t>& shape) {
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    return shape.size() == 1 ? shape[0] : rows;
}

// "layers.3.mlp.up.weight" is "mlp.up.weight" of layer 3.
struct PlaceInLayer {
    std::int64_t layer = 0;
    std::string name;
};
std::optional<PlaceInLayer> place_in_layer(const std::string& parameter) {
    constexpr std::string_view prefix = "layers.";
    if (!parameter.starts_with(prefix)) return std::nullopt;
    const std::size_t dot = parameter.find('.', prefix.size());
    if (dot == std::string::npos) return std::nullopt;
    return PlaceInLayer{std::stoll(parameter.substr(prefix.size(), dot - prefix.size())),
                        parameter.substr(dot + 1)};
}

class Namer {
public:
    Namer(const model::ModelGraph& graph, const Scheme& scheme) : graph_(graph), scheme_(scheme) {
        for (const model::Operator& op : graph.operators)
            if (op.kind == OperatorKind::attention) attentions_[op.name] = &op;
    }

    // Empty for a parameter that has no counterpart.
    std::vector<WeightRows> rows(const model::Parameter& parameter) const {
        const std::optional<PlaceInLayer> place = place_in_layer(parameter.name);
        for (const Pair& pair : place ? scheme_.of_layer : scheme_.model)
            if ((place ? place->name : parameter.name) == pair.own)
                return whole(parameter, (place ? layer(*place) : std::string()) + pair.theirs);
        if (!place) return {};
        const std::size_t dot = place->name.rfind('.');
        const std::string own = place->name.substr(0, dot), last = place->name.substr(dot + 1);
        if (own == "attention.qkv") return queries_keys_values(parameter, *place, last);
        if (own == "mlp.gate_up" && *scheme_.gate)
            return stacked(parameter,
                           {layer(*place) + scheme_.gate + last, layer(*place) + scheme_.up + last},
                           rows_of(parameter.shape) / 2);
        if (place->name.starts_with("mlp.mixture.experts.") && *scheme_.expert)
            return experts(parameter, *place, own == "mlp.mixture.experts.first", last);
        return {};
    }

private:
    std::string layer(const PlaceInLayer& place) const { return numbered(scheme_.layer, place.layer); }

    std::vector<WeightRows> whole(const model::Parameter& parameter, const std::string& tensor) const {
        const bool is_product = parameter.shape.size() == 2 && parameter.name.starts_with("layers.");
        WeightRows rows{tensor, parameter.shape, 0, 0, rows_of(parameter.shape), false};
        if (is_product && scheme_.is_transposed) {
            std::swap(rows.shape[0], rows.shape[1]);
            rows.is_transposed = true;
        }
        return {rows};
    }

    // Tensors of `rows` rows each, one behind another.
    std::vector<WeightRows> stacked(const model::Parameter& parameter,
                                    const std::vector<std::string>& tensors, std::int64_t rows) const {
        std::vector<WeightRows> result;
        for (const std::string& tensor : tensors) add(result, parameter, tensor, rows);
        return result;
    }
    static void add(std::vector<WeightRows>& result, const model::Parameter& parameter,
                    const std::string& tensor, std::int64_t rows) {
        std::vector<std::int64_t> shape{rows};
        if (parameter.shape.size() > 1) shape.push_back(parameter.shape.back());
        const std::int64_t first = result.empty() ? 0 : result.back().first + result.back().count;
        result.push_back({tensor, shape, 0, first, rows, false});
    }

    std::vector<WeightRows> queries_keys_values(const model::Parameter& parameter, const PlaceInLayer& place,
                                                const std::string& last) const {
        const std::string prefix = layer(place);
        const auto core = attentions_.find(fmt::format("layers.{}.attention.core", place.layer));
        if (core == attentions_.end()) return {};
        const model::Attributes& a = core->second->attributes;
        if (scheme_.qkv_packed && !scheme_.is_packed_by_heads)
            return whole(parameter, prefix + scheme_.qkv_packed + last);
        std::vector<WeightRows> result;
        if (!scheme_.qkv_packed) {
            add(result, parameter, prefix + scheme_.query + last, a.heads * a.head_dimension);
            add(result, parameter, prefix + scheme_.key + last, a.kv_heads * a.head_dimension);
            add(result, parameter, prefix + scheme_.value + last, a.kv_heads * a.head_dimension);
            return result;
        }
        constexpr int parts = 3;
        for (int part = 0; part < parts; ++part)
            for (std::int64_t head = 0; head < a.heads; ++head)
                result.push_back({prefix + scheme_.qkv_packed + last, parameter.shape,
                                  (head * parts + part) * a.head_dimension,
                                  (part * a.heads + head) * a.head_dimension, a.head_dimension, false});
        return result;
    }

    std::vector<WeightRows> experts(const model::Parameter& parameter, const PlaceInLayer& place,
                                    bool is_first, const std::string& last) const {
        if (parameter.shape.size() != 3) return {};
        std::vector<WeightRows> result;
        for (std::int64_t expert = 0; expert < parameter.shape[0]; ++expert) {
            const std::string prefix = layer(place) + numbered(scheme_.expert, expert);
            if (!is_first) {
                add(result, parameter, prefix + scheme_.expert_down + last, parameter.shape[1]);
                continue;
            }
            add(result, parameter, prefix + scheme_.expert_gate + last, parameter.shape[1] / 2);
            add(result, parameter, prefix + scheme_.expert_up + last, parameter.shape[1] / 2);
        }
        return result;
    }

    const model::ModelGraph& graph_;
    const Scheme& scheme_;
    std::map<std::string, const model::Operator*> attentions_;
};

std::optional<std::string> with_ending(const std::string& name, const std::string& ending,
                                       const std::string& other) {
    if (!name.ends_with(ending)) return std::nullopt;
    return name.substr(0, name.size() - ending.size()) + other;
}

}  // namespace

WeightNames own_names(const model::ModelGraph& graph) {
    WeightNames names;
    for (const model::Parameter& parameter : graph.parameters)
        names.rows.push_back({{parameter.name, parameter.shape, 0, 0, rows_of(parameter.shape), false}});
    return names;
}

std::variant<WeightNames, core::Unsupported> huggingface_names(const model::ModelGraph& graph) {
    const std::variant<Scheme, core::Unsupported> scheme = scheme_of(graph);
    if (const auto* unsupported = std::get_if<core::Unsupported>(&scheme)) return *unsupported;
    const Namer namer(graph, std::get<Scheme>(scheme));
    WeightNames names;
    for (const model::Parameter& parameter : graph.parameters) {
        names.rows.push_back(namer.rows(parameter));
        if (names.rows.back().empty())
            return core::Unsupported{
                fmt::format("{} of {} has no counterpart there", parameter.name, graph.name)};
    }
    return names;
}

std::vector<std::string> aliases_of(const std::string& tensor) {
    std::vector<std::string> names = {tensor};
    for (const char* prefix : {"model.", "transformer.", "gpt_neox.", "bert."})
        if (tensor.starts_with(prefix)) names.push_back(tensor.substr(std::string_view(prefix).size()));
    for (std::size_t i = 0, count = names.size(); i < count; ++i) {
        if (const auto old = with_ending(names[i], "LayerNorm.weight", "LayerNorm.gamma"))
            names.push_back(*old);
        if (const auto old = with_ending(names[i], "LayerNorm.bias", "LayerNorm.beta")) names.push_back(*old);
    }
    return names;
}

}  // namespace exec
