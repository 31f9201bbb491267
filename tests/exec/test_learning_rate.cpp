#include <catch2/catch.hpp>

#include "exec/runtime/learning_rate.h"
#include "tests/exec/tiny.h"

TEST_CASE("learning rates change as transformers' schedules do") {
    // transformers 5.23.0, get_scheduler(NAME, SGD(lr=1), num_warmup_steps=3, num_training_steps=10),
    // 2026-11-23.
    const std::vector<double> linear = {0.0,
                                        0.3333333333333333,
                                        0.6666666666666666,
                                        1.0,
                                        0.8571428571428571,
                                        0.7142857142857143,
                                        0.5714285714285714,
                                        0.42857142857142855,
                                        0.2857142857142857,
                                        0.14285714285714285,
                                        0.0},
                              cosine = {0.0,
                                        0.3333333333333333,
                                        0.6666666666666666,
                                        1.0,
                                        0.9504844339512095,
                                        0.8117449009293668,
                                        0.6112604669781572,
                                        0.38873953302184283,
                                        0.18825509907063326,
                                        0.04951556604879048,
                                        0.0};
    for (std::size_t i = 0; i < linear.size(); ++i) {
        const auto factor = [&](const char* name) {
            return exec::LearningRateSchedule{exec::learning_rate_kind(name), 3, 10}.factor(
                static_cast<std::int64_t>(i));
        };
        CHECK(factor("linear") == Approx(linear[i]).margin(1e-12));
        CHECK(factor("cosine") == Approx(cosine[i]).margin(1e-12));
        CHECK(factor("constant_with_warmup") == Approx(i < 3 ? linear[i] : 1.0));
    }
    CHECK(exec::LearningRateSchedule{}.factor(1000) == 1);
}

TEST_CASE("a training with a changing learning rate is what the reference makes of it, for every optimizer") {
    const model::ModelGraph graph = tiny::gpt(2);
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind =
        GENERATE(schedule::OptimizerKind::sgd, schedule::OptimizerKind::adamw, schedule::OptimizerKind::lamb);
    plan.optimizer.weight_decay = 0.1;
    plan.optimizer.epsilon = 1e-3;  // smaller ones magnify the rounding of small gradients
    plan.layout.pipeline = 2;
    exec::RunOptions options;
    options.steps = 6;
    options.learning_rate = {exec::LearningRateKind::cosine, 2, 6};
    exec::ReferenceOptions reference{6, options.seed};
    const auto losses = [&] {
        return exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options).losses;
    };
    const std::vector<double> changing = losses();
    reference.learning_rate = options.learning_rate;
    const std::vector<double> expected =
        exec::run_reference(graph, plan, tiny::data_of(graph), reference).losses;
    options.learning_rate = {};
    const std::vector<double> constant = losses();
    for (std::size_t i = 0; i < 6; ++i) CHECK(changing[i] == Approx(expected[i]).epsilon(1e-5));
    CHECK(changing[5] != Approx(constant[5]).epsilon(1e-3));
}
