#include <catch2/catch.hpp>

#include <cmath>
#include <vector>

#include "core/diagnostics.h"
#include "core/random.h"
#include "exec/cuda/adamw.h"
#include "exec/cuda/device.h"

using namespace exec::cuda;

TEST_CASE("a probe names the device or says why there is none") {
    const DeviceReport report = probe_device();
    WARN(describe(report));
    if (report.available) {
        CHECK(report.reason.empty());
        CHECK_FALSE(report.name.empty());
        CHECK(report.driver_version > 0);
        CHECK(report.compute_major > 0);
        CHECK(report.memory.value > 0);
        CHECK(report.multiprocessors > 0);
    } else {
        CHECK_FALSE(report.reason.empty());
        // What needs a device is then a machine failure with words, never a crash.
        CHECK_THROWS_AS(FloatBuffer(std::vector<float>{1.0f}), core::MachineError);
    }
}

TEST_CASE("the AdamW kernel does what the formula says", "[device]") {
    if (const DeviceReport report = probe_device(); !report.available) {
        WARN("skipped: " + describe(report));
        return;
    }
    core::Random random(11);
    // Sizes around a block of 256 threads and above the grid of 4,096 blocks, where the kernel's loop goes round.
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{4096 * 256 + 3}}) {
        std::vector<float> parameters(count), gradients(count);
        for (float& x : parameters) x = static_cast<float>(random.normal());
        std::vector<double> p(parameters.begin(), parameters.end()), m(count, 0.0), v(count, 0.0);
        FloatBuffer device_parameters(parameters), device_gradients(count), first(std::vector<float>(count, 0.0f)), second(std::vector<float>(count, 0.0f));
        AdamWStep step;
        for (step.step = 1; step.step <= 3; ++step.step) {
            for (float& x : gradients) x = static_cast<float>(random.normal());
            device_gradients.upload(gradients);
            update(device_parameters, device_gradients, first, second, step);
            for (std::size_t i = 0; i < count; ++i) {
                const double g = gradients[i];
                p[i] *= 1.0 - static_cast<double>(step.learning_rate) * step.weight_decay;
                m[i] = step.beta1 * m[i] + (1.0 - static_cast<double>(step.beta1)) * g;
                v[i] = step.beta2 * v[i] + (1.0 - static_cast<double>(step.beta2)) * g * g;
                const double first_unbiased = m[i] / (1.0 - std::pow(static_cast<double>(step.beta1), step.step));
                const double second_unbiased = v[i] / (1.0 - std::pow(static_cast<double>(step.beta2), step.step));
                p[i] -= step.learning_rate * first_unbiased / (std::sqrt(second_unbiased) + step.epsilon);
            }
        }
        std::vector<float> result(count);
        device_parameters.download(result);
        double worst = 0;
        for (std::size_t i = 0; i < count; ++i) worst = std::max(worst, std::fabs(result[i] - p[i]) / (1.0 + std::fabs(p[i])));
        CAPTURE(count);
        CHECK(worst < 1e-6);  // some ten roundings of 6e-8 each
    }
}
