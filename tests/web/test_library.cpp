// What stands in web/wasm/library for parts of newer or larger libraries answers as those do: here the native
// library is at hand to compare with.
#include <boost/program_options.hpp>
#include <catch2/catch.hpp>

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "web/wasm/library/number_text.h"
#include "web/wasm/library/program_options.h"

namespace {

std::string text_by(std::to_chars_result (*write)(char*, char*, double), double value) {
    char text[400];
    const auto [end, failure] = write(text, text + sizeof text, value);
    REQUIRE(failure == std::errc());
    return {text, end};
}

std::string ours(double value) { return text_by(web::number_to_chars, value); }
std::string native(double value) {
    return text_by([](char* first, char* last, double v) { return std::to_chars(first, last, v); }, value);
}

void check_same_reading(const std::string& text) {
    INFO("\"" << text << "\"");
    const char* const first = text.data();
    const char* const last = first + text.size();
    constexpr double untouched = 42.5;
    double mine = untouched, theirs = untouched;
    const auto read = web::number_from_chars(first, last, mine);
    const auto expected = std::from_chars(first, last, theirs);
    CHECK(read.ptr - first == expected.ptr - first);
    CHECK(read.ec == expected.ec);
    CHECK(std::bit_cast<std::uint64_t>(mine) == std::bit_cast<std::uint64_t>(theirs));
}

// Any bits are a double: most of them have extreme exponents.
double any_double(std::mt19937_64& random) { return std::bit_cast<double>(random()); }
// A figure of the size that answers have.
double figure(std::mt19937_64& random) {
    const double mantissa = std::uniform_real_distribution<double>(-10, 10)(random);
    return mantissa * std::pow(10.0, std::uniform_int_distribution<int>(-12, 24)(random));
}

}  // namespace

TEST_CASE("a double has the same shortest text in the page as in the tools") {
    const double limits[] = {0.0,
                             -0.0,
                             1.0,
                             100000.0,
                             1e5,
                             1e15,
                             1e16,
                             1e22,
                             1e23,
                             123456789012345680000.0,
                             9007199254740993.0,
                             0.0001,
                             0.00001,
                             0.1,
                             1.0 / 3,
                             5e-324,
                             std::numeric_limits<double>::min(),
                             std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             14.522789762513119};
    for (const double value : limits) CHECK(ours(value) == native(value));
    std::mt19937_64 random(20261123);
    for (int i = 0; i < 20000; ++i) {
        const double extreme = any_double(random), usual = figure(random);
        if (!std::isnan(extreme)) REQUIRE(ours(extreme) == native(extreme));
        REQUIRE(ours(usual) == native(usual));
        const double integer = std::trunc(usual);
        REQUIRE(ours(integer) == native(integer));
    }
}

TEST_CASE("a text that is too long for its room is refused") {
    char room[4];
    CHECK(web::number_to_chars(room, room + 4, 0.125).ec == std::errc::value_too_large);
    CHECK(web::number_to_chars(room, room + 4, 0.25).ec == std::errc());
}

TEST_CASE("a number is read from text in the page as in the tools") {
    for (const char* const text :
         {"",         "0",      "-0",       "1",      "+1",     " 1",       "-",      ".",       ".5",
          "5.",       "-.5e1",  "1e",       "1e+",    "1e+2",   "1E-2x",    "1.5GiB", "1..5",    "0x10",
          "inf",      "-INF",   "infinity", "infin",  "nan",    "nan(1_a)", "nan(",   "na",      "1e999",
          "-1e999",   "1e-999", "0e-999",   "5e-324", "2e-324", "1e308",    "1e309",  "1,5",     "12abc",
          "0.1e-400", "1e-308", "00012",    "e5",     "1_000",  "--1",      "-+1",    "1e400foo"})
        check_same_reading(text);
    std::mt19937_64 random(20261123);
    for (int i = 0; i < 20000; ++i) {
        check_same_reading(native(figure(random)));
        check_same_reading(native(any_double(random)));
    }
}

namespace {

struct Parsed {
    std::string key;
    std::vector<std::string> value;
    std::string first_token;
    bool is_positional, is_unknown;
    bool operator==(const Parsed&) const = default;
};

template <class Options, class Parser, class MakeValue>
std::vector<Parsed> parsed_by(const std::vector<std::string>& arguments, MakeValue make_value, int style) {
    Options options;
    options.add_options()("target", make_value());
    options.add_options()("set", make_value());
    options.add_options()("json", "");
    Parser parser(arguments);
    std::vector<Parsed> all;
    for (const auto& option : parser.options(options).style(style).allow_unregistered().run().options)
        all.push_back(
            {option.position_key < 0 && !option.unregistered ? option.string_key : "",
             option.unregistered || option.position_key >= 0 ? std::vector<std::string>() : option.value,
             option.original_tokens.front(), option.position_key >= 0, option.unregistered});
    return all;
}

}  // namespace

TEST_CASE("the page's command line is taken apart as the tools' is") {
    namespace po = boost::program_options;
    using Arguments = std::vector<std::string>;
    for (const Arguments& arguments :
         {Arguments{"--target", "p4d.24xlarge", "--json"}, Arguments{"--target=p4d", "plan.toml", "--json"},
          Arguments{"--set=plan.micro_batch=2", "--set", "a=b"}, Arguments{"a", "b", "--unknown"},
          Arguments{"--unknown=3", "--json", "x"}, Arguments{"--targe", "x"}, Arguments{"-x"},
          Arguments{"--target", "-5"}, Arguments{"--json", "--", "--set"}, Arguments{}}) {
        const auto mine =
            parsed_by<web::program_options::options_description, web::program_options::command_line_parser>(
                arguments, web::program_options::value<std::string>, 0);
        const auto theirs = parsed_by<po::options_description, po::command_line_parser>(
            arguments, [] { return po::value<std::string>(); },
            po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                po::command_line_style::long_allow_adjacent);
        INFO((arguments.empty() ? "" : arguments.front()));
        CHECK(mine == theirs);
    }
}
