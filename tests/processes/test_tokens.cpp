// Texts become tokens that a training reads.
#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;

struct Texts {
    Folder folder;
    std::string tokens = folder.path + "/texts.bin";
    std::string write(const std::string& name, const std::string& content) const {
        std::ofstream(folder.path + "/" + name, std::ios::binary) << content;
        return folder.path + "/" + name;
    }
    Process convert(const std::string& texts, std::vector<std::string> more) const {
        std::vector<std::string> arguments = {smexec, "convert", texts, "--to", "tokens", "--out", tokens};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(arguments, folder.path + "/log");
    }
};

}  // namespace

TEST_CASE("lines of JSON become bytes as tokens, documents apart, and a model trains on them") {
    const Texts texts;
    std::string lines, expected;
    for (int i = 0; i < 40; ++i) {
        lines += "{\"id\": " + std::to_string(i) + ", \"body\": \"document \\u00e9 " + std::to_string(i) +
                 "\"}\n\n";
        expected += "document \xC3\xA9 " + std::to_string(i) + "\n";
    }
    const std::string path = texts.write("texts.jsonl", lines);
    const Process converted = texts.convert(path, {"--tokenizer", "bytes", "--field", "body"});
    INFO(content_of(converted.err));
    REQUIRE(converted.code() == 0);
    CHECK_THAT(content_of(converted.out), Contains("tokens of 16 bits, 40 documents, by bytes"));
    const std::string file = content_of(texts.tokens);
    REQUIRE(file.size() == 1024 + 2 * expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        REQUIRE(file[1024 + 2 * i] == expected[i]);
        REQUIRE(file[1024 + 2 * i + 1] == '\0');
    }
    const std::string plan = texts.write("plan.toml", R"(version = 1
[model]
family = "gpt"
name = "bytes"
hidden = 8
layers = 1
heads = 2
vocabulary = 256
max_positions = 8
sequence_length = 8
[cluster]
instance = "local-cpu"
[plan]
micro_batch = 2
micro_batches = 2
precision = "fp32"
[training]
data = "texts.bin"
shuffle_seed = 3
steps = 3
)");
    const Process trained =
        run({smexec, plan, "--no-compare", "--ranks-from", "threads", "--check"}, texts.folder.path + "/log");
    INFO(content_of(trained.err));
    CHECK(trained.code() == 0);
    CHECK_THAT(content_of(trained.out), Contains(std::to_string(expected.size()) + " tokens of ") &&
                                            Contains("shuffled by seed 3") && Contains("equal in fp32"));
}

TEST_CASE("texts that are none, and tokenizers that are none, are named, and no file is written") {
    const Texts texts;
    const std::string bad = texts.write("bad.jsonl", "{\"text\": \"good\"}\n{\"text\": 5}\nnone\n");
    const Process refused = texts.convert(bad, {"--tokenizer", "bytes"});
    CHECK(refused.code() == 2);
    CHECK_THAT(content_of(refused.err), Contains("bad.jsonl:2: error: this line has no text \"text\"") &&
                                            Contains("bad.jsonl:3: error: this line is no JSON"));
    const std::string good = texts.write("good.txt", "good");
    const Process no_tokenizer = texts.convert(good, {});
    CHECK(no_tokenizer.code() == 2);
    CHECK_THAT(content_of(no_tokenizer.err), Contains("--tokenizer is missing"));
    // With the library it is no model; without it none can be read. Never bytes instead.
    const Process no_model = texts.convert(good, {"--tokenizer", good});
    CHECK(no_model.code() == 2);
    CHECK_THAT(content_of(no_model.err), Contains("good.txt"));
    CHECK_FALSE(fs::exists(texts.tokens));
    CHECK_FALSE(fs::exists(texts.tokens + ".partial"));
}
