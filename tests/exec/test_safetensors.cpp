#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "exec/checkpoint/rank_file.h"
#include "tests/exec/temporary_folder.h"

namespace {

using exec::ElementRange;

std::string file_of(const std::string& header, const std::string& arrays) {
    const std::uint64_t length = header.size();
    std::string content(sizeof length, '\0');
    std::memcpy(content.data(), &length, sizeof length);
    return content + header + arrays;
}

struct Read {
    std::optional<exec::SafetensorsFile> file;
    std::string failure;
};

Read read(const std::string& content) {
    const TemporaryFolder folder;
    const std::string path = folder.path + "/x.safetensors";
    std::ofstream(path, std::ios::binary) << content;
    Read result;
    result.file = exec::SafetensorsFile::open(path, result.failure);
    return result;
}

}  // namespace

TEST_CASE("safetensors: numbers of every floating type are read as fp32") {
    // Written by hand from the types' definitions: 1.5, -2 and the smallest subnormal (F16: 2^-24).
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"h":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},)"
        R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[6,10]},)"
        R"("f":{"dtype":"F32","shape":[],"data_offsets":[10,14]},)"
        R"("d":{"dtype":"F64","shape":[1],"data_offsets":[14,22]},)"
        R"("i":{"dtype":"I32","shape":[0],"data_offsets":[22,22]}}  )";
    const std::string arrays(
        "\x00\x3e\x00\xc0\x01\x00"           // F16
        "\xc0\x3f\x00\xc0"                   // BF16
        "\x00\x00\xc0\x3f"                   // F32
        "\x00\x00\x00\x00\x00\x00\xf8\x3f",  // F64
        22);
    const Read all = read(file_of(header, arrays));
    INFO(all.failure);
    REQUIRE(all.file);
    CHECK(all.file->metadata().at("format") == "pt");
    CHECK(all.file->tensors().size() == 5);
    CHECK(all.file->tensors().at("b").shape == std::vector<std::int64_t>{2, 1});
    CHECK(all.file->tensors().at("f").elements() == 1);
    std::string failure;
    const auto values = [&](const std::string& name, std::size_t count) {
        std::vector<float> result(count);
        CHECK(all.file->read(all.file->tensors().at(name), 0, result, failure));
        return result;
    };
    CHECK(values("h", 3) == std::vector<float>{1.5f, -2.0f, 0x1p-24f});
    CHECK(values("b", 2) == std::vector<float>{1.5f, -2.0f});
    CHECK(values("f", 1) == std::vector<float>{1.5f});
    CHECK(values("d", 1) == std::vector<float>{1.5f});
    std::vector<float> last(1);
    CHECK(all.file->read(all.file->tensors().at("h"), 1, last, failure));
    CHECK(last[0] == -2.0f);
    CHECK_FALSE(all.file->read(all.file->tensors().at("h"), 3, last, failure));
}

TEST_CASE("safetensors: a header that does not describe its file is refused in words") {
    const auto failure = [](const std::string& header, const std::string& arrays) {
        const Read all = read(file_of(header, arrays));
        CHECK_FALSE(all.file);
        return all.failure;
    };
    using Catch::Contains;
    const std::string four(4, 'x');
    CHECK_THAT(read("").failure, Contains("it has 0 bytes"));
    CHECK_THAT(read(std::string(8, '\xff')).failure, Contains("its header should have"));
    CHECK_THAT(failure("[1]", ""), Contains("no JSON object"));
    CHECK_THAT(failure("{", ""), Contains("no JSON object"));
    CHECK_THAT(failure(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four),
               Contains("do not add up"));
    CHECK_THAT(failure(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", four),
               Contains("do not add up"));
    CHECK_THAT(failure(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four),
               Contains("do not add up"));
    CHECK_THAT(failure(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", ""),
               Contains("do not add up"));
    CHECK_THAT(failure(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", four),
               Contains("truncated"));
    CHECK_THAT(failure(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four + "y"),
               Contains("1 bytes follow"));
    CHECK_THAT(failure(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
                       four),
               Contains("overlap"));
    CHECK_THAT(failure(R"({"__metadata__":{"a":1}})", ""), Contains("not all strings"));
}

TEST_CASE("places of elements are written shortly and read back") {
    const std::vector<ElementRange> columns = {{3, 2}, {11, 2}, {19, 2}, {30, 1}, {31, 5}};
    CHECK(exec::words_of(columns) == "3+2*3/8 30+1 31+5");
    CHECK(exec::ranges_of("3+2*3/8 30+1 31+5", 12) == columns);
    CHECK(exec::words_of({{0, 7}}) == "0+7");
    for (const char* wrong : {"3+2*3/8 30+1", "3+2*3/8  30+1 31+5", "3+2*-3/8", "0+0", "x", "0+12 ", "0+12*",
                              "-1+12", "0+1*9223372036854775807/1", "0+1*12/9223372036854775807"})
        CHECK_FALSE(exec::ranges_of(wrong, 12));
}

TEST_CASE("a rank's file is read array by array, and every flipped bit is found") {
    const TemporaryFolder folder;
    const std::vector<exec::StateRecord> records = {
        {"a.weight", exec::StateKind::value, {2, 3}, {{0, 6}}, {1, 2, 3, 4, 5, 6}},
        {"a.weight", exec::StateKind::first_moment, {2, 3}, {{1, 1}, {4, 1}}, {7, 8}}};
    const exec::CheckpointFile file = exec::write_rank_file(folder.path, 3, records);
    CHECK(file.name == "rank-0003.safetensors");
    const std::string path = folder.path + "/" + file.name;
    std::string failure;
    const auto whole = exec::RankFile::open(folder.path, file, failure);
    INFO(failure);
    REQUIRE(whole);
    REQUIRE(whole->arrays().size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(whole->verify(i, failure));
        const bool is_value = whole->arrays()[i].kind == exec::StateKind::value;
        CHECK(whole->arrays()[i].ranges == records[is_value ? 0 : 1].ranges);
        std::vector<float> last(1);
        CHECK(whole->read(i, is_value ? 5 : 1, last, failure));
        CHECK(last[0] == (is_value ? 6 : 8));
    }
    std::fstream bits(path, std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t at = 0; at < file.bytes; ++at) {
        const auto flip = [&] {
            bits.seekg(static_cast<std::streamoff>(at));
            const char byte = static_cast<char>(bits.get() ^ (1 << at % 8));
            bits.seekp(static_cast<std::streamoff>(at));
            bits.put(byte).flush();
        };
        flip();
        const auto altered = exec::RankFile::open(folder.path, file, failure);
        if (altered && altered->verify(0, failure) && altered->verify(1, failure)) FAIL("byte " << at);
        flip();
    }
}
