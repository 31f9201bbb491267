// Launches that do the work of several in whole trainings on emulated GPUs: they happen where they can,
// nothing changes but their number, and each can be left out. And what else a run takes from its machine
// before the first step: workspace of libraries, memory that the exchange registers.
#include <catch2/catch.hpp>

#include <atomic>
#include <limits>

#include "tests/exec_cuda/emulated_run.h"

namespace {

using exec::Fused;
using exec::cuda::Alternatives;
using exec::cuda::BackendSettings;
using exec::cuda::Kernels;

// Launches of every rank of a run.
struct Launches {
    std::atomic<int> sums_with_norms{0}, norm_gradients{0}, turns{0}, turns_in_place{0}, norms_with_octets{0},
        gated_with_octets{0}, confirmed{0}, casts{0}, expert_products{0}, expert_gradients{0},
        expert_counts{0};
};
Launches launches;

// Calls go to the emulated kernel and are counted.
template <auto member, auto counter, class... Arguments>
void count_calls(Kernels& table, void (*)(Arguments...)) {
    table.*member = [](Arguments... arguments) {
        ++(launches.*counter);
        (exec::cuda::emulated_kernels().*member)(arguments...);
    };
}
template <auto member, auto counter>
void count_calls(Kernels& table) {
    count_calls<member, counter>(table, table.*member);
}

class CountingMachine : public emulated::Emulated {
public:
    explicit CountingMachine(bool fusions_pay = true) : fusions_pay_(fusions_pay) {
        count_calls<&Kernels::add_and_norm, &Launches::sums_with_norms>(table_);
        count_calls<&Kernels::norm_gradients, &Launches::norm_gradients>(table_);
        count_calls<&Kernels::norm_with_octets, &Launches::norms_with_octets>(table_);
        count_calls<&Kernels::gated_with_octets, &Launches::gated_with_octets>(table_);
        count_calls<&Kernels::confirm_octets, &Launches::confirmed>(table_);
        count_calls<&Kernels::cast_to_float8, &Launches::casts>(table_);
        count_calls<&Kernels::expert_products, &Launches::expert_products>(table_);
        count_calls<&Kernels::expert_weight_gradients, &Launches::expert_gradients>(table_);
        count_calls<&Kernels::expert_counts, &Launches::expert_counts>(table_);
        count_calls<&Kernels::rotate, &Launches::turns>(table_);
        count_calls<&Kernels::rotate_in_place, &Launches::turns_in_place>(table_);
    }
    const Kernels& kernels() const override { return table_; }
    // Both ways on arrays of the size that was asked for.
    bool pays(const Alternatives& alternatives) const override {
        std::vector<char> room(alternatives.room_bytes + 256);
        char* const aligned = room.data() + (256 - reinterpret_cast<std::uintptr_t>(room.data()) % 256) % 256;
        alternatives.fused(exec::cuda::emulated_kernels(), nullptr, aligned);
        alternatives.apart(exec::cuda::emulated_kernels(), nullptr, aligned);
        if (alternatives.products)
            for (const exec::cuda::Product& product : alternatives.products(aligned))
                emulated::Emulated().product(nullptr, product);
        CHECK(alternatives.what.find(' ') == std::string::npos);
        return fusions_pay_;
    }

private:
    static const Kernels& emulated_kernels() { return exec::cuda::emulated_kernels(); }
    const bool fusions_pay_;
    Kernels table_ = exec::cuda::emulated_kernels();
};

exec::BackendMaker counted(const BackendSettings& settings = {}, bool fusions_pay = true) {
    launches.sums_with_norms = launches.norm_gradients = launches.turns = launches.turns_in_place = 0;
    launches.norms_with_octets = launches.gated_with_octets = launches.confirmed = launches.casts = 0;
    launches.expert_products = launches.expert_gradients = launches.expert_counts = 0;
    return [settings, fusions_pay](const exec::BackendRequest& request) {
        return exec::cuda::make_backend(request, std::make_shared<CountingMachine>(fusions_pay),
                                        std::make_shared<emulated::Messages>(request.communicator), settings);
    };
}

const BackendSettings all_apart{
    .apart = {Fused::gelu, Fused::residual_norm, Fused::norm_gradients, Fused::rotation}};

}  // namespace

TEST_CASE("on emulated GPUs norms take sums and their gradients together, and queries are turned once") {
    constexpr int layers = 2, steps = 2;
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.layout.tensor = 2;  // sums of residuals follow an exchange: no product takes them
    const model::ModelGraph graph = tiny::llama(layers);
    const int passes = steps * plan.micro_batches * plan.layout.tensor;
    tiny::check_equal(tiny::compare(plan, graph, steps, counted()));
    // Two sums a layer, and a norm after each: that of the next layer or the last one.
    CHECK(launches.sums_with_norms == passes * layers * 2);
    CHECK(launches.norm_gradients == passes * (2 * layers + 1));
    CHECK(launches.turns_in_place == passes * layers * 2);  // there and back
    CHECK(launches.turns == 0);
    tiny::check_equal(tiny::compare(plan, graph, steps, counted(all_apart)));
    CHECK(launches.sums_with_norms + launches.norm_gradients + launches.turns_in_place == 0);
    CHECK(launches.turns == passes * layers * 3);
    // What does not pay where it is measured is left out as well.
    tiny::check_equal(tiny::compare(plan, graph, steps, counted({}, false)));
    CHECK(launches.sums_with_norms + launches.norm_gradients + launches.turns_in_place == 0);
}

TEST_CASE("sums with their norms and queries turned in place change no bit of a training in bf16") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::bf16, true};
    plan.layout.tensor = 2;
    const model::ModelGraph graph = tiny::llama(2);
    const BackendSettings both{.apart = {Fused::norm_gradients}};
    BackendSettings neither = both;
    neither.apart.insert({Fused::residual_norm, Fused::rotation});
    const auto losses = [&](const BackendSettings& settings) {
        const schedule::Program program = tiny::program_of(plan, graph);
        exec::RunOptions options;
        options.steps = 3;
        options.make_backend = counted(settings);
        options.time_limit = core::seconds(20);
        return exec::run(program, graph, tiny::data_of(graph), options).losses;
    };
    const std::vector<double> fused = losses(both);
    CHECK(launches.sums_with_norms > 0);
    CHECK(launches.turns_in_place > 0);
    CHECK(fused == losses(neither));
    CHECK(launches.sums_with_norms == 0);
}

TEST_CASE("in fp8 norms and gated activations write octets too, and change no bit of a training") {
    constexpr int layers = 2, steps = 3;
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.precision = {core::DataType::fp8, core::DataType::bf16, core::DataType::bf16, true};
    // Every linear layer of a block has extents that fp8 takes.
    const model::ModelGraph graph = tiny::model_of(
        "family = 'llama'\nhidden = 32\nffn = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nvocabulary = 30\n"
        "max_positions = 8\nsequence_length = 8\n");
    SECTION("one rank") {}
    SECTION("layers that run again") { plan.recompute = schedule::Recompute::full; }
    SECTION("tensor parallelism: an enter lies between") { plan.layout.tensor = 2; }
    const int forwards = steps * plan.micro_batches * plan.layout.tensor *
                         (plan.recompute == schedule::Recompute::full ? 2 : 1);
    const auto run = [&](const BackendSettings& settings) {
        const schedule::Program program = tiny::program_of(plan, graph);
        exec::RunOptions options;
        options.steps = steps;
        options.keeps_state = true;
        options.make_backend = counted(settings);
        options.time_limit = core::seconds(60);
        return exec::run(program, graph, tiny::data_of(graph), options);
    };
    const exec::RunResult with = run({});
    // Two norms and one gated activation a layer; the norm before the logits has no product in fp8 behind it.
    CHECK(launches.norms_with_octets == 2 * layers * forwards);
    CHECK(launches.gated_with_octets == layers * forwards);
    CHECK(launches.confirmed == 3 * layers * forwards);
    const int casts = launches.casts;
    const exec::RunResult without = run({.apart = {Fused::norm_octets, Fused::gated_octets}});
    CHECK(launches.norms_with_octets + launches.gated_with_octets + launches.confirmed == 0);
    CHECK(launches.casts - casts == 3 * layers * forwards);
    CHECK(with.losses == without.losses);
    CHECK(with.parameters == without.parameters);
}

TEST_CASE("queries that were turned in place are not turned again by layers that run again") {
    schedule::Plan plan = tiny::plan();
    const auto check = [&](const model::ModelGraph& graph) {
        tiny::check_equal(tiny::compare(plan, graph, 2, counted()));
        CHECK(launches.turns_in_place > 0);
    };
    SECTION("all, or attention alone") {
        for (const schedule::Recompute recompute :
             {schedule::Recompute::full, schedule::Recompute::selective}) {
            plan.recompute = recompute;
            check(tiny::llama(2));
        }
        plan.recompute_modules = {schedule::RecomputeModule::core_attn, schedule::RecomputeModule::layernorm,
                                  schedule::RecomputeModule::activation};
        check(tiny::llama(2));
    }
    SECTION("pipelines, with gradients of weights in instructions of their own") {
        plan.layout.pipeline = 2;
        for (const char* schedule : {"1f1b", "zb-h1"}) {
            plan.schedule = schedule;
            check(tiny::llama(2));
        }
    }
    SECTION("activations that wait in the host's memory") {
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
        check(tiny::llama(4));
    }
    SECTION("unfused attention") {
        plan.attention = model::AttentionImplementation::unfused;
        check(tiny::llama(2));
    }
    SECTION("sequences that are divided are turned in copies") {
        plan.layout.data = plan.layout.context = 2;
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 2, counted()));
        CHECK(launches.turns_in_place == 0);
        CHECK(launches.turns > 0);
    }
}

TEST_CASE("one launch has the products of all experts, and the host asks for no number of routed tokens") {
    constexpr int layers = 2, steps = 2;
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    const std::string kind =
        GENERATE(as<std::string>{}, "experts_per_token = 2", "experts_per_token = 2\ncapacity_factor = 0.6");
    const model::ModelGraph graph = tiny::mixtral(layers, kind);
    const BackendSettings apart{.apart = {Fused::expert_products}};
    const auto fetched = [&](const BackendSettings& settings) {
        const exec::cuda::RunPlan run = emulated::planned(plan, graph, 0, settings);
        CHECK((run.fetched == 0) == run.host_waits.empty());
        return run.fetched;
    };
    const int mixtures = steps * plan.micro_batches * layers;
    tiny::check_equal(tiny::compare(plan, graph, steps, counted()));
    // Two products, and of each the gradient of its input and of its weights.
    CHECK(launches.expert_products == mixtures * 4);
    CHECK(launches.expert_gradients == mixtures * 2);
    CHECK(launches.expert_counts == 0);
    CHECK(fetched({}) == 0);
    tiny::check_equal(tiny::compare(plan, graph, steps, counted(apart)));
    CHECK(launches.expert_products + launches.expert_gradients == 0);
    CHECK(launches.expert_counts == mixtures);
    CHECK(fetched(apart) == 4);  // a number an expert
    // What does not pay where it is measured is left out as well.
    tiny::check_equal(tiny::compare(plan, graph, steps, counted({}, false)));
    CHECK(launches.expert_products + launches.expert_gradients == 0);
    CHECK(launches.expert_counts == mixtures);
}

TEST_CASE("experts over several ranks multiply in one launch, and ask for what they exchange") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.layout.data = plan.layout.expert = 2;
    const model::ModelGraph graph = tiny::mixtral(2);
    tiny::check_equal(tiny::compare(plan, graph, 2, counted({.expert_room = 4})));
    CHECK(launches.expert_products == 2 * plan.micro_batches * 2 * plan.layout.expert * 4);
    CHECK(emulated::planned(plan, graph, 0, {.expert_room = 4}).fetched > 0);
}

namespace {

// Says that steps can be captured. What is launched meanwhile is done at once, so that launching the step
// when it has just been captured has nothing left to do.
class CapturingMachine : public emulated::Emulated {
public:
    bool can_capture() const override { return true; }
    void begin_capture(exec::cuda::Stream) override { ++captured; }
    void launch_captured(exec::cuda::Stream) override { ++launched; }
    int captured = 0, launched = 0;
};

}  // namespace

TEST_CASE("a step with experts is captured where the host asks for nothing, else the run says why not") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    const model::ModelGraph graph = tiny::mixtral(2);
    const auto run = [&](const exec::FusedSet& apart) {
        auto machine = std::make_shared<CapturingMachine>();
        const tiny::Comparison compared =
            tiny::compare(plan, graph, 3, [&](const exec::BackendRequest& request) {
                return exec::cuda::make_backend(request, machine,
                                                std::make_shared<emulated::Messages>(request.communicator),
                                                {.captures_steps = true, .apart = apart});
            });
        tiny::check_equal(compared);
        CHECK(machine->captured == machine->launched);
        std::string why;
        for (const exec::KernelChoice& choice : compared.run.kernel_choices)
            if (choice.operation == "captured step") why = choice.reason;
        return std::pair(machine->captured, why);
    };
    CHECK(run({}) == std::pair(1, std::string()));
    const auto [captured, why] = run({Fused::expert_products});
    CHECK(captured == 0);
    CHECK(why.find("how many routed tokens an expert gets") != std::string::npos);
}

TEST_CASE("messages that wait for all before them train as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = 2;
    for (const schedule::Sharding sharding : {schedule::Sharding::none, schedule::Sharding::parameters}) {
        plan.sharding = sharding;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated::backend({.ranks_per_device = 2})));
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated::backend({.captures_steps = true})));
    }
}

namespace {

// A library that wants workspace, and an exchange that registers memory.
class WatchedMachine : public emulated::Emulated {
public:
    static constexpr std::size_t wanted = 12345;
    void* allocate(std::size_t bytes) override {
        char* const block = static_cast<char*>(Emulated::allocate(bytes));
        blocks.push_back({block, block + bytes});
        return block;
    }
    void* allocate_for_exchange(std::size_t bytes) override {
        ++allocated_for_exchange;
        return allocate(bytes);
    }
    std::size_t library_workspace() const override { return wanted; }
    void use_workspace(void* memory, std::size_t bytes) override {
        if (memory) {
            ++given;
            CHECK(bytes >= wanted);
            CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
            CHECK(is_within(memory, bytes));
        }
        workspace = memory;
    }
    bool is_within(void* memory, std::size_t bytes) const {
        for (const auto& [begin, end] : blocks)
            if (memory >= begin && static_cast<char*>(memory) + bytes <= end) return true;
        return false;
    }
    std::vector<std::pair<char*, char*>> blocks;
    void* workspace = nullptr;
    int given = 0, allocated_for_exchange = 0;
};

class RegisteringMessages : public emulated::Messages {
public:
    RegisteringMessages(exec::Communicator& communicator, std::shared_ptr<WatchedMachine> machine)
        : Messages(communicator), machine_(std::move(machine)) {}
    int make_group(const std::vector<int>& members) override {
        CHECK_FALSE(is_registered_);  // what is registered holds for the groups made before
        return Messages::make_group(members);
    }
    void register_memory(void* memory, std::size_t bytes) override {
        is_registered_ = true;
        CHECK(machine_->is_within(memory, bytes));
    }
    void abort() override { is_registered_ = false; }
    ~RegisteringMessages() override { CHECK_FALSE(is_registered_); }  // given up before its memory is

private:
    const std::shared_ptr<WatchedMachine> machine_;
    bool is_registered_ = false;
};

}  // namespace

TEST_CASE("workspace of libraries lies in the run's own memory, and is taken back before that is") {
    schedule::Plan plan = tiny::plan();
    for (const bool registers : {true, false})
        for (const int ranks : {1, 2}) {
            plan.layout.data = ranks;
            std::vector<std::shared_ptr<WatchedMachine>> machines;
            for (int rank = 0; rank < ranks; ++rank) machines.push_back(std::make_shared<WatchedMachine>());
            BackendSettings settings;
            if (!registers) settings.apart = {Fused::registered_buffers};
            tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 1, [&](const exec::BackendRequest& request) {
                const auto& machine = machines[static_cast<std::size_t>(request.communicator.rank())];
                return exec::cuda::make_backend(
                    request, machine, std::make_shared<RegisteringMessages>(request.communicator, machine),
                    settings);
            }));
            for (const auto& machine : machines) {
                CHECK(machine->given == 1);
                CHECK(machine->workspace == nullptr);
                CHECK(machine->allocated_for_exchange == (registers && ranks > 1 ? 1 : 0));
            }
        }
}
