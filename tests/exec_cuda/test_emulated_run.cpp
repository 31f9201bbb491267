// The whole CUDA backend without a GPU: planning, arena, edges, precision and our kernels, with libraries replaced by loops.
#include <catch2/catch.hpp>

#include "exec/cuda/make_backend.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"
#include "tests/exec_cuda/emulated_machine.h"

namespace {

exec::BackendMaker emulated_backend() {
    return [](const exec::BackendRequest& request) {
        return exec::cuda::make_backend(request, std::make_shared<emulated::Emulated>(), std::make_shared<emulated::Messages>(request.communicator));
    };
}

}  // namespace

TEST_CASE("on one emulated GPU a model trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    const exec::BackendMaker emulated = emulated_backend();
    SECTION("GPT") { tiny::check_equal(tiny::compare(plan, tiny::gpt(), 2, emulated)); }
    SECTION("GPT with dropout") { tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 2, emulated)); }
    SECTION("Llama") { tiny::check_equal(tiny::compare(plan, tiny::llama(), 2, emulated)); }
    SECTION("unfused attention") {
        plan.attention = model::AttentionImplementation::unfused;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 2, emulated));
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 2, emulated));
    }
    SECTION("fused cross-entropy") {
        plan.fused_cross_entropy = true;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated));
    }
}
