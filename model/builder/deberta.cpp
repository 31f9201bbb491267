#include "model/builder/deberta.h"

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

class DebertaBuilder {
public:
    explicit DebertaBuilder(const DebertaDescription& description)
        : d_(description), builder_(d_.name, d_.family) {}

    ModelGraph build() {
        const TensorId embedded = embed();
        TensorId x = embedded;
        for (std::int64_t layer = 0; layer < d_.layers; ++layer) {
            const std::string index = std::to_string(layer);
            builder_.begin_unit("layers." + index);
            builder_.open("layers." + index);
            x = behind("attention", d_.relative_rows > 0 ? disentangled(x) : plain(x), x);
            builder_.open("mlp");
            FeedForward mlp;
            mlp.width = d_.ffn;
            mlp.activation = d_.activation;
            mlp.has_region = false;
            const TensorId branch = feed_forward(builder_, x, mlp);
            builder_.close();
            x = behind("mlp", branch, x);
            if (layer == 0 && d_.convolution_kernel > 0) x = convolution(embedded, x);
            builder_.close();
        }
        head(x);
        builder_.graph().tokens_per_sample = d_.sequence_length;
        builder_.graph().vocabulary = d_.vocabulary;
        return builder_.finish();
    }

private:
    Parameter table(std::int64_t rows, std::int64_t columns) const {
        Parameter parameter;
        parameter.shape = {rows, columns};
        parameter.deviation = d_.deviation;
        return parameter;
    }

    TensorId general(OperatorKind kind, const std::string& name, std::vector<TensorId> inputs,
                     std::vector<std::int64_t> shape, const Attributes& attributes = {}) {
        return builder_.general(kind, name, std::move(inputs), {}, std::move(shape), attributes, true,
                                core::DataType::fp32);
    }

    TensorId embed() {
        builder_.begin_unit("embedding");
        builder_.open("embedding");
        tokens_ = builder_.parameter("tokens.weight", table(d_.vocabulary, d_.embedding));
        TensorId x = builder_.embedding(
            "tokens", builder_.input("ids", {d_.sequence_length}, core::DataType::int64), tokens_);
        if (d_.positions > 0) x = builder_.position_embedding("positions", x, d_.positions, 0, d_.deviation);
        if (d_.token_types > 0) {
            const ParameterId types = builder_.parameter("types.weight", table(d_.token_types, d_.embedding));
            const TensorId ids = builder_.input("type_ids", {d_.sequence_length}, core::DataType::int64);
            x = builder_.add("sum", x, builder_.embedding("types", ids, types));
        }
        LinearOptions projection;
        projection.has_bias = false;
        if (d_.embedding != d_.hidden) x = builder_.linear("projection", x, d_.hidden, projection);
        x = builder_.dropout("dropout", builder_.layer_norm("norm", x, d_.epsilon), d_.dropout);
        if (d_.relative_rows > 0) relative_table();
        builder_.close();
        return x;
    }

    void relative_table() {
        builder_.open("relative");
        const TensorId rows = builder_.input("rows", {d_.relative_rows}, core::DataType::int64);
        relative_ = builder_.embedding("rows", rows,
                                       builder_.parameter("weight", table(d_.relative_rows, d_.hidden)));
        if (d_.has_relative_norm) relative_ = builder_.layer_norm("norm", relative_, d_.epsilon);
        builder_.close();
    }

    TensorId plain(TensorId x) {
        AttentionLayer layer;
        layer.attributes.heads = layer.attributes.kv_heads = d_.heads;
        layer.attributes.head_dimension = d_.head_dimension;
        layer.attributes.probability = d_.attention_dropout;
        layer.has_region = false;
        builder_.open("attention");
        const TensorId branch = self_attention(builder_, x, layer);
        builder_.close();
        return branch;
    }

    // Rows of [rows, heads d] with rows of [others, heads d], each head by itself.
    TensorId scores(const std::string& name, TensorId rows, TensorId others) {
        Attributes a;
        a.product = {d_.heads, builder_.shape(rows)[0], builder_.shape(others)[0], d_.head_dimension};
        return general(OperatorKind::matrix_product, name, {rows, others},
                       {d_.heads, a.product.m, a.product.n}, a);
    }

    // The projection of relative positions: the contents' own, or one beside it.
    TensorId of_positions(const std::string& name, const std::vector<ParameterId>& contents) {
        const TensorId rows = builder_.dropout(name + "_dropout", relative_, d_.dropout);
        if (!d_.shares_position_projections)
            return builder_.linear(name, rows, d_.heads * d_.head_dimension, {});
        Attributes a;
        a.has_bias = true;
        return builder_.general(OperatorKind::linear, name, {rows}, contents,
                                {d_.relative_rows, d_.heads * d_.head_dimension}, a, true,
                                core::DataType::fp32);
    }

    TensorId disentangled(TensorId x) {
        builder_.open("attention");
        const std::int64_t width = d_.heads * d_.head_dimension, s = d_.sequence_length;
        const TensorId query = builder_.linear("query", x, width, {});
        const std::vector<ParameterId> query_parameters = builder_.last_operator().parameters;
        const TensorId key = builder_.linear("key", x, width, {});
        const std::vector<ParameterId> key_parameters = builder_.last_operator().parameters;
        const TensorId value = builder_.linear("value", x, width, {});
        std::vector<TensorId> sum = {scores("scores", query, key)};
        // Scores with every relative position, of which each pair of tokens takes its own.
        const auto add = [&](const std::string& name, TensorId contents, TensorId positions) {
            sum.push_back(general(OperatorKind::gather, name + "_gather", {scores(name, contents, positions)},
                                  {d_.heads, s, s}));
        };
        if (d_.has_content_to_position)
            add("content_to_position", query, of_positions("position_key", key_parameters));
        if (d_.has_position_to_content)
            add("position_to_content", key, of_positions("position_query", query_parameters));
        TensorId probabilities = general(OperatorKind::elementwise, "sum", std::move(sum), {d_.heads, s, s});
        probabilities = general(OperatorKind::softmax, "softmax", {probabilities}, {d_.heads, s, s});
        probabilities = builder_.dropout("dropout", probabilities, d_.attention_dropout);
        Attributes a;
        a.product = {d_.heads, s, d_.head_dimension, s};
        const TensorId context =
            general(OperatorKind::matrix_product, "context", {probabilities, value}, {s, width}, a);
        const TensorId branch = builder_.linear("output", context, d_.hidden, {});
        builder_.close();
        return branch;
    }

    TensorId behind(const std::string& name, TensorId branch, TensorId x) {
        branch = builder_.dropout(name + "_dropout", branch, d_.dropout);
        return builder_.layer_norm(name + "_norm", builder_.add(name + "_residual", branch, x), d_.epsilon);
    }

    // A convolution over the embedded tokens joins what the first layer makes of them.
    TensorId convolution(TensorId embedded, TensorId x) {
        builder_.open("convolution");
        Parameter weight, bias;
        weight.shape = {d_.hidden, d_.hidden / d_.convolution_groups, d_.convolution_kernel};
        bias.shape = {d_.hidden};
        bias.initialization = Initialization::zeros;
        bias.decays = false;
        Attributes a;
        a.has_bias = true;
        a.groups = d_.convolution_groups;
        a.padding = d_.convolution_kernel / 2;
        const TensorId columns = builder_.reshape(OperatorKind::transpose, "columns", embedded);
        TensorId branch = builder_.general(
            OperatorKind::convolution, "convolution", {columns},
            {builder_.parameter("weight", std::move(weight)), builder_.parameter("bias", std::move(bias))},
            builder_.shape(columns), a, true, core::DataType::fp32);
        branch = builder_.reshape(OperatorKind::transpose, "rows", branch);
        branch = builder_.dropout("dropout", branch, d_.dropout);
        branch = builder_.unary(d_.convolution_activation, "activation", branch);
        x = builder_.layer_norm("norm", builder_.add("sum", branch, x), d_.epsilon);
        builder_.close();
        return x;
    }

    void head(TensorId x) {
        builder_.begin_unit("head");
        builder_.open("head");
        x = builder_.linear("transform", x, d_.embedding, {});
        x = activate(builder_, "activation", x, d_.activation);
        x = builder_.layer_norm("norm", x, d_.epsilon);
        LinearOptions options;
        options.tied_weight = tokens_;
        const TensorId logits = builder_.linear("logits", x, d_.vocabulary, options);
        builder_.loss(logits, builder_.input("labels", {d_.sequence_length}, core::DataType::int64));
        builder_.close();
    }

    const DebertaDescription& d_;
    GraphBuilder builder_;
    ParameterId tokens_;
    TensorId relative_;
};

}  // namespace

ModelGraph build_deberta(const DebertaDescription& description) {
    return DebertaBuilder(description).build();
}

}  // namespace model
