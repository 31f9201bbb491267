#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <type_traits>

#include "core/units.h"

using namespace core;

TEST_CASE("quantities multiply and divide by dimension") {
    static_assert(std::is_same_v<decltype(bytes(1) / gigabytes_per_second(1)), Seconds>);
    static_assert(std::is_same_v<decltype(flops(1) / teraflops_per_second(1)), Seconds>);
    static_assert(std::is_same_v<decltype(seconds(1) / seconds(1)), double>);
    static_assert(std::is_same_v<decltype(dollars_per_hour(1) * hours(1)), Dollars>);
    CHECK((gigabytes(300) / gigabytes_per_second(150)).value == 2.0);
    CHECK((dollars_per_hour(32.77) * hours(2)).value == Approx(65.54));
}

TEST_CASE("decimal and binary prefixes are different words") {
    CHECK(parse_bytes("16GB")->value == 16e9);
    CHECK(parse_bytes("16GiB")->value == 16.0 * 1073741824.0);
    CHECK(parse_bytes("16 TB")->value == 16e12);
    CHECK(parse_bytes("2KB")->value == 2000);
    CHECK(parse_bytes("2kB")->value == 2000);
    CHECK(parse_bytes("2KiB")->value == 2048);
    CHECK(parse_bytes("512B")->value == 512);
    CHECK(parse_bytes("1.5MiB")->value == 1572864);
    CHECK(parse_bytes("1EB")->value == 1e18);
    CHECK(parse_bytes("1e3B")->value == 1000);
}

TEST_CASE("durations, rates and compute rates are read in SI base units") {
    CHECK(parse_seconds("8us")->value == 8e-6);
    CHECK(parse_seconds("8\u00b5s")->value == 8e-6);
    CHECK(parse_seconds("1.5 ms")->value == 1.5e-3);
    CHECK(parse_seconds("2s")->value == 2);
    CHECK(parse_seconds("3min")->value == 180);
    CHECK(parse_seconds("4h")->value == 14400);
    CHECK(parse_bytes_per_second("100Gbps")->value == 12.5e9);  // 8 bits a byte
    CHECK(parse_bytes_per_second("25 Mbps")->value == 3.125e6);
    CHECK(parse_bytes_per_second("300GB/s")->value == 300e9);
    CHECK(parse_bytes_per_second("12GiB/s")->value == 12.0 * 1073741824.0);
    CHECK(parse_flops_per_second("312TFLOP/s")->value == 312e12);
    CHECK(parse_flops_per_second("19.5 TFLOPS")->value == 19.5e12);
    CHECK(parse_flops_per_second("90GFLOP/s")->value == 90e9);
}

TEST_CASE("text that is no quantity is nothing") {
    for (const char* text : {"",       " ",      "GB",      "40",    "40 ",   "40 G",   "40Gb",   "40gb",
                             "40GiBs", "x40GB",  " 40GB",   "40GB ", "1,5GB", "nan GB", "inf GB", "nanGB",
                             "infB",   "1e400B", "1e308GB", "0x10B", "+4B",   "--4B",   "4 5B"})
        CHECK_FALSE(parse_bytes(text).has_value());
    for (const char* text : {"", "8", "8 u", "8Us", "8 seconds!", "us", "8GB"})
        CHECK_FALSE(parse_seconds(text).has_value());
    for (const char* text : {"", "100", "100GB", "100gbps", "100/s", "100Gbps/s"})
        CHECK_FALSE(parse_bytes_per_second(text).has_value());
    for (const char* text : {"", "312", "312T", "312TFLOP", "312TOPS", "312XFLOP/s"})
        CHECK_FALSE(parse_flops_per_second(text).has_value());
}

TEST_CASE("quantities are shown with three significant digits") {
    CHECK(format(gibibytes(37.21)) == "37.2 GiB");
    CHECK(format(gibibytes(40)) == "40 GiB");
    CHECK(format(bytes(0)) == "0 B");
    CHECK(format(bytes(512)) == "512 B");
    CHECK(format(bytes(1024)) == "1 KiB");
    CHECK(format(mebibytes(1023)) == "1023 MiB");
    CHECK(format(mebibytes(1023.9)) == "1 GiB");  // rounds to 1024 MiB, which is said in the next unit
    CHECK(format(gibibytes(-3)) == "-3 GiB");
    CHECK(format(seconds(0)) == "0 s");
    CHECK(format(seconds(1.5432e-3)) == "1.54 ms");
    CHECK(format(seconds(999.7e-6)) == "1 ms");  // 1000 us to three digits
    CHECK(format(seconds(59.2)) == "59.2 s");
    CHECK(format(seconds(90)) == "1.5 min");
    CHECK(format(gigabits_per_second(100)) == "12.5 GB/s");
    CHECK(format(teraflops_per_second(312)) == "312 TFLOP/s");
    CHECK(format(seconds(6.66e-15)) == "0 s");  // what rounding leaves of a difference of seconds
    CHECK(format(seconds(2e-12)) == "0.002 ns");
    CHECK(format(bytes(std::numeric_limits<double>::quiet_NaN())) == "nan B");
    CHECK(format(bytes(std::numeric_limits<double>::infinity())) == "inf B");
}

TEST_CASE("a shown quantity reads back within half a unit of its third digit") {
    for (int exponent = -8; exponent <= 14; ++exponent)
        for (int mantissa = 100; mantissa < 1000; mantissa += 7) {
            const double value = mantissa * std::pow(10.0, exponent - 2);
            const auto near = [&](double back) { return std::fabs(back - value) <= 0.00501 * value; };
            CHECK(near(parse_seconds(format(seconds(value)))->value));
            if (value < 1) continue;
            CHECK(near(parse_bytes(format(bytes(value)))->value));
            CHECK(near(parse_bytes_per_second(format(BytesPerSecond(value)))->value));
            CHECK(near(parse_flops_per_second(format(FlopsPerSecond(value)))->value));
        }
}
