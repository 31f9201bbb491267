// What profiles say of spot reclaims and board power.
#include <catch2/catch.hpp>

#include "cluster/profile/load.h"
#include "cluster/profile/supply.h"
#include "core/diagnostics.h"

namespace {

cluster::Supply supply_of(const std::string& name) {
    core::Diagnostics diagnostics;
    const auto instance = cluster::load_instance(name, diagnostics);
    REQUIRE(instance.has_value());
    cluster::Supply supply = cluster::supply_of(*instance, diagnostics);
    CHECK_FALSE(diagnostics.has_errors());
    return supply;
}

}  // namespace

TEST_CASE("reclaims are the class of AWS's Spot Instance Advisor, or unknown") {
    // us-east-1, Linux, 2025-06-28: p4d 10 to 15 %, p4de below 5 %, p3dn above 20 %; p5e is not listed.
    const cluster::Supply p4d = supply_of("p4d.24xlarge"), p3dn = supply_of("p3dn.24xlarge");
    REQUIRE(p4d.reclaims.has_value());
    CHECK(p4d.reclaims->least == 0.10);
    CHECK(p4d.reclaims->most == 0.15);
    CHECK(p4d.reclaims->date == "2025-06-28");
    CHECK(supply_of("p4de.24xlarge").reclaims->most == 0.05);
    REQUIRE(p3dn.reclaims.has_value());
    CHECK(p3dn.reclaims->least == 0.20);
    CHECK_FALSE(p3dn.reclaims->most.has_value());
    CHECK_FALSE(supply_of("p5e.48xlarge").reclaims.has_value());
}

TEST_CASE("boards draw what their vendors say, or unknown") {
    CHECK(supply_of("p4d.24xlarge").board_watts == 400);
    CHECK(supply_of("p5.48xlarge").board_watts == 700);
    CHECK(supply_of("g4dn.xlarge").board_watts == 70);
    CHECK_FALSE(supply_of("local-cpu").board_watts.has_value());
    core::Diagnostics diagnostics;
    CHECK_FALSE(cluster::supply_of({}, diagnostics).board_watts.has_value());
}
