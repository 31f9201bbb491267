#include <catch2/catch.hpp>

#include "exec/cuda/device/device.h"

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
    }
}
