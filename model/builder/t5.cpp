#include "model/builder/t5.h"

#include <cmath>

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

class T5Builder {
public:
    explicit T5Builder(const T5Description& description) : d(description), builder(d.name, d.family) {}

    ModelGraph build() {
        builder.begin_unit("encoder.embedding");
        builder.open("encoder");
        builder.open("embedding");
        table = token_table(builder, d.vocabulary, d.hidden, 1.0);
        TensorId x = embed(d.encoder_sequence_length);
        builder.close();
        // One table of biases per stack, made in its first layer and used by all of them: a parameter tied
        // over the stack's units.
        ParameterId bias = relative_bias();
        for (std::int64_t layer = 0; layer < d.encoder_layers; ++layer) {
            open_layer("encoder.layers.", layer);
            x = attention(x, {}, "attention", false, bias);
            x = mlp(x);
            close_layer();
        }

        // Encoder and decoder are joined in one unit: the encoder's final norm and the decoder's embedding.
        builder.begin_unit("decoder.embedding");
        TensorId memory = builder.rms_norm("norm", x, d.epsilon);
        memory = builder.dropout("dropout", memory, d.dropout);
        builder.close();
        builder.open("decoder");
        builder.open("embedding");
        x = embed(d.decoder_sequence_length);
        builder.close();
        bias = relative_bias();
        for (std::int64_t layer = 0; layer < d.decoder_layers; ++layer) {
            open_layer("decoder.layers.", layer);
            x = attention(x, {}, "attention", true, bias);
            x = attention(x, memory, "cross_attention", false, {});
            x = mlp(x);
            close_layer();
        }

        builder.begin_unit("head");
        x = builder.rms_norm("norm", x, d.epsilon);
        x = builder.dropout("dropout", x, d.dropout);
        builder.close();
        builder.open("head");
        LinearOptions head;
        head.split = LinearOptions::Split::column;
        head.has_bias = false;
        head.deviation = 1.0 / std::sqrt(static_cast<double>(d.hidden));
        if (d.is_tied) {
            head.tied_weight = table;
            head.input_scale = 1.0 / std::sqrt(static_cast<double>(
                                         d.hidden));  // the tied table is of deviation 1 (mesh-tensorflow;
                                                      // transformers' T5 does the same)
        }
        const TensorId logits = builder.linear("logits", builder.enter("enter", x), d.vocabulary, head);
        builder.loss(logits, builder.input("labels", {d.decoder_sequence_length}, core::DataType::int64));
        builder.close();

        builder.graph().tokens_per_sample = d.decoder_sequence_length;
        builder.graph().encoder_tokens_per_sample = d.encoder_sequence_length;
        builder.graph().vocabulary = d.vocabulary;
        return builder.finish();
    }

private:
    TensorId embed(std::int64_t tokens) {
        const TensorId x =
            embed_tokens(builder, builder.input("ids", {tokens}, core::DataType::int64), table);
        return builder.dropout("dropout", x, d.dropout);
    }

    ParameterId relative_bias() {
        Parameter parameter;
        parameter.shape = {d.relative_buckets, d.heads};
        parameter.split_dimension = 1;
        return builder.parameter("relative_bias.weight", std::move(parameter));
    }

    void open_layer(const std::string& path, std::int64_t layer) {
        const std::string index = std::to_string(layer);
        builder.begin_unit(path + index);
        builder.open("layers." + index);
    }
    void close_layer() { builder.close(); }

    TensorId attention(TensorId x, TensorId memory, const std::string& name, bool is_causal,
                       ParameterId bias) {
        AttentionLayer layer;
        Attributes& a = layer.attributes;
        a.heads = a.kv_heads = d.heads;
        a.head_dimension = d.head_dimension;
        a.is_causal = is_causal;
        a.is_cross_attention = memory.is_valid();
        a.has_relative_bias = bias.is_valid();
        a.relative_buckets = bias.is_valid() ? d.relative_buckets : 0;
        a.relative_distance = bias.is_valid() ? d.relative_distance : 0;
        a.softmax_scale = 1.0;
        a.probability = d.dropout;
        layer.has_qkv_bias = layer.has_output_bias = false;
        layer.deviation = layer.output_deviation = d.deviation;
        layer.relative_bias = bias;
        const TensorId normed = builder.rms_norm(name + "_norm", x, d.epsilon);
        builder.open(name);
        const TensorId entered = builder.enter("enter", normed);
        TensorId branch = memory.is_valid() ? cross_attention(builder, entered,
                                                              builder.enter("memory_enter", memory), layer)
                                            : self_attention(builder, entered, layer);
        branch = builder.dropout("dropout", builder.exit("exit", branch), d.dropout);
        builder.close();
        return builder.add(name + "_residual", branch, x);
    }

    TensorId mlp(TensorId x) {
        FeedForward layer;
        layer.width = d.ffn;
        layer.activation = d.activation;
        layer.has_bias = false;
        layer.dropout = d.dropout;
        layer.deviation = layer.output_deviation = d.deviation;
        const TensorId normed = builder.rms_norm("mlp_norm", x, d.epsilon);
        builder.open("mlp");
        TensorId branch = builder.exit("exit", feed_forward(builder, builder.enter("enter", normed), layer));
        branch = builder.dropout("dropout", branch, d.dropout);
        builder.close();
        return builder.add("mlp_residual", branch, x);
    }

    const T5Description& d;
    GraphBuilder builder;
    ParameterId table;
};

}  // namespace

ModelGraph build_t5(const T5Description& description) { return T5Builder(description).build(); }

}  // namespace model
