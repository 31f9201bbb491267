#include <catch2/catch.hpp>

#include "core/diagnostics.h"

using namespace core;

TEST_CASE("a diagnostic is one line with its place, and a hint line") {
    Diagnostics diagnostics;
    diagnostics.error({"scenarios/a.toml", 14, 10}, "plan.x", "MESSAGE", "HINT");
    diagnostics.warning({"a.toml", 0, 0}, "", "careful");
    diagnostics.error({}, "", "no place");
    CHECK(
        format(diagnostics) ==
        "scenarios/a.toml:14:10: error: MESSAGE\n  hint: HINT\na.toml: warning: careful\nerror: no place\n");
    CHECK(diagnostics.error_count() == 2);
    Diagnostics only_warning;
    only_warning.warning({}, "", "w");
    CHECK_FALSE(only_warning.has_errors());
    only_warning.append(diagnostics);
    CHECK(only_warning.error_count() == 2);
    CHECK(only_warning.entries().size() == 4);
}

TEST_CASE("a slip of the keyboard finds its word") {
    const std::vector<std::string> known = {"tensor_parallel", "pipeline_parallel", "data_parallel",
                                            "seq_len", "tp"};
    CHECK(did_you_mean("tensor_paralell", known) == "tensor_parallel");  // one letter for another, twice
    CHECK(did_you_mean("tensor_aprallel", known) == "tensor_parallel");  // neighbours swapped
    CHECK(did_you_mean("Seq_Len", known) == "seq_len");                  // case does not count
    CHECK(did_you_mean("tensorparallel", known) == "tensor_parallel");
    CHECK(did_you_mean("colour", known).empty());
    CHECK(did_you_mean("xy", known).empty());
    CHECK(did_you_mean("t", known) == "tp");
    CHECK(did_you_mean("a", {"b", "c"}).empty());  // every letter is one substitution from every other
    CHECK(did_you_mean("", known).empty());
    CHECK(did_you_mean("anything", {}).empty());
    CHECK(did_you_mean(std::string(1 << 20, 'x'), known).empty());
}

TEST_CASE("lists are written as a person writes them") {
    CHECK(list_in_words({}).empty());
    CHECK(list_in_words({"a"}) == "a");
    CHECK(list_in_words({"a", "b"}) == "a or b");
    CHECK(list_in_words({"a", "b", "c"}) == "a, b or c");
}

TEST_CASE("text from outside cannot break a message") {
    CHECK(in_quotes("plain") == "'plain'");
    CHECK(in_quotes("a\nb\x1b[31m") == "'a\\x0ab\\x1b[31m'");
    CHECK(in_quotes("\xff") == "'\\xff'");
    CHECK(in_quotes("\u00e9") == "'\u00e9'");
    CHECK(in_quotes(std::string(1000, 'a'), 10) == "'" + std::string(10, 'a') + "...'");
    core::Diagnostics diagnostics;
    diagnostics.error({"no\nsuch\x1b[31m.toml", 3, 0}, "", "it is not there");
    CHECK(core::format(diagnostics) == "no\\x0asuch\\x1b[31m.toml:3: error: it is not there\n");
}

TEST_CASE("a broken promise names itself") {
    CHECK_NOTHROW(require(true, "fine"));
    try {
        require(false, "ranks balance");
        FAIL("nothing was thrown");
    } catch (const InternalError& error) {
        CHECK(std::string(error.what()).find("ranks balance (") != std::string::npos);
        CHECK(std::string(error.what()).find("test_diagnostics.cpp:") != std::string::npos);
    }
}
