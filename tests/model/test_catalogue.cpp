// The catalogue against published integers.
#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>
#include <sstream>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "model/load.h"
#include "model/operators/cost.h"
#include "model/reader/catalogue.h"

namespace {

model::ModelGraph loaded(const std::string& name, const model::LoadOptions& options = {}) {
    core::Diagnostics diagnostics;
    const auto graph = model::load_model(name, options, diagnostics);
    INFO(name << "\n" << core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

}  // namespace

TEST_CASE("every catalogue entry builds a sound graph and counts its published parameters exactly") {
    const std::vector<std::string> names = model::catalogue_names();
    REQUIRE(names.size() > 70);
    for (const std::string& name : names) {
        core::Diagnostics diagnostics;
        const auto entry = model::catalogue_entry(name, diagnostics);
        REQUIRE(entry);
        REQUIRE(entry->find("source"));
        const model::ModelGraph graph = loaded(name);
        if (const core::Value* published = entry->find("published_parameters")) {
            INFO(name);
            CHECK(model::parameter_count(graph) == published->integer());
        }
    }
}

TEST_CASE("a wide ResNet whose 3x3 convolutions alone are wider counts its own parameters") {
    // A bottleneck of f planes and width 2 is 4f x f (1x1), f x 2f (3x3) and 2f x 4f (1x1): 4 + 18 + 8 = 30
    // f^2, where torchvision's is 8 + 36 + 8 = 52 f^2. Blocks by stage: 3, 4, 6 and 3, each stage twice as
    // wide as the one before.
    const auto parameters = [](bool widens_reduction) {
        model::LoadOptions options;
        core::Diagnostics diagnostics;
        const auto table = core::parse_toml(
            "family = \"resnet\"\ndepth = 50\nimage_size = 224\nbase_channels = 160\nwidth_factor = 2\n"
            "classes = 1024\n" +
                std::string(widens_reduction ? "" : "widens_reduction = false\n"),
            "wide.toml", diagnostics);
        REQUIRE(table);
        const auto graph = model::load_model(*table, options, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(graph);
        return static_cast<double>(model::parameter_count(*graph));
    };
    // Scale and shift of the norms differ too: 2 f a block.
    const double squares = 160.0 * 160.0 * (3 + 4 * 4 + 6 * 16 + 3 * 64), planes = 160.0 * (3 + 8 + 24 + 24);
    // First blocks of the stages after the first have an input of 2f channels instead of 4f, the first of all
    // one of f: the 1x1 that reads it is f (2f) narrower for each plane it writes.
    const double first = 160.0 * 160.0 * (3 * 1 + 2 * (4 + 16 + 64));
    CHECK(parameters(true) - parameters(false) == 22 * squares - first + 2 * planes);
    // alpa-projects/alpa, benchmark/alpa/suite_paper_wresnet.py calls it "250M".
    CHECK(parameters(false) == Approx(250e6).epsilon(0.02));
}

TEST_CASE("every name of the shared list is in the catalogue with its published count") {
    std::ifstream file(SHARED_DIR "/reference/models.csv");
    if (!file) {
        WARN("skipped: no shared reference/models.csv");
        return;
    }
    std::string line;
    std::getline(file, line);
    int published = 0, rows = 0;
    while (std::getline(file, line)) {
        const std::string name = line.substr(0, line.find(','));
        INFO(name);
        const model::ModelGraph graph = loaded(name);
        ++rows;
        const std::string count = line.substr(line.rfind(',') + 1);
        if (count.find_first_of("0123456789") == std::string::npos) continue;
        CHECK(model::parameter_count(graph) == std::stoll(count));
        ++published;
    }
    CHECK(rows >= 71);
    CHECK(published >= 14);
}

TEST_CASE("a 3D U-Net has its paper's parameters beside the norms, and torch's FLOPs") {
    const model::ModelGraph graph = loaded("unet3d-xenopus");
    // Channels behind each of the fourteen convolutions; a norm has a scale and a shift of each.
    const std::int64_t channels = 32 + 64 + 64 + 128 + 128 + 256 + 256 + 512 + 2 * 256 + 2 * 128 + 2 * 64;
    CHECK(model::parameter_count(graph) == 19069955 + 2 * channels);
    for (const model::Operator& op : graph.operators)
        if (op.name == "head.scores")
            CHECK(graph.tensor(op.output).shape == std::vector<std::int64_t>{3, 44, 44, 28});
    // torch 2.15.0's FlopCounterMode over the same layers of torch.nn on the meta device, 2026-11-23.
    const double flops =
        model::phase_cost(graph, {0, core::count_of(graph.operators)}, model::Phase::forward, {}).flops.value;
    CHECK(std::abs(flops / 533462036992.0 - 1) < 1e-3);
}

TEST_CASE("a volume that does not go through a U-Net's levels is refused") {
    const auto errors = [](const std::string& keys) {
        core::Diagnostics diagnostics;
        const auto table = core::parse_toml("family = \"unet3d\"\n" + keys, "unet.toml", diagnostics);
        REQUIRE(table);
        model::load_model(*table, {}, diagnostics);
        return core::format(diagnostics);
    };
    CHECK(errors("volume = [132, 132, 116]").empty());
    CHECK(errors("volume = [128, 64, 8]\npadded = true").empty());
    CHECK_THAT(errors("volume = [130, 132, 116]"), Catch::Matchers::Contains("an extent of 130 does not"));
    CHECK_THAT(errors("volume = [132, 132]"), Catch::Matchers::Contains("has 2 extents"));
}

TEST_CASE("a step of an LSTM reads two matrices of four gates a layer") {
    const model::ModelGraph graph = loaded("lstm-ptb-large");
    const double per_token = 2 * (2 * 4 * 1500.0 * (1500 + 1500) + 1500.0 * 10000);
    const double flops =
        model::phase_cost(graph, {0, core::count_of(graph.operators)}, model::Phase::forward, {}).flops.value;
    CHECK(std::abs(flops / (35 * per_token) - 1) < 1e-3);
}

TEST_CASE("YOLOv4 has the operations that darknet prints for its convolutions") {
    const model::ModelGraph graph = loaded("yolov4");
    // AlexeyAB/darknet, yolov4.cfg at 608 pixels: "Total BFLOPS 128.459".
    const double flops =
        model::phase_cost(graph, {0, core::count_of(graph.operators)}, model::Phase::forward, {}).flops.value;
    CHECK(std::abs(flops / 128.459e9 - 1) < 1e-3);
}
