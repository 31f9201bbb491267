#include "model/builder/encoder_decoder.h"

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

using Stack = EncoderDecoderDescription::Stack;

// Convolutions over time, kernels of three frames (arXiv 2212.04356, section 2.2).
constexpr std::int64_t audio_kernel = 3;

class EncoderDecoderBuilder {
public:
    explicit EncoderDecoderBuilder(const EncoderDecoderDescription& description)
        : d_(description), builder_(d_.name, d_.family) {}

    ModelGraph build() {
        builder_.begin_unit("encoder.embedding");
        builder_.open("encoder");
        builder_.open("embedding");
        TensorId x = d_.mel_bins > 0 ? embed_audio() : embed(d_.encoder);
        builder_.close();
        for (std::int64_t layer = 0; layer < d_.encoder.layers; ++layer) {
            open_layer("encoder", layer);
            x = attention(x, {}, d_.encoder, "attention", false);
            x = mlp(x, d_.encoder);
            builder_.close();
        }
        // Encoder and decoder are joined in one unit: the encoder's final norm and the decoder's embedding.
        builder_.begin_unit("decoder.embedding");
        const TensorId memory = final_norm(x);
        builder_.close();
        builder_.open("decoder");
        builder_.open("embedding");
        x = embed(d_.decoder);
        builder_.close();
        for (std::int64_t layer = 0; layer < d_.decoder.layers; ++layer) {
            open_layer("decoder", layer);
            x = attention(x, {}, d_.decoder, "attention", true);
            x = attention(x, memory, d_.decoder, "cross_attention", false);
            x = mlp(x, d_.decoder);
            builder_.close();
        }
        builder_.begin_unit("head");
        x = final_norm(x);
        builder_.close();
        head(x);
        builder_.graph().tokens_per_sample = d_.decoder.sequence_length;
        builder_.graph().encoder_tokens_per_sample = d_.encoder.sequence_length;
        builder_.graph().vocabulary = d_.vocabulary;
        return builder_.finish();
    }

private:
    void open_layer(const std::string& stack, std::int64_t layer) {
        const std::string index = std::to_string(layer);
        builder_.begin_unit(stack + ".layers." + index);
        builder_.open("layers." + index);
    }

    TensorId final_norm(TensorId x) {
        return d_.has_norms_before ? builder_.layer_norm("norm", x, d_.epsilon) : x;
    }

    TensorId embed(const Stack& stack) {
        // One table for encoder, decoder and head.
        if (!table_.is_valid()) table_ = token_table(builder_, d_.vocabulary, d_.hidden, d_.deviation);
        TensorId x = embed_tokens(
            builder_, builder_.input("ids", {stack.sequence_length}, core::DataType::int64), table_);
        if (d_.scales_embeddings) x = builder_.elementwise("scale", {x});
        x = builder_.position_embedding("positions", x, stack.positions + d_.position_offset,
                                        d_.position_offset, d_.deviation);
        if (d_.has_embedding_norm) x = builder_.layer_norm("norm", x, d_.epsilon);
        return builder_.dropout("dropout", x, d_.dropout);
    }

    TensorId audio_convolution(const std::string& name, TensorId x, std::int64_t stride) {
        builder_.open(name);
        Parameter weight, bias;
        weight.shape = {d_.hidden, builder_.shape(x)[0], audio_kernel};
        weight.deviation = d_.deviation;
        bias.shape = {d_.hidden};
        bias.initialization = Initialization::zeros;
        bias.decays = false;
        Attributes a;
        a.has_bias = true;
        a.stride = stride;
        a.padding = audio_kernel / 2;
        const std::int64_t frames = builder_.shape(x)[1] / stride;
        x = builder_.general(
            OperatorKind::convolution, "convolution", {x},
            {builder_.parameter("weight", std::move(weight)), builder_.parameter("bias", std::move(bias))},
            {d_.hidden, frames}, a, true, core::DataType::fp32);
        x = builder_.unary(OperatorKind::gelu, "gelu", x);
        builder_.close();
        return x;
    }

    TensorId embed_audio() {
        TensorId x = builder_.input("spectrogram", {d_.mel_bins, 2 * d_.encoder.sequence_length},
                                    core::DataType::fp32);
        x = audio_convolution("first", x, 1);
        x = audio_convolution("second", x, 2);
        x = builder_.reshape(OperatorKind::transpose, "frames", x);
        return builder_.dropout("dropout", builder_.elementwise("positions", {x}), d_.dropout);
    }

    TensorId attention(TensorId x, TensorId memory, const Stack& stack, const std::string& name,
                       bool is_causal) {
        AttentionLayer layer;
        Attributes& a = layer.attributes;
        a.heads = a.kv_heads = stack.heads;
        a.head_dimension = d_.hidden / stack.heads;
        a.is_causal = is_causal;
        a.is_cross_attention = memory.is_valid();
        a.probability = d_.attention_dropout;
        layer.has_key_bias = d_.has_key_bias;
        layer.deviation = layer.output_deviation = d_.deviation;
        const TensorId read = before(name, x);
        builder_.open(name);
        const TensorId entered = builder_.enter("enter", read);
        const TensorId branch =
            memory.is_valid()
                ? cross_attention(builder_, entered, builder_.enter("memory_enter", memory), layer)
                : self_attention(builder_, entered, layer);
        return residual(name, branch, x);
    }

    TensorId mlp(TensorId x, const Stack& stack) {
        FeedForward layer;
        layer.width = stack.ffn;
        layer.activation = d_.activation;
        layer.dropout = d_.activation_dropout;
        layer.deviation = layer.output_deviation = d_.deviation;
        const TensorId read = before("mlp", x);
        builder_.open("mlp");
        return residual("mlp", feed_forward(builder_, builder_.enter("enter", read), layer), x);
    }

    TensorId before(const std::string& name, TensorId x) {
        return d_.has_norms_before ? builder_.layer_norm(name + "_norm", x, d_.epsilon) : x;
    }
    // Leaves the branch's module and adds it to x.
    TensorId residual(const std::string& name, TensorId branch, TensorId x) {
        branch = builder_.dropout("dropout", builder_.exit("exit", branch), d_.dropout);
        builder_.close();
        x = builder_.add(name + "_residual", branch, x);
        return d_.has_norms_before ? x : builder_.layer_norm(name + "_norm", x, d_.epsilon);
    }

    void head(TensorId x) {
        builder_.open("head");
        LinearOptions options;
        options.split = LinearOptions::Split::column;
        options.has_bias = false;
        options.tied_weight = table_;
        const TensorId logits = builder_.linear("logits", builder_.enter("enter", x), d_.vocabulary, options);
        builder_.loss(logits, builder_.input("labels", {d_.decoder.sequence_length}, core::DataType::int64));
        builder_.close();
    }

    const EncoderDecoderDescription& d_;
    GraphBuilder builder_;
    ParameterId table_;
};

}  // namespace

ModelGraph build_encoder_decoder(const EncoderDecoderDescription& description) {
    return EncoderDecoderBuilder(description).build();
}

}  // namespace model
