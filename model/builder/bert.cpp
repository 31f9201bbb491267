#include "model/builder/bert.h"

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

// The hubs' and the paper's counts are of the encoder with its pooler; task heads are trained, but not
// counted (see Parameter::is_task_head).
LinearOptions task_linear(double deviation) {
    LinearOptions options;
    options.deviation = deviation;
    options.is_task_head = true;
    return options;
}

TensorId masked_tokens_loss(GraphBuilder& builder, TensorId x, ParameterId table, const BertDescription& d) {
    builder.open("masked_tokens");
    std::int64_t rows = d.sequence_length;
    if (d.masked_positions > 0) {
        rows = d.masked_positions;
        x = builder.select_positions("select", x, builder.input("positions", {rows}, core::DataType::int64));
    }
    x = builder.linear("transform", x, d.hidden, task_linear(d.deviation));
    x = activate(builder, "activation", x, d.activation);
    x = builder.layer_norm("norm", x, d.epsilon, true, true);
    LinearOptions decoder = task_linear(d.deviation);
    decoder.split = LinearOptions::Split::column;
    decoder.tied_weight = table;
    const TensorId logits = builder.linear("logits", builder.enter("enter", x), d.vocabulary, decoder);
    const TensorId loss = builder.loss(logits, builder.input("labels", {rows}, core::DataType::int64));
    builder.end_region();
    builder.close();
    return loss;
}

TensorId pooled(GraphBuilder& builder, TensorId x, const BertDescription& d) {
    builder.open("pooler");
    x = builder.reshape(OperatorKind::select_first_token, "first_token", x);
    LinearOptions dense;
    dense.deviation = d.deviation;
    x = builder.unary(OperatorKind::tanh, "activation", builder.linear("dense", x, d.hidden, dense));
    builder.close();
    return x;
}

TensorId label_loss(GraphBuilder& builder, const std::string& name, TensorId pooled, std::int64_t classes,
                    const BertDescription& d) {
    builder.open(name);
    const TensorId logits = builder.linear("logits", pooled, classes, task_linear(d.deviation));
    const TensorId loss = builder.loss(logits, builder.input("label", {1}, core::DataType::int64));
    builder.close();
    return loss;
}

}  // namespace

ModelGraph build_bert(const BertDescription& d) {
    GraphBuilder builder(d.name, d.family);
    builder.begin_unit("embedding");
    builder.open("embedding");
    const TensorId ids = builder.input("ids", {d.sequence_length}, core::DataType::int64);
    const ParameterId table = token_table(builder, d.vocabulary, d.hidden, d.deviation);
    TensorId x = embed_tokens(builder, ids, table);
    x = builder.position_embedding("positions", x, d.positions + d.position_offset, d.position_offset,
                                   d.deviation);
    if (d.token_types > 0) {
        const TensorId types = builder.input("type_ids", {d.sequence_length}, core::DataType::int64);
        Parameter rows;
        rows.shape = {d.token_types, d.hidden};
        rows.deviation = d.deviation;
        const ParameterId type_table = builder.parameter("types.weight", rows);
        x = builder.add("sum", x, builder.embedding("types", types, type_table));
    }
    x = builder.layer_norm("norm", x, d.epsilon);
    x = builder.dropout("dropout", x, d.hidden_dropout);
    builder.close();

    AttentionLayer attention;
    attention.attributes.heads = attention.attributes.kv_heads = d.heads;
    attention.attributes.head_dimension = d.hidden / d.heads;
    attention.attributes.probability = d.attention_dropout;
    attention.deviation = attention.output_deviation = d.deviation;
    FeedForward mlp;
    mlp.width = d.ffn;
    mlp.activation = d.activation;
    mlp.deviation = mlp.output_deviation = d.deviation;
    builder.open("layers");
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
        const std::string index = std::to_string(layer);
        builder.begin_unit("layers." + index);
        builder.open(index);
        builder.open("attention");
        TensorId branch = builder.exit("exit", self_attention(builder, builder.enter("enter", x), attention));
        branch = builder.dropout("dropout", branch, d.hidden_dropout);
        builder.close();
        x = builder.layer_norm("attention_norm", builder.add("attention_residual", branch, x), d.epsilon);
        builder.open("mlp");
        branch = builder.exit("exit", feed_forward(builder, builder.enter("enter", x), mlp));
        branch = builder.dropout("dropout", branch, d.hidden_dropout);
        builder.close();
        x = builder.layer_norm("mlp_norm", builder.add("mlp_residual", branch, x), d.epsilon);
        builder.close();
    }
    builder.close();

    builder.begin_unit("head");
    builder.open("head");
    switch (d.task) {
        case BertTask::pretraining: {
            const TensorId sentence = label_loss(builder, "next_sentence", pooled(builder, x, d), 2, d);
            builder.add("loss", masked_tokens_loss(builder, x, table, d), sentence);
            break;
        }
        case BertTask::masked_lm: masked_tokens_loss(builder, x, table, d); break;
        case BertTask::question_answering: {
            // Scores of start and end for every token; the span's ends are the classes of two rows over the
            // tokens.
            const TensorId scores = builder.reshape(OperatorKind::transpose, "rows",
                                                    builder.linear("scores", x, 2, task_linear(d.deviation)));
            builder.loss(scores, builder.input("span", {2}, core::DataType::int64));
            break;
        }
        case BertTask::classification:
            label_loss(builder, "classifier",
                       builder.dropout("dropout", pooled(builder, x, d), d.hidden_dropout), d.classes, d);
            break;
    }
    builder.close();

    builder.graph().tokens_per_sample = d.sequence_length;
    builder.graph().vocabulary = d.vocabulary;
    return builder.finish();
}

}  // namespace model
