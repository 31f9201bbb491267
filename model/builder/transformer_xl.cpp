#include "model/builder/transformer_xl.h"

#include <algorithm>
#include <vector>

#include "model/builder/transformer_layer.h"

namespace model {

namespace {

// Part of the running words of WikiText-103 that lies in each cluster. By Zipf's law with exponent 1 over
// 267,735 words the first 20,000 would hold 79 %, the next ranges 5, 12 and 2 %; the corpus is more top-heavy
// (its frequent words are function words and <unk>), so these are rounded towards the head.
constexpr double cluster_shares[] = {0.88, 0.05, 0.06, 0.01};

struct Cluster {
    std::int64_t words = 0, width = 0;
    ParameterId table, projection;
};

LinearOptions without_bias(double deviation) {
    LinearOptions options;
    options.has_bias = false;
    options.deviation = deviation;
    return options;
}

// Words outside a cluster read a row of zeros of its table, so the clusters' embeddings add up.
TensorId embed(GraphBuilder& builder, TensorId ids, std::vector<Cluster>& clusters,
               const TransformerXlDescription& d) {
    TensorId sum;
    for (std::size_t c = 0; c < clusters.size(); ++c) {
        Cluster& cluster = clusters[c];
        builder.open("cluster" + std::to_string(c));
        Parameter table;
        table.shape = {cluster.words, cluster.width};
        table.deviation = d.deviation;
        cluster.table = builder.parameter("table.weight", std::move(table));
        TensorId x = builder.embedding("table", ids, cluster.table);
        if (cluster.width != d.hidden || d.width_divisor > 1)
            x = builder.linear("projection", x, d.hidden, without_bias(d.deviation));
        builder.close();
        sum = c == 0 ? x : builder.add("sum" + std::to_string(c), sum, x);
    }
    return sum;
}

// The head scores its own words for every token; a tail its words for the tokens that are in it (Grave et
// al., arXiv 1609.04309).
void adaptive_loss(GraphBuilder& builder, TensorId x, const std::vector<Cluster>& clusters,
                   const TransformerXlDescription& d) {
    TensorId total;
    for (std::size_t c = 0; c < clusters.size(); ++c) {
        const Cluster& cluster = clusters[c];
        builder.open("cluster" + std::to_string(c));
        std::int64_t rows = d.sequence_length;
        TensorId y = x;
        if (c > 0) {
            rows = std::max<std::int64_t>(
                1, static_cast<std::int64_t>(cluster_shares[c] * d.sequence_length + 0.5));
            y = builder.select_positions("select", x,
                                         builder.input("positions", {rows}, core::DataType::int64));
        }
        if (d.width_divisor > 1)
            y = builder.linear("projection", y, cluster.width, without_bias(d.deviation));
        LinearOptions logits;
        logits.deviation = d.deviation;
        logits.tied_weight = cluster.table;
        const TensorId loss = builder.loss(builder.linear("logits", y, cluster.words, logits),
                                           builder.input("labels", {rows}, core::DataType::int64));
        builder.close();
        total = c == 0 ? loss : builder.add("sum" + std::to_string(c), total, loss);
    }
}

}  // namespace

ModelGraph build_transformer_xl(const TransformerXlDescription& d) {
    GraphBuilder builder(d.name, d.family);
    std::vector<Cluster> clusters;
    std::int64_t begin = 0, width = d.hidden;
    for (std::size_t c = 0; c <= std::size(cluster_ends) && begin < d.vocabulary; ++c) {
        const std::int64_t end =
            c < std::size(cluster_ends) ? std::min(cluster_ends[c], d.vocabulary) : d.vocabulary;
        clusters.push_back({end - begin, std::max<std::int64_t>(1, width), {}, {}});
        begin = end;
        width /= d.width_divisor;
    }

    builder.begin_unit("embedding");
    builder.open("embedding");
    TensorId x =
        embed(builder, builder.input("ids", {d.sequence_length}, core::DataType::int64), clusters, d);
    x = builder.dropout("dropout", x, d.dropout);
    builder.close();

    Attributes attention;
    attention.heads = attention.kv_heads = d.heads;
    attention.head_dimension = d.hidden / d.heads;
    attention.has_relative_positions = true;
    attention.probability = d.attention_dropout;
    FeedForward mlp;
    mlp.width = d.ffn;
    mlp.activation = Activation::relu;
    mlp.dropout = d.dropout;
    mlp.has_region = false;
    mlp.deviation = mlp.output_deviation = d.deviation;
    builder.open("layers");
    for (std::int64_t layer = 0; layer < d.layers; ++layer) {
        const std::string index = std::to_string(layer);
        builder.begin_unit("layers." + index);
        builder.open(index);
        builder.open("attention");
        const TensorId memory = builder.input("memory", {d.memory_length, d.hidden}, core::DataType::fp16);
        LinearOptions packed = without_bias(d.deviation);
        const TensorId own = builder.linear("qkv", x, 3 * d.hidden, packed);
        packed.tied_weight = builder.graph().op(builder.graph().tensor(own).producer).parameters[0];
        const TensorId remembered = builder.linear("memory_qkv", memory, 3 * d.hidden, packed);
        Parameter positions;
        positions.shape = {d.hidden, d.hidden};
        positions.deviation = d.deviation;
        const TensorId context = builder.attention(
            "core", own, remembered, attention, builder.parameter("positions.weight", std::move(positions)));
        TensorId branch = builder.dropout(
            "dropout", builder.linear("output", context, d.hidden, without_bias(d.deviation)), d.dropout);
        builder.close();
        x = builder.layer_norm("attention_norm", builder.add("attention_residual", branch, x), d.epsilon);
        builder.open("mlp");
        branch = builder.dropout("dropout", feed_forward(builder, x, mlp), d.dropout);
        builder.close();
        x = builder.layer_norm("mlp_norm", builder.add("mlp_residual", branch, x), d.epsilon);
        builder.close();
    }
    builder.close();

    builder.begin_unit("head");
    builder.open("head");
    adaptive_loss(builder, builder.dropout("dropout", x, d.dropout), clusters, d);
    builder.close();
    builder.graph().tokens_per_sample = d.sequence_length;
    builder.graph().vocabulary = d.vocabulary;
    return builder.finish();
}

}  // namespace model
