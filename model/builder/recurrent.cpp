#include "model/builder/recurrent.h"

#include "model/builder/graph_builder.h"

namespace model {

namespace {

// Input, forget, cell and output.
constexpr std::int64_t gates = 4;

TensorId lstm_layer(GraphBuilder& builder, TensorId x, std::int64_t hidden) {
    const std::int64_t steps = builder.shape(x)[0], rows = gates * hidden;
    const TensorId projected = builder.linear("input", x, rows, {});
    Parameter weight, bias;
    weight.shape = {1, rows, hidden};
    bias.shape = {rows};
    bias.initialization = Initialization::zeros;
    bias.decays = false;
    Attributes product;
    product.product = {steps, 1, rows, hidden};
    const TensorId stepped = builder.general(OperatorKind::matrix_product, "state", {projected},
                                             {builder.parameter("state.weight", std::move(weight))},
                                             {steps, rows}, product, true, core::DataType::fp32);
    // Backward reads the gates (of the product) and the states.
    Attributes gating;
    gating.saves_output = true;
    return builder.general(OperatorKind::elementwise, "gates", {projected, stepped},
                           {builder.parameter("state.bias", std::move(bias))}, {steps, hidden}, gating, true,
                           core::DataType::fp32);
}

}  // namespace

ModelGraph build_lstm(const LstmDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("embedding");
    builder.open("embedding");
    Parameter rows;
    rows.shape = {d.vocabulary, d.embedding};
    const ParameterId table = builder.parameter("tokens.weight", std::move(rows));
    TensorId x =
        builder.embedding("tokens", builder.input("ids", {d.sequence_length}, core::DataType::int64), table);
    x = builder.dropout("dropout", x, d.dropout);
    builder.close();
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
        const std::string index = std::to_string(layer);
        builder.begin_unit("layers." + index);
        builder.open("layers." + index);
        x = lstm_layer(builder, x, layer + 1 == d.layers ? d.last_hidden : d.hidden);
        x = builder.dropout("dropout", x, d.dropout);
        builder.close();
    }
    builder.begin_unit("head");
    builder.open("head");
    LinearOptions options;
    if (d.is_tied) options.tied_weight = table;
    const TensorId logits = builder.linear("logits", x, d.vocabulary, options);
    builder.loss(logits, builder.input("labels", {d.sequence_length}, core::DataType::int64));
    builder.close();
    builder.graph().tokens_per_sample = d.sequence_length;
    builder.graph().vocabulary = d.vocabulary;
    return builder.finish();
}

}  // namespace model
