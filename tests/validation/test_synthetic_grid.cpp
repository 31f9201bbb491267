// Facts of the world over a grid of runs that nobody measured: every family, precision, code, parallelism and
// network of the vocabulary of published measurements.
#include "tests/validation/published_figures.h"
#include "tests/validation/synthetic_runs.h"

namespace {

using Of = Ladders::Of;

struct Shape {
    const char* model;
    long long layers, hidden, heads, kv_heads, ffn, vocabulary, tokens;
};
constexpr Shape shapes[] = {{"gpt", 24, 1024, 16, 16, 4096, 50304, 1024},
                            {"gpt", 24, 2048, 16, 16, 8192, 51200, 2048},
                            {"mpt", 24, 2048, 16, 16, 8192, 50368, 2048},
                            {"bloom", 30, 2560, 32, 32, 10240, 250880, 2048},
                            {"llama", 22, 2048, 32, 8, 5632, 32000, 4096},
                            {"internlm", 24, 2048, 16, 16, 5504, 103168, 2048},
                            {"bert_large", 24, 1024, 16, 16, 4096, 30522, 128},
                            {"bert_large_masked", 24, 1024, 16, 16, 4096, 30522, 512},
                            {"bert_base_qa", 12, 768, 12, 12, 3072, 30522, 384},
                            {"bert_megatron", 24, 1024, 16, 16, 4096, 30592, 512},
                            {"moe_gpt_e16", 16, 1024, 16, 16, 8192, 32000, 1024},
                            {"transformer_xl", 16, 512, 8, 8, 2048, 267735, 192},
                            {"t5", 12, 768, 12, 12, 3072, 32128, 512}};
// Words that name kinds of codes, none, and one that nobody knows.
constexpr const char* codes[] = {"",
                                 "PyTorch FSDP",
                                 "PyTorch DDP",
                                 "Megatron-LM 2022",
                                 "Megatron-DeepSpeed 2022",
                                 "DeepSpeed ZeRO-3",
                                 "NeMo-Megatron 23.07",
                                 "torchtitan (FSDP2)",
                                 "fms-fsdp, torch.compile",
                                 "JAX 2024",
                                 "TensorFlow 1 + Horovod",
                                 "MXNet",
                                 "C++ and CUDA",
                                 "a trainer of 1999"};

std::string text(long long n) { return std::to_string(n); }

Cells cells_of(const Shape& s) {
    Cells cells{{"model", s.model},
                {"layers", text(s.layers)},
                {"hidden", text(s.hidden)},
                {"heads", text(s.heads)},
                {"kv_heads", text(s.kv_heads)},
                {"ffn", text(s.ffn)},
                {"vocab", text(s.vocabulary)},
                {"seq_len", text(s.tokens)},
                {"tied_embeddings", s.model == std::string("llama") ? "no" : "yes"}};
    return cells;
}

// Every shape meets a fifth of the codes, every code a fifth of the shapes.
template <class Visit>
void for_each_meeting(Visit visit) {
    for (std::size_t shape = 0; shape < std::size(shapes); ++shape)
        for (std::size_t code = 0; code < std::size(codes); ++code)
            if ((shape + code) % 5 == 0) visit(shapes[shape], codes[code]);
}

bool has_tensor_form(const Shape& s) {
    return std::string(s.model).find("xl") == std::string::npos && std::string(s.model) != "t5";
}

SyntheticRuns on_published_clusters() {
    SyntheticRuns runs;
    runs.take_clusters(published_figures().clusters);
    return runs;
}

// One row for each value of a column.
std::vector<std::size_t> vary(SyntheticRuns& runs, const Cells& base, const char* column,
                              std::initializer_list<const char*> values) {
    std::vector<std::size_t> rows;
    for (const char* value : values) rows.push_back(runs.add(base + Cells{{column, value}}));
    return rows;
}

std::vector<std::size_t> reversed(std::vector<std::size_t> rows) { return {rows.rbegin(), rows.rend()}; }

}  // namespace

TEST_CASE(
    "more layers, wider layers, longer sequences, larger vocabularies and more samples take more time and "
    "memory, whatever the code") {
    SyntheticRuns runs = on_published_clusters();
    Ladders ladders;
    for_each_meeting([&](const Shape& shape, const char* code) {
        const Cells base = cells_of(shape) + Cells{{"framework", code},
                                                   {"cluster", "dgx_a100_80"},
                                                   {"precision", "fp16"},
                                                   {"micro_batch", "2"}};
        const auto scaled = [&](std::initializer_list<std::pair<const char*, long long>> columns) {
            std::vector<std::size_t> rows;
            for (const long long factor : {1, 2}) {
                Cells cells = base;
                for (const auto& [column, value] : columns) cells[column] = text(factor * value);
                rows.push_back(runs.add(cells));
            }
            for (const Of what : {Of::time, Of::memory}) ladders.climb(what, rows, 0);
        };
        scaled({{"layers", shape.layers}});
        scaled({{"hidden", shape.hidden},
                {"heads", shape.heads},
                {"kv_heads", shape.kv_heads},
                {"ffn", shape.ffn}});
        scaled({{"seq_len", shape.tokens}});
        scaled({{"vocab", shape.vocabulary}});
        scaled({{"micro_batch", 2}});
        const auto accumulated = vary(runs, base, "grad_accumulation", {"1", "2", "8"});
        ladders.climb(Of::time, accumulated, 0);
        // The reduction and the update come once a step; summing gradients costs a pass over them that one
        // micro-batch alone does not need.
        ladders.climb(Of::time_a_sample, reversed({accumulated[1], accumulated[2]}), 0);
        // More rows a product: never slower a sample but for waves that fill badly.
        ladders.climb(Of::time_a_sample, reversed(vary(runs, base, "micro_batch", {"1", "4", "16"})), 0.04);
    });
    runs.predict();
    ladders.check(runs);
}

TEST_CASE("recomputing more takes more time and less memory; sharding more takes less memory") {
    SyntheticRuns runs = on_published_clusters();
    Ladders ladders;
    for_each_meeting([&](const Shape& shape, const char* code) {
        const Cells base = cells_of(shape) + Cells{{"framework", code},
                                                   {"cluster", "dgx_a100_80"},
                                                   {"precision", "fp16"},
                                                   {"micro_batch", "2"}};
        const auto recomputed = vary(runs, base, "recompute", {"none", "selective", "full"});
        ladders.climb(Of::time, recomputed, 0.001);
        ladders.climb(Of::memory, reversed(recomputed), 0.001);
        for (const char* micro_batches : {"1", "4"}) {
            // What is sharded also goes through buffers: which kind of sharding is smallest depends on the
            // model, but each is smaller than none.
            const auto sharded =
                vary(runs, base + Cells{{"nodes", "2"}, {"grad_accumulation", micro_batches}}, "sharding",
                     {"none", "optimizer", "gradients", "parameters"});
            for (const std::size_t i : {1, 2, 3}) ladders.climb(Of::memory, {sharded[i], sharded[0]}, 0);
        }
        ladders.climb(Of::memory,
                      reversed(vary(runs, base + Cells{{"nodes", "4"}, {"sharding", "parameters"}},
                                    "shard_degree", {"2", "8", "32"})),
                      0.01);
        const auto optimizers = vary(runs, base, "optimizer", {"sgd", "adam", "lamb"});
        for (const Of what : {Of::time, Of::memory}) ladders.climb(what, optimizers, 0.001);
        const auto attention = vary(runs, base, "attention", {"flash", "fused_softmax", "unfused"});
        if (shape.tokens >= 1024)
            for (const Of what : {Of::time, Of::memory}) ladders.climb(what, attention, 0.001);
    });
    runs.predict();
    ladders.check(runs);
}

TEST_CASE(
    "a step of the same micro-batches never gets shorter with more data-parallel nodes, on any network") {
    SyntheticRuns runs = on_published_clusters();
    Ladders ladders;
    for_each_meeting([&](const Shape& shape, const char* code) {
        for (const auto& [cluster, sharding] :
             {std::pair("selene", "none"), std::pair("p3_16xlarge", "none"),
              std::pair("mosaic_a100_80", "parameters"), std::pair("internlm_a100_80", "optimizer")}) {
            const Cells base = cells_of(shape) + Cells{{"framework", code},
                                                       {"cluster", cluster},
                                                       {"precision", "fp16"},
                                                       {"sharding", sharding}};
            // The share of a sharded update shrinks with the ranks.
            ladders.climb(Of::time, vary(runs, base, "nodes", {"1", "2", "8", "64"}),
                          sharding == std::string("none") ? 0.005 : 0.05);
        }
    });
    runs.predict();
    ladders.check(runs);
}

TEST_CASE("faster devices, links, cards and formats are never slower") {
    SyntheticRuns runs;
    // One machine of eight devices with its cards, changed in one respect at a time. Links as in p3, p4d and
    // p5.
    const Cells machine{{"id", "base"},
                        {"gpu", "A100-80"},
                        {"gpu_memory_gib", "79"},
                        {"gpus_per_node", "8"},
                        {"intra_node", "nvlink3_nvswitch"},
                        {"intra_node_gbs_per_dir", "300"},
                        {"nics_per_node", "4"},
                        {"gbit_per_nic", "100"},
                        {"transport", "infiniband"},
                        {"gpudirect", "yes"}};
    const std::pair<const char*, std::vector<Cells>> steps[] = {
        {"device",
         {{{"gpu", "T4"}}, {{"gpu", "V100"}}, {{"gpu", "A100-40"}}, {{"gpu", "A100-80"}}, {{"gpu", "H100"}}}},
        {"card",
         {{{"gbit_per_nic", "25"}},
          {{"gbit_per_nic", "100"}},
          {{"gbit_per_nic", "200"}},
          {{"gbit_per_nic", "400"}}}},
        {"cards",
         {{{"nics_per_node", "1"}},
          {{"nics_per_node", "2"}},
          {{"nics_per_node", "4"}},
          {{"nics_per_node", "8"}}}},
        {"inside",
         {{{"intra_node", "pcie4"}, {"intra_node_gbs_per_dir", "31.5"}},
          {{"intra_node", "nvlink2_nvswitch"}, {"intra_node_gbs_per_dir", "150"}},
          {{"intra_node_gbs_per_dir", "300"}},
          {{"intra_node_gbs_per_dir", "450"}}}},
        {"transport", {{{"transport", "tcp"}, {"gpudirect", "no"}}, {{"transport", "infiniband"}}}},
        {"gpudirect", {{{"gpudirect", "no"}}, {{"gpudirect", "yes"}}}}};
    Ladders ladders;
    for (const auto& [name, changes] : steps)
        for (std::size_t i = 0; i < changes.size(); ++i)
            runs.add_cluster(machine + changes[i] + Cells{{"id", name + text(static_cast<long long>(i))}});
    for_each_meeting([&](const Shape& shape, const char* code) {
        const Cells base =
            cells_of(shape) +
            Cells{{"framework", code}, {"precision", "fp16"}, {"nodes", "4"}, {"micro_batch", "2"}};
        std::vector<Cells> plans = {{{"sharding", "none"}}, {{"sharding", "parameters"}}};
        if (has_tensor_form(shape)) plans.push_back({{"tensor_parallel", "4"}});
        for (const Cells& plan : plans)
            for (const auto& [name, changes] : steps) {
                std::vector<std::size_t> rows;
                for (std::size_t i = 0; i < changes.size(); ++i)
                    rows.push_back(
                        runs.add(base + plan + Cells{{"cluster", name + text(static_cast<long long>(i))}}));
                // Where the host binds, a faster device leaves it less time to run ahead: 1.2 % in one of the
                // runs (BERT by four tensor ranks on H100 instead of A100).
                ladders.climb(Of::time, reversed(rows), 0.015);
            }
        const Cells one_node = base + Cells{{"nodes", "1"}, {"micro_batch", "4"}};
        ladders.climb(Of::time,
                      reversed(vary(runs, one_node + Cells{{"cluster", "device3"}}, "precision",
                                    {"fp32", "tf32", "bf16"})),
                      0.005);
        ladders.climb(
            Of::time,
            reversed(vary(runs, one_node + Cells{{"cluster", "device1"}}, "precision", {"fp32", "fp16"})),
            0.005);
        ladders.climb(
            Of::time,
            reversed(vary(runs, one_node + Cells{{"cluster", "device0"}}, "precision", {"fp32", "fp16"})),
            0.005);
    });
    runs.predict();
    ladders.check(runs);
}

TEST_CASE(
    "images: recomputation, size, samples and devices have their price, and ranks without a tensor-parallel "
    "form divide the samples") {
    SyntheticRuns runs = on_published_clusters();
    Ladders ladders;
    std::vector<std::pair<std::size_t, std::size_t>> equal;
    const Cells image_models[] = {
        {{"model", "resnet50"}, {"image_size", "224"}, {"micro_batch", "32"}},
        {{"model", "resnet18_cifar"}, {"image_size", "32"}, {"micro_batch", "128"}},
        {{"model", "wide_resnet50"},
         {"layers", "50"},
         {"hidden", "160"},
         {"ffn", "2"},
         {"image_size", "224"},
         {"micro_batch", "16"}},
        {{"model", "ssd300_r50"}, {"image_size", "300"}, {"micro_batch", "16"}},
        {{"model", "mask_rcnn_r50_fpn"}, {"image_size", "800"}, {"micro_batch", "4"}},
        {{"model", "vit_b16"}, {"image_size", "224"}, {"micro_batch", "32"}},
        {{"model", "transformer_xl"},
         {"layers", "16"},
         {"hidden", "512"},
         {"heads", "8"},
         {"kv_heads", "8"},
         {"ffn", "2048"},
         {"vocab", "267735"},
         {"seq_len", "192"},
         {"micro_batch", "16"}}};
    for (const Cells& model : image_models)
        for (const char* code :
             {"PyTorch DDP", "MXNet (NGC)", "TensorFlow 1", "JAX 2024", "a trainer of 1999"}) {
            const Cells base = model + Cells{{"framework", code},
                                             {"optimizer", "sgd"},
                                             {"precision", "fp16"},
                                             {"cluster", "dgx_a100_80"}};
            const auto recomputed = vary(runs, base, "recompute", {"none", "selective", "full"});
            ladders.climb(Of::time, recomputed, 0.001);
            ladders.climb(Of::memory, reversed(recomputed), 0.001);
            const long long samples = std::stoll(model.at("micro_batch"));
            std::vector<std::size_t> batches, dividing;
            for (const long long times : {1, 2, 4})
                batches.push_back(runs.add(base + Cells{{"micro_batch", text(times * samples)}}));
            ladders.climb(Of::time, batches, 0);
            ladders.climb(Of::memory, batches, 0);
            ladders.climb(Of::time_a_sample, reversed(batches), 0.02);
            for (const long long ranks : {1, 2, 4, 8})
                dividing.push_back(runs.add(
                    base + Cells{{"tensor_parallel", text(ranks)}, {"micro_batch", text(ranks * samples)}}));
            // The same samples on every device and the same gradients summed over all eight.
            for (const std::size_t row : dividing) equal.emplace_back(dividing[0], row);
            // Seven samples on four ranks take as long as eight: one rank has two.
            equal.emplace_back(runs.add(base + Cells{{"tensor_parallel", "4"}, {"micro_batch", "7"}}),
                               runs.add(base + Cells{{"tensor_parallel", "4"}, {"micro_batch", "8"}}));
            if (model.contains("image_size") && model.at("model") != "ssd300_r50") {
                const auto sizes = std::vector{
                    runs.add(base),
                    runs.add(base + Cells{{"image_size", text(2 * std::stoll(model.at("image_size")))}})};
                for (const Of what : {Of::time, Of::memory}) ladders.climb(what, sizes, 0);
            }
            ladders.climb(Of::time, reversed(vary(runs, base, "precision", {"fp32", "tf32", "fp16"})), 0.005);
            ladders.climb(Of::time,
                          reversed(vary(runs, base + Cells{{"cluster", "dgx1_v100_32"}}, "precision",
                                        {"fp32", "fp16"})),
                          0.005);
            ladders.climb(Of::time,
                          reversed(vary(runs, base + Cells{{"gpus_per_node", "4"}}, "cluster",
                                        {"g4dn_12xlarge", "dgx1_v100_32", "dgx_a100_80", "mosaic_h100"})),
                          0.005);
            ladders.climb(Of::time,
                          vary(runs, base + Cells{{"cluster", "selene"}}, "nodes", {"1", "2", "8", "32"}),
                          0.005);
        }
    runs.predict();
    ladders.check(runs);
    for (const auto& [one, other] : equal) {
        INFO(runs.describe(one) << " and " << runs.describe(other));
        CHECK(runs.seconds(other) == Approx(runs.seconds(one)).epsilon(1e-3));
    }
}

TEST_CASE("every plan of the vocabulary is predicted at a share of the device's peak that is possible") {
    SyntheticRuns runs = on_published_clusters();
    std::vector<double> least;  // seconds: all products at the peak
    Ladders ladders;
    int count = 0;  // a fifth of the combinations
    const Shape large[] = {{"gpt", 48, 8192, 64, 64, 32768, 51200, 2048},
                           {"llama", 48, 8192, 64, 8, 28672, 128256, 4096},
                           {"bloom", 48, 14336, 112, 112, 57344, 250880, 2048},
                           {"mpt", 48, 7168, 56, 56, 28672, 50368, 2048}};
    struct Place {
        const char *cluster, *precision;
        double peak;  // FLOP/s of the datasheet, dense
    };
    const Place places[] = {{"selene", "fp16", 312e12},         {"jeanzay_a100", "bf16", 312e12},
                            {"mosaic_h100", "bf16", 989e12},    {"mosaic_h100", "fp8", 1979e12},
                            {"dlperf_v100_16", "fp16", 125e12}, {"p3_16xlarge", "fp32", 15.7e12}};
    for (const Shape& shape : large)
        for (const Place& place : places)
            for (const char* code : {"", "Megatron-LM 2022", "DeepSpeed ZeRO-3", "PyTorch FSDP", "JAX 2024",
                                     "a trainer of 1999"}) {
                if (++count % 5 != 0) continue;
                const Cells base =
                    cells_of(shape) +
                    Cells{{"framework", code}, {"cluster", place.cluster}, {"precision", place.precision}};
                const double width = static_cast<double>(shape.hidden),
                             inner = static_cast<double>(shape.ffn);
                const double kept = static_cast<double>(shape.kv_heads) / static_cast<double>(shape.heads);
                // Multiply-adds a token: projections and MLP of every layer (three matrices where it is
                // gated), logits. Two FLOPs each, three passes.
                const double token = static_cast<double>(shape.layers) *
                                         (2 * width * width + 2 * kept * width * width +
                                          (shape.model == std::string("llama") ? 3 : 2) * width * inner) +
                                     width * static_cast<double>(shape.vocabulary);
                const auto plan = [&](const Cells& cells) {
                    const Cells row = base + cells;
                    const std::size_t i = runs.add(row);
                    const auto number = [&](const char* column, double otherwise) {
                        return row.contains(column) ? std::stod(row.at(column)) : otherwise;
                    };
                    // Samples of a device: the global batch over all devices = micro_batch x accumulation /
                    // (tensor x pipeline).
                    const double samples = number("micro_batch", 1) * number("grad_accumulation", 1) /
                                           number("tensor_parallel", 1) / number("pipeline_parallel", 1);
                    least.push_back(6 * token * static_cast<double>(shape.tokens) * samples / place.peak);
                    return i;
                };
                for (const char* sequence_parallel : {"no", "yes"})
                    plan({{"nodes", "8"},
                          {"tensor_parallel", "8"},
                          {"pipeline_parallel", "8"},
                          {"grad_accumulation", "32"},
                          {"sequence_parallel", sequence_parallel},
                          {"recompute", "full"}});
                // The same samples a device: a layer cut over two nodes is never faster than within one.
                if (shape.kv_heads % 16 == 0) {
                    const std::size_t inside = plan({{"nodes", "1"},
                                                     {"tensor_parallel", "8"},
                                                     {"micro_batch", "4"},
                                                     {"recompute", "full"}});
                    const std::size_t across = plan({{"nodes", "2"},
                                                     {"tensor_parallel", "16"},
                                                     {"micro_batch", "8"},
                                                     {"recompute", "full"}});
                    ladders.climb(Of::time, {inside, across}, 0);
                }
                const std::size_t plain = plan({{"nodes", "6"},
                                                {"tensor_parallel", "8"},
                                                {"pipeline_parallel", "6"},
                                                {"grad_accumulation", "12"},
                                                {"recompute", "selective"}});
                plan({{"nodes", "6"},
                      {"tensor_parallel", "8"},
                      {"pipeline_parallel", "6"},
                      {"grad_accumulation", "12"},
                      {"virtual_stages", "4"},
                      {"recompute", "selective"}});
                const std::size_t longer = plan({{"nodes", "6"},
                                                 {"tensor_parallel", "8"},
                                                 {"pipeline_parallel", "6"},
                                                 {"grad_accumulation", "48"},
                                                 {"recompute", "selective"}});
                ladders.climb(Of::time_a_sample, {longer, plain}, 0);
                const std::size_t split = plan({{"nodes", "6"},
                                                {"tensor_parallel", "8"},
                                                {"pipeline_parallel", "6"},
                                                {"grad_accumulation", "12"},
                                                {"schedule", "zb-h1"}});
                const std::size_t split_more = plan({{"nodes", "6"},
                                                     {"tensor_parallel", "8"},
                                                     {"pipeline_parallel", "6"},
                                                     {"grad_accumulation", "12"},
                                                     {"schedule", "zb-h2"}});
                const std::size_t whole = plan({{"nodes", "6"},
                                                {"tensor_parallel", "8"},
                                                {"pipeline_parallel", "6"},
                                                {"grad_accumulation", "12"}});
                ladders.climb(Of::time, {split, whole}, 0.005);
                ladders.climb(Of::time, {split_more, split}, 0.005);
                ladders.climb(Of::memory, {split, split_more}, 0);
                for (const char* nodes : {"4", "64"}) {
                    plan({{"nodes", nodes},
                          {"sharding", "parameters"},
                          {"recompute", "full"},
                          {"micro_batch", "2"}});
                    plan({{"nodes", nodes},
                          {"sharding", "parameters"},
                          {"shard_degree", "8"},
                          {"recompute", "full"},
                          {"micro_batch", "2"}});
                    plan({{"nodes", nodes},
                          {"sharding", "optimizer"},
                          {"tensor_parallel", "8"},
                          {"micro_batch", "2"},
                          {"attention", "flash"}});
                }
            }
    runs.predict();
    ladders.check(runs);
    for (std::size_t i = 0; i < runs.size(); ++i) {
        INFO(runs.describe(i));
        REQUIRE(runs.is_predicted(i));
        CHECK(runs.seconds(i) > least[i]);
        // ZeRO-3 over one card of 100 or 25 Gbit/s a node is slow, but nothing is a thousand times slower
        // than its products.
        CHECK(runs.seconds(i) < 1000 * least[i]);
        CHECK(runs.peak_gib(i) > 0.5);
    }
}

TEST_CASE(
    "an unknown code is predicted like others of its plan: within a factor of two of what no word at all "
    "gives") {
    SyntheticRuns runs = on_published_clusters();
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const Shape& shape : shapes)
        for (const auto& [cluster, precision] :
             {std::pair("dgx1_v100_32", "fp16"), std::pair("dgx_a100_80", "bf16"),
              std::pair("mosaic_h100", "bf16"), std::pair("g4dn_12xlarge", "fp32")})
            for (const Cells& plan :
                 std::vector<Cells>{{{"micro_batch", "8"}},
                                    {{"nodes", "2"}, {"micro_batch", "4"}, {"sharding", "parameters"}}}) {
                const Cells base =
                    cells_of(shape) + plan +
                    Cells{{"cluster", cluster}, {"precision", precision}, {"gpus_per_node", "4"}};
                pairs.emplace_back(runs.add(base),
                                   runs.add(base + Cells{{"framework", "a trainer of 1999"}}));
            }
    runs.predict();
    for (const auto& [nothing, unknown] : pairs) {
        INFO(runs.describe(unknown));
        REQUIRE(runs.is_predicted(nothing));
        REQUIRE(runs.is_predicted(unknown));
        CHECK(runs.seconds(unknown) / runs.seconds(nothing) == Approx(1).epsilon(1.0));
        CHECK(runs.seconds(nothing) / runs.seconds(unknown) == Approx(1).epsilon(1.0));
    }
}

TEST_CASE(
    "what nothing is stated of, and what newer software and formats do, is never slower on newer devices") {
    SyntheticRuns runs = on_published_clusters();
    runs.add_cluster({{"id", "h200"},
                      {"gpu", "H200"},
                      {"gpu_memory_gib", "140.4"},
                      {"gpus_per_node", "8"},
                      {"intra_node", "nvlink4_nvswitch"},
                      {"intra_node_gbs_per_dir", "450"},
                      {"nics_per_node", "8"},
                      {"gbit_per_nic", "400"},
                      {"transport", "infiniband"},
                      {"gpudirect", "yes"}});
    Ladders ladders;
    std::vector<Cells> models;
    for (const Shape& shape : shapes) models.push_back(cells_of(shape) + Cells{{"micro_batch", "4"}});
    for (const char* model : {"resnet50", "ssd300_r50", "mask_rcnn_r50_fpn"})
        models.push_back({{"model", model}, {"optimizer", "sgd"}, {"micro_batch", "16"}});
    for (const Cells& model : models)
        for (const char* nodes : {"1", "4"}) {
            const Cells base = model + Cells{{"nodes", nodes}};
            for (const char* precision : {"fp16", "fp32"})
                ladders.climb(
                    Of::time,
                    reversed(vary(runs, base + Cells{{"precision", precision}, {"gpus_per_node", "4"}},
                                  "cluster",
                                  {"g4dn_12xlarge", "dgx1_v100_32", "mosaic_a100_40", "dgx_a100_80",
                                   "mosaic_h100", "h200"})),
                    0.005);
            for (const char* cluster : {"mosaic_h100", "h200"})
                ladders.climb(Of::time,
                              reversed(vary(runs, base + Cells{{"cluster", cluster}}, "precision",
                                            {"fp32", "tf32", "bf16"})),
                              0.005);
            const bool is_language_model = model.contains("layers");
            if (!is_language_model) continue;
            for (const char* cluster : {"dgx_a100_80", "mosaic_h100"})
                for (const char* code : {"PyTorch FSDP", "PyTorch DDP"})
                    ladders.climb(
                        Of::time,
                        {runs.add(base + Cells{{"cluster", cluster},
                                               {"framework", std::string(code) + ", torch.compile"}}),
                         runs.add(base + Cells{{"cluster", cluster}, {"framework", code}})},
                        0.005);
        }
    // Casts to fp8 pay where products are large.
    for (const char* code : {"", "NeMo-Megatron 23.11", "Megatron-LM 2024", "PyTorch FSDP"})
        ladders.climb(Of::time,
                      reversed(vary(runs,
                                    Cells{{"model", "gpt"},
                                          {"layers", "8"},
                                          {"hidden", "8192"},
                                          {"heads", "64"},
                                          {"kv_heads", "64"},
                                          {"ffn", "32768"},
                                          {"vocab", "51200"},
                                          {"seq_len", "2048"},
                                          {"framework", code},
                                          {"cluster", "mosaic_h100"},
                                          {"tensor_parallel", "4"},
                                          {"micro_batch", "2"}},
                                    "precision", {"bf16", "fp8"})),
                      0);
    // Counts of nodes of every kind over TCP.
    for (const Cells& model : models)
        for (const char* code : {"", "PyTorch DDP", "TensorFlow 1 + Horovod"})
            ladders.climb(Of::time,
                          vary(runs,
                               model + Cells{{"framework", code},
                                             {"cluster", "g4dn_12xlarge"},
                                             {"gpus_per_node", "4"},
                                             {"precision", "fp16"}},
                               "nodes", {"1", "2", "3", "5", "6", "12", "24"}),
                          0.005);
    runs.predict();
    ladders.check(runs);
}

TEST_CASE(
    "cells that are left open, and plans beyond what an operator allows, are predicted as what is usual or "
    "nearest") {
    SyntheticRuns runs = on_published_clusters();
    std::vector<std::pair<std::size_t, std::size_t>> equal;
    const Cells gpt = cells_of(shapes[0]) + Cells{{"cluster", "dgx_a100_80"}},
                image = Cells{{"model", "resnet50"}, {"cluster", "dgx_a100_80"}, {"micro_batch", "16"}};
    equal.emplace_back(runs.add(gpt + Cells{{"optimizer", ""}}),
                       runs.add(gpt + Cells{{"optimizer", "adam"}}));
    equal.emplace_back(runs.add(image + Cells{{"optimizer", ""}}),
                       runs.add(image + Cells{{"optimizer", "sgd"}}));
    // BERT's pooler reads the first token of every sample: its tokens are not divided.
    for (const Shape& shape : shapes) {
        if (std::string(shape.model).find("bert") == std::string::npos) continue;
        const Cells bert =
            cells_of(shape) +
            Cells{{"cluster", "mosaic_h100"}, {"tensor_parallel", "4"}, {"framework", "NeMo-Megatron 23.11"}};
        equal.emplace_back(runs.add(bert + Cells{{"sequence_parallel", "yes"}}), runs.add(bert));
    }
    runs.predict();
    for (const auto& [open, stated] : equal) {
        INFO(runs.describe(open));
        REQUIRE(runs.is_predicted(open));
        CHECK(runs.seconds(open) == runs.seconds(stated));
    }
}
