#include <fmt/core.h>
#include <catch2/catch.hpp>

#include <regex>
#include <sstream>
#include <string>

#include "core/diagnostics.h"
#include "core/document.h"
#include "validation/measured/flops_profile.h"
#include "validation/measured/measured_file.h"
#include "validation/measured/step_comparison.h"

namespace {

using validation::FlopsProfile;
using validation::MeasuredStep;
using validation::StepKind;

std::string fixture(const std::string& name) { return std::string(SOURCE_DIR) + "/tests/validation/" + name; }

std::string text_of_file(const std::string& name) {
    core::Diagnostics diagnostics;
    const auto text = core::read_file(fixture(name), diagnostics);
    REQUIRE(text);
    return *text;
}

FlopsProfile profile_of(const std::string& text) {
    core::Diagnostics diagnostics;
    const auto profile = validation::read_flops_profile(text, "report.txt", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(profile);
    return *profile;
}

std::string refusal_of(const std::string& text) {
    core::Diagnostics diagnostics;
    CHECK_FALSE(validation::read_flops_profile(text, "report.txt", diagnostics));
    return core::format(diagnostics);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
    const std::size_t at = text.find(what);
    REQUIRE(at != std::string::npos);
    return text.replace(at, what.size(), by);
}

// Seconds of every line of one class, read another way.
double latencies_of(const std::string& text, const std::string& class_name) {
    const std::regex line("\\): " + class_name + "\\(.*% MACs, ([0-9.]+) (m|u)s = ");
    double sum = 0;
    for (auto found = std::sregex_iterator(text.begin(), text.end(), line); found != std::sregex_iterator();
         ++found)
        sum += std::stod((*found)[1]) * ((*found)[2] == "m" ? 1e-3 : 1e-6);
    return sum;
}

// A report by hand of the tree's lines alone.
std::string report_of(const std::string& tree) {
    return "---- DeepSpeed Flops Profiler ----\n---- Detailed Profile per GPU ----\n" + tree;
}
std::string figures(const std::string& latency) {
    return "1 K = 1% Params, 2 MMACs = 1% MACs, " + latency + " = 1% latency, 3 GFLOPS";
}

}  // namespace

// flops_profile.txt: FlopsProfiler of DeepSpeed 0.19.8 with torch 2.15.0, on a CPU, 2026-11-24; a GPT of two
// layers, hidden size 128, 4 heads, vocabulary 1,000, 4 samples of 64 tokens.
TEST_CASE("a forward pass is its modules, each less the modules in it") {
    const std::string text = text_of_file("flops_profile.txt");
    const FlopsProfile profile = profile_of(text);
    // Embeddings of 1,000 tokens and 64 positions; a layer's four products and biases and two norms; the last
    // norm and the head.
    const double h = 128, layer = 12 * h * h + 13 * h;
    CHECK(profile.parameters == Approx(2 * 1000 * h + 64 * h + 2 * layer + 2 * h).epsilon(1e-4));
    // Products and attention (two of them over all pairs of tokens), and the head.
    const double tokens = 4 * 64;
    CHECK(profile.macs == Approx(tokens * (2 * (12 * h * h + 2 * 64 * h) + 1000 * h)).epsilon(1e-3));
    const MeasuredStep forward = validation::forward_of(profile);
    CHECK(forward.part == validation::MeasuredPart::forward);
    CHECK(forward.step.value == Approx(5.1e-3));
    CHECK(forward.shares.at(StepKind::matrix_product).time.value == Approx(latencies_of(text, "Linear")));
    CHECK(forward.shares.at(StepKind::matrix_product).count == 2 * 4 + 1);
    CHECK(forward.shares.at(StepKind::norm).time.value == Approx(latencies_of(text, "LayerNorm")));
    CHECK(forward.shares.at(StepKind::norm).count == 2 * 2 + 1);
    CHECK(forward.shares.at(StepKind::attention_and_loss).longest == "Attention");
    CHECK(forward.shares.at(StepKind::elementwise).longest == "GPT");  // the loss, among others
    double sum = 0;
    for (const auto& [kind, share] : forward.shares) sum += share.time.value;
    CHECK(sum ==
          Approx(forward.step.value).epsilon(1e-3));  // latencies are printed with three digits or more
    CHECK(*forward.forward_flops == 2 * profile.macs);
    CHECK_FALSE(forward.whole_step);
}

// flops_profile_engine.txt: deepspeed.initialize of the same day, wall_clock_breakdown, three micro-batches.
TEST_CASE("an engine's report has the clock for the model's latency, which is said and left out") {
    core::Diagnostics diagnostics;
    const auto profile =
        validation::read_flops_profile(text_of_file("flops_profile_engine.txt"), "report.txt", diagnostics);
    REQUIRE(profile);
    CHECK(core::format(diagnostics).find("report.txt:49:1: warning: the model's own latency, 20833 d") !=
          std::string::npos);
    const MeasuredStep forward = validation::forward_of(*profile);
    CHECK(forward.step.value == Approx(189.3e-6));  // of net; spare never ran
    CHECK(forward.shares.at(StepKind::matrix_product).time.value == Approx(83.21e-6));  // 60.32 + 22.89
    CHECK(forward.shares.at(StepKind::elementwise).time.value == Approx((189.3 - 83.21) * 1e-6));
    // The model, net and spare, ReLU, three of Dropout and three of Identity, these on one line.
    CHECK(forward.shares.at(StepKind::elementwise).count == 3 + 1 + 3 + 3);
    REQUIRE(forward.whole_step);
    CHECK(forward.whole_step->value == Approx(2.03e-3));
}

TEST_CASE("a module that two hold is not counted twice") {
    // 9 ms of calls from two modules of 8 and 2 ms.
    const std::string shared = "    (layer): Linear(" + figures("9 ms") + ", in_features=1)\n";
    const std::string text =
        report_of("Model(\n  " + figures("10 ms") + "\n  (a): Wrapper(\n    " + figures("8 ms") + "\n" +
                  shared + "  )\n  (b): Wrapper(\n    " + figures("2 ms") + "\n" + shared + "  )\n)\n");
    const MeasuredStep forward = validation::forward_of(profile_of(text));
    CHECK(forward.shares.at(StepKind::matrix_product).time.value == Approx(10e-3));
    CHECK(forward.shares.at(StepKind::elementwise).time.value == Approx(0).margin(1e-12));
    // Twice as many of one printed line are twice the time: here the model has no more than 10 ms.
    const std::string repeated =
        report_of("Model(\n  " + figures("10 ms") + "\n  (0-1): 2 x Wrapper(\n    " + figures("3 ms") +
                  "\n    (norm): LayerNorm(" + figures("1 ms") + ")\n  )\n)\n");
    CHECK(validation::forward_of(profile_of(repeated)).shares.at(StepKind::norm).time.value == Approx(2e-3));
}

TEST_CASE("further lines that a class prints, and a log around the report, are no modules") {
    const std::string text = "step 4 loss 3.2\n" +
                             report_of("Model(\n  " + figures("1 s") + "\n  (layer): Quantized(\n    " +
                                       figures("400 ms") + ", scale=(1,\n    2), zero=3\n    )\n  )\n)\n") +
                             "----\nstep 5 (loss): 3.1\n";
    const FlopsProfile profile = profile_of(replaced(text, "    )\n  )\n", "  )\n"));
    REQUIRE(profile.modules.size() == 2);
    CHECK(profile.modules[1].class_name == "Quantized");
    CHECK_FALSE(profile.modules[1].has_modules);
    // The last of several reports counts.
    CHECK(validation::forward_of(
              profile_of(text_of_file("flops_profile.txt") + report_of("Model(" + figures("7 s") + ")\n")))
              .step.value == Approx(7));
}

TEST_CASE("kinds of modules are told by class, of modules with modules only attention") {
    const auto [name, has_modules, kind] = GENERATE(table<std::string, bool, StepKind>({
        {"Conv1D", false, StepKind::matrix_product},  // transformers' GPT-2
        {"ColumnParallelLinear", false, StepKind::matrix_product},
        {"Conv2d", false, StepKind::convolution},
        {"LlamaRMSNorm", false, StepKind::norm},
        {"VocabParallelEmbedding", false, StepKind::elementwise},
        {"CrossEntropyLoss", false, StepKind::attention_and_loss},
        {"LlamaAttention", true, StepKind::attention_and_loss},
        {"ConvNextStage", true, StepKind::elementwise},
        {"SiLU", false, StepKind::elementwise},
    }));
    INFO(name);
    CHECK(validation::kind_of_module(name, has_modules) == kind);
}

TEST_CASE("what is no whole report is refused, with its line") {
    const std::string text = text_of_file("flops_profile.txt");
    CHECK(refusal_of("step 5 loss 3.1\n").find("its headline is missing") != std::string::npos);
    CHECK(refusal_of(text.substr(0, text.find("GPT(\n"))).find("no tree of modules") != std::string::npos);
    // The lines of a tree whose last lines are missing, counted here another way.
    const std::size_t within = text.find("    (1): Block(");
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(within), '\n');
    const std::string cut = refusal_of(text.substr(0, text.find("(up): Linear", within)));
    CHECK(cut.find("the report ends within 'MLP'") != std::string::npos);
    CHECK(refusal_of(text.substr(0, text.find("(norm1)", within)))
              .find(fmt::format("report.txt:{}:1: error: the report ends within 'Block'", line)) !=
          std::string::npos);
    // As DeepSpeed wrote shares before: "19.36% Params".
    CHECK(
        refusal_of(replaced(text, "128 K = 19.36% Params", "128 K, 19.36% Params")).find("in another form") !=
        std::string::npos);
    CHECK(refusal_of(replaced(text, "104.43 us = ", "-104.43 us = ")).find("in another form") !=
          std::string::npos);
    CHECK(refusal_of(replaced(text, "104.43 us = ", "nan us = ")).find("in another form") !=
          std::string::npos);
    CHECK(
        refusal_of(report_of("Model(\n  " + figures("0 s") + "\n)\n")).find("no forward pass was measured") !=
        std::string::npos);
    CHECK(refusal_of(report_of("Model(\n  " + figures("1 s") + "\n  (0-9999999): 10000000 x Linear(" +
                               figures("1 s") + ")\n)\n"))
              .find("10000000 times one module") != std::string::npos);
}

TEST_CASE("a forward pass is compared with the operators of one micro-batch, and whole steps beside it") {
    validation::PredictedStep predicted;
    predicted.micro_batches = 4;
    predicted.explanation.step = core::seconds(100e-3);
    sim::OperatorTime product, norm;
    product.kind = "linear";
    product.forward = core::seconds(40e-3);
    product.backward = core::seconds(50e-3);
    norm.kind = "layer_norm";
    norm.forward = core::seconds(4e-3);
    predicted.explanation.operators = {product, norm};
    sim::CommunicationShare reduction;
    reduction.what = "all_reduce gradient over data";
    reduction.busy = core::seconds(15e-3);
    predicted.explanation.communications = {reduction};
    predicted.parameters = 660992;
    core::Diagnostics diagnostics;
    auto measured = validation::read_measured_file(fixture("flops_profile.txt"), diagnostics);
    REQUIRE(measured);
    measured->whole_step = core::seconds(90e-3);
    const validation::StepComparison comparison = validation::compare_step(predicted, *measured);
    CHECK(comparison.predicted.value == Approx((40e-3 + 4e-3) / 4));
    for (const validation::StepComparison::Row& row : comparison.rows) {
        CHECK_FALSE(validation::is_communication(row.kind));
        if (row.kind == StepKind::matrix_product) CHECK(row.predicted.value == Approx(10e-3));
    }
    REQUIRE(comparison.sizes.size() == 1);  // FLOPs were not predicted
    CHECK(comparison.sizes[0].measured == Approx(660990));
    const core::Value value = validation::to_value(comparison, *measured);
    CHECK(value.find("predicted_step_s")->number() == Approx(100e-3));
    CHECK(value.find("measured_step_s")->number() == Approx(90e-3));
    CHECK_FALSE(value.find("measured_idle_s"));
    CHECK(validation::text_of(comparison, *measured).find("idle") == std::string::npos);
}
