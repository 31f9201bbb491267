#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <utility>

#include "core/diagnostics.h"
#include "exec/data/shuffled.h"
#include "tests/exec/tiny.h"

namespace {

struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("exec_data_" + std::to_string(::getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string write(const std::string& name, const std::string& content) const {
        std::ofstream(path / name, std::ios::binary) << content;
        return (path / name).string();
    }
};

std::string number(unsigned value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
            static_cast<char>(value)};
}
const std::string images_header = std::string("\0\0\x08\x03", 4) + number(3) + number(8) + number(8);
const std::string labels_header = std::string("\0\0\x08\x01", 4) + number(3);

model::ModelGraph convnet() {
    return tiny::model_of(
        "family = 'convnet'\nimage_size = 8\nchannels = 1\nconvolutions = [3]\nkernel = 3\ndense = "
        "[12]\nclasses = 5");
}

}  // namespace

TEST_CASE("a text is read as windows of bytes, labels being the next ones") {
    const Folder folder;
    const model::ModelGraph graph = tiny::model_of(
        "family = 'gpt'\nhidden = 8\nlayers = 1\nheads = 2\nvocabulary = 256\nmax_positions = "
        "4\nsequence_length = 4");
    core::Diagnostics diagnostics;
    const auto data = exec::load_data(folder.write("text.txt", "abcdefghij"), "", 1, graph, diagnostics);
    REQUIRE(data);
    const exec::InputReader reader(graph, data);
    std::vector<std::int64_t> ids(4), labels(4);
    for (const model::Operator& op : graph.operators)
        if (op.kind == model::OperatorKind::input)
            reader.read(op.output, 1, op.name == "embedding.ids" ? std::span(ids) : std::span(labels));
    // Windows of 5 bytes begin 4 apart: sample 1 is "efghi".
    CHECK(ids == std::vector<std::int64_t>{'e', 'f', 'g', 'h'});
    CHECK(labels == std::vector<std::int64_t>{'f', 'g', 'h', 'i'});
    CHECK_FALSE(exec::load_data(folder.write("short.txt", "abcd"), "", 1, graph, diagnostics));
    CHECK_FALSE(exec::load_data((folder.path / "absent.txt").string(), "", 1, graph, diagnostics));
    CHECK(diagnostics.error_count() == 2);
}

TEST_CASE("IDX images are read with their labels, and every kind of damage is named") {
    const Folder folder;
    const model::ModelGraph graph = convnet();
    const std::string pixels(3 * 64, '\xFF'), labels = {'\1', '\4', '\0'};
    const auto load = [&](const std::string& images, const std::string& with_labels) {
        core::Diagnostics diagnostics;
        const std::string path = folder.write("train-images-idx3-ubyte", images);
        folder.write("train-labels-idx1-ubyte", with_labels);
        const auto data = exec::load_data(path, "", 1, graph, diagnostics);
        CHECK(static_cast<bool>(data) != diagnostics.has_errors());
        return data ? std::string() : diagnostics.entries()[0].message;
    };
    CHECK(load(images_header + pixels, labels_header + labels).empty());
    CHECK(load(images_header + pixels.substr(1), labels_header + labels)
              .find("holds 191 bytes after its header, which states 192") != std::string::npos);
    CHECK(load("\x1f\x8b", labels_header + labels).find("cut off") != std::string::npos);
    CHECK(load("\x1f\x8b" + pixels, labels_header + labels).find("no IDX file") != std::string::npos);
    CHECK(load(labels_header + labels + pixels, labels_header + labels).find("dimensions instead of 3") !=
          std::string::npos);
    CHECK(load(images_header + pixels, labels_header + std::string("\1\5\0", 3))
              .find("label 5 of a model with 5 classes") != std::string::npos);
    CHECK(load(images_header + pixels, std::string("\0\0\x08\x01", 4) + number(2) + "\1\1")
              .find("3 images but 2 labels") != std::string::npos);
    CHECK(load(std::string("\0\0\x08\x03", 4) + number(0xFFFFFFFF) + number(0xFFFFFFFF) + number(8) + pixels,
               labels_header + labels)
              .find("states more than") != std::string::npos);
}

TEST_CASE("samples do not depend on the plan") {
    // Two replicas of 3 micro-batches of 2 see in step 5 what one replica of 6 micro-batches of 2 sees.
    std::vector<std::int64_t> split, whole;
    for (int rank = 0; rank < 2; ++rank)
        for (int k = 0; k < 3; ++k)
            for (int i = 0; i < 2; ++i) split.push_back(exec::global_sample(5, rank, 2, 3, 2, k, i));
    for (int k = 0; k < 6; ++k)
        for (int i = 0; i < 2; ++i) whole.push_back(exec::global_sample(5, 0, 1, 6, 2, k, i));
    CHECK(split == whole);
}

TEST_CASE("what the CPU backend does not execute is refused by name") {
    core::Diagnostics diagnostics;
    schedule::Plan plan = tiny::plan();
    plan.precision = {core::DataType::tf32, core::DataType::fp32, core::DataType::fp32, false};
    const model::ModelGraph vision = tiny::model_of(
        "family = 'vit'\nhidden = 16\nffn = 24\nlayers = 1\nheads = 4\npatch = 4\nimage_size = 8\nclasses = "
        "10");
    exec::check_runnable(plan, vision, diagnostics);
    const std::string text = core::format(diagnostics);
    CHECK(text.find("computes in fp32, bf16, fp16 and fp8, the plan in tf32") != std::string::npos);
    CHECK(text.find("prepend_token") != std::string::npos);
}

TEST_CASE("data are the same when their content is, whatever their file is called and whatever size it has") {
    const Folder folder;
    const model::ModelGraph graph = tiny::model_of(
        "family = 'gpt'\nhidden = 8\nlayers = 1\nheads = 2\nvocabulary = 256\nmax_positions = "
        "4\nsequence_length = 4");
    core::Diagnostics diagnostics;
    const auto identity_of = [&](const std::string& name, const std::string& content) {
        const auto data = exec::load_data(folder.write(name, content), "", 1, graph, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(data);
        return data->identity();
    };
    CHECK(identity_of("a.txt", "abcdefghij") == identity_of("b.txt", "abcdefghij"));
    CHECK(identity_of("a.txt", "abcdefghij") != identity_of("a.txt", "abcdefghiJ"));
    CHECK(identity_of("a.txt", "abcdefghij").find("10 bytes, xxh64 ") == 0);
    // llm.c's header (256 words: magic, version, tokens) is no part of the tokens.
    const std::string tokens = {'a', '\0', 'b', '\0', 'c', '\0', 'd', '\0', 'e', '\0', 'f', '\0'};
    std::string header(1024, '\0');
    const auto set = [&](std::size_t word, unsigned value) {
        for (std::size_t i = 0; i < 4; ++i) header[4 * word + i] = static_cast<char>(value >> 8 * i);
    };
    set(0, 20240520);
    set(1, 1);
    set(2, 6);
    CHECK(identity_of("bare.bin", tokens) == identity_of("llm.bin", header + tokens));
    CHECK(identity_of("bare.bin", tokens) != identity_of("a.txt", tokens));

    const model::ModelGraph images = convnet();
    const auto identity_of_images = [&](const std::string& pixels, const std::string& labels) {
        folder.write("train-labels-idx1-ubyte", labels_header + labels);
        const auto data = exec::load_data(folder.write("train-images-idx3-ubyte", images_header + pixels), "",
                                          1, images, diagnostics);
        REQUIRE(data);
        return data->identity();
    };
    const std::string pixels(3 * 64, '\xFF');
    CHECK(identity_of_images(pixels, {'\1', '\4', '\0'}) == identity_of_images(pixels, {'\1', '\4', '\0'}));
    CHECK(identity_of_images(pixels, {'\1', '\4', '\0'}) != identity_of_images(pixels, {'\1', '\4', '\1'}));
    CHECK(identity_of_images(pixels, {'\1', '\4', '\0'}) !=
          identity_of_images("\1" + pixels.substr(1), {'\1', '\4', '\0'}));
}

namespace {

model::ModelGraph words_of_four(const std::string& vocabulary) {
    return tiny::model_of("family = 'gpt'\nhidden = 8\nlayers = 1\nheads = 2\nvocabulary = " + vocabulary +
                          "\nmax_positions = 4\nsequence_length = 4");
}

std::string little_endian(std::int64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
    return text;
}

}  // namespace

TEST_CASE("tokens of 32 bits are read with llm.c's header of Llama 3, and without one when that is said") {
    const Folder folder;
    const model::ModelGraph graph = words_of_four("128256");
    std::string tokens, header(1024, '\0');
    for (int i = 0; i < 9; ++i) tokens += little_endian(70000 + i, 4);
    header.replace(0, 12, little_endian(20240801, 4) + little_endian(7, 4) + little_endian(9, 4));
    core::Diagnostics diagnostics;
    const auto second = [&](const std::string& path, const char* format) {
        const auto data = exec::load_data(path, format, 1, graph, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(data);
        CHECK(data->samples() == 2);  // 9 tokens: two windows of 5 that begin 4 apart
        std::vector<std::int64_t> ids(5);
        data->tokens(1, ids);
        return ids;
    };
    const std::vector<std::int64_t> expected = {70004, 70005, 70006, 70007, 70008};
    CHECK(second(folder.write("llama.bin", header + tokens), "") == expected);
    CHECK(second(folder.write("bare.bin", tokens), "tokens32") == expected);
    CHECK_FALSE(diagnostics.has_errors());
    CHECK_FALSE(exec::load_data(folder.write("odd.bin", tokens + "ab"), "tokens32", 1, graph, diagnostics));
    CHECK(diagnostics.entries().back().message.find("a token takes 4") != std::string::npos);
    CHECK_FALSE(
        exec::load_data(folder.write("cut.bin", header + tokens.substr(4)), "", 1, graph, diagnostics));
    CHECK(diagnostics.entries().back().message.find("version 7 and 9 tokens") != std::string::npos);
    CHECK_FALSE(exec::load_data(folder.write("large.bin", little_endian(128256, 4) + tokens), "tokens32", 1,
                                graph, diagnostics));
    CHECK(diagnostics.entries().back().message.find("a token 128256 at place 0") != std::string::npos);
}

TEST_CASE("data larger than 2 GiB are mapped, and changes in what is looked at change their identity") {
    const Folder folder;
    const model::ModelGraph graph = words_of_four("256");
    const std::string path = folder.write("large.txt", "");
    constexpr std::uintmax_t size = (std::uintmax_t(3) << 30) + 1;  // 805306368 windows; holes take no disk
    std::filesystem::resize_file(path, size);
    core::Diagnostics diagnostics;
    const auto load = [&] {
        const auto data = exec::load_data(path, "bytes", 1, graph, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(data);
        return data;
    };
    const std::string empty = load()->identity();
    CHECK(empty.find("of 4096 pieces") != std::string::npos);
    {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(size - 5));
        file << "smsim";
    }
    const auto data = load();
    CHECK(data->identity() != empty);
    CHECK(data->samples() == 805306368);
    std::vector<std::int64_t> ids(5);
    data->tokens(805306367, ids);
    CHECK(ids == std::vector<std::int64_t>{'s', 'm', 's', 'i', 'm'});
}

TEST_CASE("a shuffled epoch has every sample once, in an order of its own, whoever asks in what order") {
    for (const std::int64_t count : {1, 2, 3, 7, 64, 1000}) {
        std::vector<char> is_seen(count, 0);
        std::int64_t stayed = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t place = exec::permuted(i, count, 99);
            REQUIRE(place >= 0);
            REQUIRE(place < count);
            CHECK_FALSE(std::exchange(is_seen[place], 1));
            stayed += place == i ? 1 : 0;
        }
        // A drawn order keeps one sample in its place on average, and more than 10 with 1e-7.
        if (count > 10) CHECK(stayed < 10);
    }
    const Folder folder;
    const model::ModelGraph graph = words_of_four("256");
    std::string text;
    for (int i = 0; i < 81; ++i) text += static_cast<char>('!' + i);
    core::Diagnostics diagnostics;
    const auto source = exec::load_data(folder.write("text.txt", text), "", 1, graph, diagnostics);
    REQUIRE(source);
    REQUIRE(source->samples() == 20);
    const auto firsts = [](const exec::DataSource& data, std::int64_t epoch) {
        std::vector<std::int64_t> result, window(5);
        for (std::int64_t i = 20; i-- > 0;) {
            data.tokens(epoch * 20 + i, window);
            result.push_back(window[0]);
        }
        return result;
    };
    const auto data = exec::shuffled(source, 5), again = exec::shuffled(source, 5),
               other = exec::shuffled(source, 6);
    CHECK(firsts(*data, 0) == firsts(*again, 0));
    CHECK(firsts(*data, 0) != firsts(*data, 1));
    CHECK(firsts(*data, 0) != firsts(*other, 0));
    std::vector<std::int64_t> sorted = firsts(*data, 1), whole = firsts(*source, 0);
    std::sort(sorted.begin(), sorted.end());
    std::sort(whole.begin(), whole.end());
    CHECK(sorted == whole);
    // A checkpoint of one order is not gone on with in another.
    CHECK(data->identity() != other->identity());
    CHECK(data->identity() != source->identity());
}

TEST_CASE("CIFAR's records are read as RGB images with their fine labels") {
    const Folder folder;
    const model::ModelGraph graph = tiny::model_of(
        "family = 'convnet'\nimage_size = 32\nchannels = 3\nconvolutions = [3]\nkernel = 3\ndense = "
        "[12]\nclasses = 10");
    const std::string planes =
        std::string(1024, '\x00') + std::string(1024, '\x33') + std::string(1024, '\xFF');
    core::Diagnostics diagnostics;
    const auto check = [&](const std::string& content, const char* format) {
        const auto data = exec::load_data(folder.write("batch.bin", content), format, 1, graph, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(data);
        CHECK(data->samples() == 2);
        CHECK(data->label(0, 10) == 7);
        CHECK(data->label(3, 10) == 9);
        std::vector<float> image(3072);
        data->image(1, image);
        CHECK(image[0] == 0);
        CHECK(image[1024] == Approx(0.2));  // 0x33 = 51 of 255
        CHECK(image[3071] == 1);
    };
    check("\x07" + planes + "\x09" + planes, "cifar10");
    check("\x01\x07" + planes + "\x02\x09" + planes, "cifar100");
    CHECK_FALSE(exec::load_data(folder.write("cut.bin", "\x07" + planes.substr(1)), "cifar10", 1, graph,
                                diagnostics));
    CHECK(diagnostics.entries().back().message.find("an image with its labels takes 3073") !=
          std::string::npos);
    CHECK_FALSE(exec::load_data(folder.write("many.bin", "\x0A" + planes), "cifar10", 1, graph, diagnostics));
    CHECK(diagnostics.entries().back().message.find("label 10 at image 0") != std::string::npos);
    CHECK_FALSE(
        exec::load_data(folder.write("grey.bin", "\x07" + planes), "cifar10", 1, convnet(), diagnostics));
    CHECK(diagnostics.entries().back().message.find("with 3 channels, but the model takes 1") !=
          std::string::npos);
}
