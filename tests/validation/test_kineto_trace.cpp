#include <fmt/core.h>
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "core/document.h"
#include "validation/measured/kineto_trace.h"
#include "validation/measured/step_comparison.h"

namespace {

using validation::MeasuredStep;
using validation::StepKind;

core::Value parsed(const std::string& text) {
    core::Diagnostics diagnostics;
    const auto value = core::parse_json(text, "trace.json", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(value);
    return *value;
}

std::string event(const std::string& category, const std::string& name, double begin, double duration,
                  int device = 0) {
    return fmt::format(R"({{"ph": "X", "cat": "{}", "name": "{}", "tid": 7, "ts": {}, "dur": {}, )"
                       R"("args": {{"device": {}}}}})",
                       category, name, begin, duration, device);
}

std::string trace_of(const std::vector<std::string>& events, const std::string& version = "1") {
    std::string text = "{\"schemaVersion\": " + version + ", \"traceEvents\": [";
    for (const std::string& one : events) text += (text.back() == '[' ? "" : ", ") + one;
    return text + "]}";
}

MeasuredStep step_of(const std::string& text) {
    core::Diagnostics diagnostics;
    const auto step = validation::read_kineto_trace(parsed(text), "trace.json", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(step);
    return *step;
}

std::string refusal_of(const std::string& text) {
    core::Diagnostics diagnostics;
    CHECK_FALSE(validation::read_kineto_trace(parsed(text), "trace.json", diagnostics));
    return core::format(diagnostics);
}

// Two steps of 100 us. A product of 30 us, an all-reduce of 40 us that runs 10 us beside it, Adam of 20 us.
const std::vector<std::string> two_steps = {
    event("user_annotation", "ProfilerStep#3", 1000, 100),
    event("user_annotation", "ProfilerStep#4", 1100, 100),
    event("cpu_op", "aten::mm", 1000, 90),  // the host's side of the product
    event("kernel", "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", 1010, 30),
    event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1030, 40),
    event("kernel", "void at::native::multi_tensor_apply_kernel<AdamFunctor>", 1075, 20),
    event("kernel", "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", 1110, 34),
    event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1130, 40),
    event("kernel", "void at::native::multi_tensor_apply_kernel<AdamFunctor>", 1175, 20),
    event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 1196, 2)};

}  // namespace

TEST_CASE("a device's step is its kernels by kind, and idle where none runs") {
    const MeasuredStep step = step_of(trace_of(two_steps));
    CHECK(step.work == validation::MeasuredWork::kernels);
    CHECK(step.steps == 2);
    CHECK(step.step.value == Approx(100e-6));
    CHECK(step.shares.at(StepKind::matrix_product).time.value == Approx((30 + 34) / 2.0 * 1e-6));
    CHECK(step.shares.at(StepKind::all_reduce).time.value == Approx(40e-6));
    CHECK(step.shares.at(StepKind::optimizer).time.value == Approx(20e-6));
    CHECK(step.shares.at(StepKind::copy).time.value == Approx(1e-6));
    CHECK(step.shares.at(StepKind::matrix_product).count == 1);
    CHECK(step.shares.size() == 4);  // the host's operators are no work of the device
    // 1010 to 1070 and 1075 to 1095; 1110 to 1170, 1175 to 1195 and 1196 to 1198.
    CHECK(step.busy.value == Approx((60 + 20 + 60 + 20 + 2) / 2.0 * 1e-6));
}

TEST_CASE("kernels are told apart by the names that libraries give them") {
    const auto [name, kind] = GENERATE(table<std::string, StepKind>({
        {"nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", StepKind::matrix_product},
        {"void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", StepKind::matrix_product},
        {"void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>", StepKind::attention_and_loss},
        {"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", StepKind::attention_and_loss},
        {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", StepKind::attention_and_loss},
        {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", StepKind::norm},
        {"void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel", StepKind::norm},
        {"sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32", StepKind::convolution},
        {"cudnn_train_maxwell_scudnn_128x128_stridedB_splitK_medium_nn", StepKind::convolution},
        {"void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", StepKind::norm},
        {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", StepKind::reduce_scatter},
        {"ncclKernel_AllGather_RING_LL_Sum_int8_t", StepKind::all_gather},
        {"ncclDevKernel_SendRecv", StepKind::send_receive},
        {"ncclDevKernel_Broadcast_RING_LL", StepKind::other_communication},
        {"void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", StepKind::elementwise},
    }));
    INFO(name);
    CHECK(validation::kind_of_kernel(name) == kind);
}

TEST_CASE("a processor's step is its outermost operators; what runs inside them is theirs") {
    // Two steps of a small transformer with AdamW, traced by torch.profiler 2.15.0 on 2026-11-23 and reduced:
    // without views, most of autograd's entries, and what runs inside the optimizer.
    core::Diagnostics diagnostics;
    const auto document =
        core::load_document(std::string(SOURCE_DIR) + "/tests/validation/processor_step.json", diagnostics);
    REQUIRE(document);
    const auto step = validation::read_kineto_trace(*document, "processor_step.json", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(step);
    CHECK(step->work == validation::MeasuredWork::operators);
    CHECK(step->steps == 2);
    // Added up here another way: linear layers forward, and the products of their backward.
    const core::Value::Array& events = document->find("traceEvents")->items();
    const auto time = [](const core::Value& one, const char* key) { return one.find(key)->number(); };
    double products = 0, optimizer = 0;
    int linear_layers = 0, backward_products = 0;
    for (const core::Value& one : events) {
        const std::string& name = one.find("name")->string();
        if (name == "Optimizer.step#AdamW.step") optimizer += time(one, "dur");
        if (name == "aten::linear") {
            products += time(one, "dur");
            ++linear_layers;
        }
        if (name != "aten::mm") continue;
        bool is_inside = false;
        for (const core::Value& other : events)
            is_inside = is_inside || (other.find("name")->string() == "aten::linear" &&
                                      time(other, "ts") <= time(one, "ts") &&
                                      time(one, "ts") < time(other, "ts") + time(other, "dur"));
        if (is_inside) continue;
        products += time(one, "dur");
        ++backward_products;
    }
    CHECK(linear_layers == 2 * 5);
    CHECK(backward_products == 2 * 5 * 2);  // of inputs and of weights
    const MeasuredStep::Share& found = step->shares.at(StepKind::matrix_product);
    CHECK(found.time.value == Approx(products / 2 * 1e-6));
    CHECK(found.count == 5 + 10);
    CHECK(step->shares.at(StepKind::optimizer).time.value == Approx(optimizer / 2 * 1e-6));
    CHECK(step->shares.at(StepKind::norm).count == 2);  // forward and backward
    double sum = 0;
    for (const auto& [kind, share] : step->shares) sum += share.time.value;
    CHECK(sum == Approx(step->busy.value));  // one thread: nothing overlaps
    CHECK(step->busy < step->step);
}

TEST_CASE("what is no trace of one rank's steps is refused, with what is allowed") {
    CHECK(refusal_of("{\"nodes\": []}").find("traceEvents is missing") != std::string::npos);
    CHECK(refusal_of(trace_of(two_steps, "2")).find("schemaVersion = 1 is read") != std::string::npos);
    std::vector<std::string> events = two_steps;
    events.erase(events.begin(), events.begin() + 2);
    CHECK(refusal_of(trace_of(events)).find("no ProfilerStep") != std::string::npos);
    events = two_steps;
    events.push_back(event("kernel", "gemm", 1199, 1, 1));
    CHECK(refusal_of(trace_of(events)).find("kernels of 2 devices") != std::string::npos);
    CHECK(refusal_of(trace_of({two_steps[0]})).find("no kernel and no operator") != std::string::npos);
    CHECK(refusal_of("{\"schemaVersion\": 1, \"traceEvents\": [\n" + two_steps[0] +
                     ",\n{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"gemm\", \"ts\": 5}]}")
              .find("gemm has no time and duration") != std::string::npos);
}

TEST_CASE("the comparison begins with the kind that differs most, and drops what neither has") {
    validation::PredictedStep predicted;
    sim::Explanation& explanation = predicted.explanation;
    explanation.step = core::seconds(90e-6);
    explanation.update = core::seconds(19e-6);
    explanation.bubble = core::seconds(5e-6);
    sim::OperatorTime product, norm;
    product.kind = "linear";
    product.forward = core::seconds(10e-6);
    product.backward = core::seconds(20e-6);
    norm.kind = "rms_norm";
    norm.forward = core::seconds(1e-6);
    explanation.operators = {product, norm};
    sim::CommunicationShare reduction;
    reduction.what = "all_reduce gradient over data";
    reduction.busy = core::seconds(15e-6);
    explanation.communications = {reduction};
    const MeasuredStep measured = step_of(trace_of(two_steps));
    const validation::StepComparison comparison = validation::compare_step(predicted, measured);
    REQUIRE(comparison.rows.size() == 5);
    CHECK(comparison.rows[0].kind == StepKind::all_reduce);
    CHECK(comparison.rows[0].difference().value == Approx(25e-6));
    CHECK(comparison.rows[1].kind == StepKind::matrix_product);
    CHECK(comparison.rows[1].predicted.value == Approx(30e-6));
    CHECK(comparison.measured_idle.value == Approx((100 - 81) * 1e-6));
    CHECK(comparison.predicted_idle.value == Approx(5e-6));
    const std::string text = validation::text_of(comparison, measured);
    CHECK(text.find("all_reduce") < text.find("matrix products"));
}
