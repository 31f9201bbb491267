#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"

using namespace core;

namespace {

Value good(std::optional<Value> (*parse)(std::string_view, const std::string&, Diagnostics&),
           std::string_view text) {
    Diagnostics diagnostics;
    auto value = parse(text, "file", diagnostics);
    INFO(format(diagnostics));
    REQUIRE(value.has_value());
    REQUIRE(diagnostics.entries().empty());
    return *value;
}

std::string refused(std::optional<Value> (*parse)(std::string_view, const std::string&, Diagnostics&),
                    std::string_view text) {
    Diagnostics diagnostics;
    const auto value = parse(text, "file", diagnostics);
    CHECK_FALSE(value.has_value());
    CHECK(diagnostics.has_errors());
    return format(diagnostics);
}

bool starts_with(const std::string& text, std::string_view start) {
    return text.compare(0, start.size(), start) == 0;
}

std::string place(const SourceLocation& location) {
    return std::to_string(location.line) + ":" + std::to_string(location.column);
}

// Equal but for the order of table members and places.
bool same(const Value& a, const Value& b) {
    if (a.kind() != b.kind() || a.size() != b.size()) return false;
    switch (a.kind()) {
        case Value::Kind::null: return true;
        case Value::Kind::boolean: return a.boolean() == b.boolean();
        case Value::Kind::integer: return a.integer() == b.integer();
        case Value::Kind::real:
            return std::isnan(a.number())
                       ? std::isnan(b.number())
                       : a.number() == b.number() && std::signbit(a.number()) == std::signbit(b.number());
        case Value::Kind::string: return a.string() == b.string();
        case Value::Kind::array:
            for (std::size_t i = 0; i < a.size(); ++i)
                if (!same(a.items()[i], b.items()[i])) return false;
            return true;
        case Value::Kind::table:
            for (const auto& [key, value] : a.members())
                if (const Value* other = b.find(key); !other || !same(value, *other)) return false;
            return true;
    }
    return false;
}

std::string random_text(Random& random) {
    static const char* const pieces[] = {"a",    "Z",      "0",      "_",          "-",  " ",  ".",  "\"",
                                         "'",    "\\",     "\n",     "\t",         "\r", "\b", "\f", "\x01",
                                         "\x7f", "\u00e9", "\u4e2d", "\U0001F600", "#",  "=",  "[",  "]"};
    std::string text;
    for (std::uint64_t n = random.below(6); n > 0; --n) text += pieces[random.below(std::size(pieces))];
    return text;
}

Value random_value(Random& random, int depth, bool for_toml) {
    switch (random.below(depth > 0 ? 8 : 5)) {
        case 0: return Value(random.below(2) == 1);
        case 1: return Value(static_cast<std::int64_t>(random.next()));
        case 2: return Value(random.normal() * std::pow(10.0, static_cast<double>(random.below(600)) - 300));
        case 3: return Value(static_cast<double>(random.below(1000)));
        case 4: return Value(random_text(random));
        case 5: {
            Value array = Value::array();
            for (std::uint64_t n = random.below(4); n > 0; --n)
                array.append(random_value(random, depth - 1, for_toml));
            return array;
        }
        default: {
            Value table = Value::table();
            for (std::uint64_t n = random.below(4); n > 0; --n)
                table[random_text(random)] = random_value(random, depth - 1, for_toml);
            return table;
        }
    }
}

}  // namespace

TEST_CASE("TOML values know where they stand and keep their order") {
    const Value document = good(parse_toml,
                                "zebra = 1\napple = \"x\"\n\n[plan]\n  tensor = 2.5\n  list = [1,\n   "
                                "22]\n[[node]]\nname = 'a'\n[[node]]\nname = 'b'\n");
    REQUIRE(document.members().size() == 4);
    CHECK(document.members()[0].first == "zebra");
    CHECK(document.members()[1].first == "apple");
    CHECK(place(document.find("apple")->location) == "2:9");
    CHECK(place(document.find("apple")->key_location) == "2:1");
    const Value& plan = *document.find("plan");
    CHECK(place(plan.find("tensor")->location) == "5:12");
    CHECK(place(plan.find("tensor")->key_location) == "5:3");
    CHECK(place(plan.find("list")->items()[1].location) == "7:4");
    CHECK(plan.find("tensor")->location.file == "file");
    CHECK(document.find("node")->items()[1].find("name")->string() == "b");
}

TEST_CASE("JSON values know where they stand and keep their order") {
    const Value document = good(
        parse_json,
        "{\"zebra\": 12,\n \"apple\" : [true, null,\n  -1.5e3 , \"\\u00e9 x\" ],\n\"t\":{\"\\\"k\": {}}}");
    CHECK(document.members()[0].first == "zebra");
    CHECK(place(document.find("zebra")->key_location) == "1:2");
    CHECK(place(document.find("zebra")->location) == "1:11");
    const Value& apple = *document.find("apple");
    CHECK(place(apple.key_location) == "2:2");
    CHECK(place(apple.location) == "2:12");
    CHECK(place(apple.items()[0].location) == "2:13");
    CHECK(place(apple.items()[1].location) == "2:19");
    CHECK(apple.items()[1].is_null());
    CHECK(place(apple.items()[2].location) == "3:3");
    CHECK(apple.items()[2].number() == -1500);
    CHECK(place(apple.items()[3].location) == "3:12");
    CHECK(apple.items()[3].string() == "\u00e9 x");
    CHECK(place(document.find("t")->find("\"k")->key_location) == "4:6");
    CHECK(place(document.find("t")->find("\"k")->location) == "4:13");
    CHECK(good(parse_json, "3").integer() == 3);
    CHECK(good(parse_json, "\xEF\xBB\xBF[]").is_array());
    CHECK(good(parse_json, "9223372036854775807").integer() == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("malformed text is refused at its place") {
    CHECK(starts_with(refused(parse_toml, "a = 1\nb = \n"), "file:2:"));
    CHECK(starts_with(refused(parse_toml, "a = 1\na = 2\n"), "file:2:"));
    CHECK(starts_with(refused(parse_toml, "when = 2020-12-08\n"), "file:1:8: error: when is a date"));
    CHECK(starts_with(refused(parse_toml, "x = [1, 12:30:00]\n"), "file:1:9: error: x[1] is a date"));
    CHECK(starts_with(refused(parse_toml, "a = \"\xff\"\n"), "file:1:6: error: byte 0xFF"));
    CHECK(starts_with(refused(parse_toml, std::string_view("a = 1\n\0", 7)), "file:2:1: error: byte 0x00"));
    CHECK(starts_with(refused(parse_toml, "a = \"\xed\xa0\x80\"\n"),
                      "file:1:6: error: byte 0xED"));  // a lone surrogate
    CHECK(starts_with(refused(parse_json, ""), "file:1:1: error: the file is empty"));
    CHECK(
        starts_with(refused(parse_json, "{\"a\": 1,\n \"a\": 2}"), "file:2:2: error: key 'a' stands twice"));
    CHECK(starts_with(refused(parse_json, "{\n \"a\": tru }"), "file:2:"));
    CHECK(starts_with(refused(parse_json, "[1,2"), "file:1:"));
    CHECK(starts_with(refused(parse_json, "[1] x"), "file:1:5:"));
    CHECK(starts_with(refused(parse_json, "[NaN]"), "file:1:"));
    CHECK(starts_with(refused(parse_json, "[1e999]"), "file:1:"));
    CHECK(starts_with(refused(parse_json, "[1, 9223372036854775808]"),
                      "file:1:5: error: 9223372036854775808 is too large"));
    CHECK(starts_with(refused(parse_json, std::string_view("\"\0\"", 3)), "file:1:2: error: byte 0x00"));
}

TEST_CASE("deep nesting is refused before it can overflow a stack") {
    const auto repeat = [](std::string_view piece, int count) {
        std::string text;
        for (int i = 0; i < count; ++i) text += piece;
        return text;
    };
    for (const int depth : {deepest_nesting + 1, 1000, 1000000}) {
        CHECK(refused(parse_json, repeat("[", depth)).find("nested deeper than 64") != std::string::npos);
        CHECK(refused(parse_json, repeat("{\"a\":", depth)).find("nested deeper than 64") !=
              std::string::npos);
        CHECK(refused(parse_toml, "a = " + repeat("[", depth)).find("nested deeper than 64") !=
              std::string::npos);
        CHECK(refused(parse_toml, "a = " + repeat("{a=", depth)).find("nested deeper than 64") !=
              std::string::npos);
        CHECK(refused(parse_toml, repeat("a.", depth) + "a = 1").find("nested deeper than 64") !=
              std::string::npos);
        CHECK(refused(parse_toml, "[" + repeat("a.", depth) + "a]").find("nested deeper than 64") !=
              std::string::npos);
        CHECK(refused(parse_toml, "[[" + repeat("'a' . ", depth) + "a]]").find("nested deeper than 64") !=
              std::string::npos);
    }
    // Headers, dotted keys and inline tables add up.
    CHECK(refused(parse_toml, "[" + repeat("a.", 40) + "a]\n" + repeat("b.", 40) + "b = 1")
              .find("nested deeper than 64") != std::string::npos);
    CHECK(good(parse_json, repeat("[", deepest_nesting) + repeat("]", deepest_nesting)).is_array());
    CHECK(good(parse_toml, "a = " + repeat("[", deepest_nesting - 1) + repeat("]", deepest_nesting - 1))
              .is_table());
    // Brackets and dots in strings and comments are no nesting.
    CHECK(good(parse_toml, "a = '" + repeat("[", 100) + "' # " + repeat("[.", 100) + "\nb = \"\\\"" +
                               repeat("{", 100) + "\"\nc = '''" + repeat("['\n", 100) + "'''\nd = \"\"\"" +
                               repeat("[\\\"\"\n", 100) + "\"\"\"\n")
              .size() == 4);
}

TEST_CASE("what is written as TOML or JSON reads back the same") {
    Random random(7);
    for (int round = 0; round < 2000; ++round) {
        Value table = Value::table();
        for (std::uint64_t n = random.below(6); n > 0; --n)
            table[random_text(random)] = random_value(random, 3, true);
        const std::string toml = to_toml(table);
        const std::string json = to_json(table, static_cast<int>(random.below(3)));
        CAPTURE(toml, json);
        REQUIRE(same(table, good(parse_toml, toml)));
        const Value from_json = good(parse_json, json);
        REQUIRE(same(table, from_json));
        for (std::size_t i = 0; i < table.size(); ++i)
            REQUIRE(from_json.members()[i].first == table.members()[i].first);
        REQUIRE(to_toml(good(parse_toml, toml)) == toml);
    }
}

TEST_CASE("numbers keep their kind and their value in text") {
    Value table = Value::table();
    table["one"] = 1.0;
    table["third"] = 1.0 / 3.0;
    table["large"] = 1e22;
    table["tiny"] = 5e-324;
    table["minus_zero"] = -0.0;
    table["count"] = std::int64_t{1} << 60;
    CHECK(to_toml(table) ==
          "one = 1.0\nthird = 0.3333333333333333\nlarge = 1e+22\ntiny = 5e-324\nminus_zero = -0.0\ncount = "
          "1152921504606846976\n");
    CHECK(to_json(table, 0) ==
          "{\"one\":1.0,\"third\":0.3333333333333333,\"large\":1e+22,\"tiny\":5e-324,\"minus_zero\":-0.0,"
          "\"count\":1152921504606846976}\n");
    Value odd = Value::table();
    odd["n"] = std::numeric_limits<double>::quiet_NaN();
    odd["i"] = -std::numeric_limits<double>::infinity();
    CHECK(to_json(odd, 0) == "{\"n\":null,\"i\":null}\n");
    CHECK(same(good(parse_toml, to_toml(odd)), odd));
    odd["absent"] = Value();
    CHECK(good(parse_toml, to_toml(odd)).size() == 2);
}

TEST_CASE("TOML puts scalars before tables and JSON stands readable") {
    Value inner = Value::table();
    inner["k"] = "v";
    Value document = Value::table();
    document["table"] = inner;
    document["list"] = std::vector<int>{1, 2};
    document["rows"] = Value::Array{inner, inner};
    document["x"] = true;
    CHECK(to_toml(document) ==
          "list = [1, 2]\nx = true\n\n[table]\nk = \"v\"\n\n[[rows]]\nk = \"v\"\n\n[[rows]]\nk = \"v\"\n");
    CHECK(to_json(document) ==
          "{\n  \"table\": {\n    \"k\": \"v\"\n  },\n  \"list\": [1, 2],\n  \"rows\": [\n    {\n      "
          "\"k\": \"v\"\n    },\n    {\n      \"k\": \"v\"\n    "
          "}\n  ],\n  \"x\": true\n}\n");
    CHECK(to_json(Value::table()) == "{}\n");
    CHECK(to_json(Value(std::string("\xff"))) == "\"\xEF\xBF\xBD\"\n");
}

TEST_CASE("diagnostics become the errors document") {
    Diagnostics diagnostics;
    diagnostics.error({"f", 3, 4}, "a.b", "m", "h");
    diagnostics.warning({}, "", "w");
    CHECK(to_json(to_value(diagnostics), 0) ==
          "{\"errors\":[{\"file\":\"f\",\"line\":3,\"column\":4,\"key\":\"a.b\",\"message\":\"m\",\"hint\":"
          "\"h\"}],"
          "\"warnings\":[{\"file\":\"\",\"line\":0,\"column\":0,\"key\":\"\",\"message\":\"w\",\"hint\":\"\"}"
          "]}\n");
}

TEST_CASE("files are read whole, and what cannot be read is said with its place") {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("test_document_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    const std::string path = (folder / "scenario.toml").string();
    write_file_atomically(path, "a = 1\n");
    write_file_atomically(path, "a = 2\n");
    Diagnostics diagnostics;
    CHECK(read_file(path, diagnostics) == std::optional<std::string>("a = 2\n"));
    CHECK(load_document(path, diagnostics)->find("a")->integer() == 2);
    CHECK_FALSE(diagnostics.has_errors());

    CHECK_FALSE(
        read_file((folder / "scenari.toml").string(), diagnostics, {"plan.toml", 3, 1}, "model").has_value());
    CHECK(diagnostics.entries().back().hint.find("scenario.toml") != std::string::npos);
    CHECK(diagnostics.entries().back().location.line == 3);
    CHECK(diagnostics.entries().back().key == "model");
    CHECK_FALSE(read_file(folder.string(), diagnostics).has_value());
    CHECK(diagnostics.entries().back().message.find("is a directory") != std::string::npos);
    CHECK_FALSE(read_file("", diagnostics).has_value());
    CHECK_FALSE(read_file("/dev/zero", diagnostics, {}, "", 1000).has_value());
    CHECK(diagnostics.entries().back().message.find("is larger than 1000 B") != std::string::npos);
    CHECK(diagnostics.error_count() == 4);

    // A link stays a link, a device stays a device, and nothing is left over.
    std::filesystem::create_symlink(path, folder / "link.toml");
    write_file_atomically((folder / "link.toml").string(), "a = 3\n");
    CHECK(std::filesystem::is_symlink(folder / "link.toml"));
    CHECK(load_document(path, diagnostics)->find("a")->integer() == 3);
    write_file_atomically("/dev/null", "gone");
    CHECK(std::filesystem::is_character_file("/dev/null"));
    CHECK_THROWS_AS(write_file_atomically((folder / "no" / "such" / "place").string(), "x"), MachineError);
    CHECK(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()) ==
          2);
    std::filesystem::remove_all(folder);
}

TEST_CASE("text that toml++ assumes away is refused, not undefined behaviour") {
    // Found by tests/fuzz/fuzz_document: a bracket without a key, and a letter outside ASCII in a bare key.
    for (const char* text : {"[\n", "[[\n", "a = 1\n[\nb = 2\n",
                             "osrv\303\232\337\200e=", "a = 1l\"\321\210!", "\xC3\xA9 = 1\n"}) {
        core::Diagnostics diagnostics;
        CHECK_FALSE(core::parse_toml(text, "bad.toml", diagnostics));
        CHECK(diagnostics.error_count() == 1);
    }
    core::Diagnostics diagnostics;
    CHECK(core::parse_toml("a = \"\xC3\xA9\" # \xC3\xA9\n", "good.toml", diagnostics));
}
