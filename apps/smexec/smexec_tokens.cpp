#include "apps/smexec/smexec_tokens.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"
#include "exec/data/tokenizer/tokenizer.h"

namespace apps {

namespace {

namespace fs = std::filesystem;

// Written beside its destination and renamed: a file that is there is whole.
class TokenFile {
public:
    TokenFile(const std::string& path, std::int64_t vocabulary)
        : path_(path),
          partial_(path + ".partial"),
          width_(vocabulary <= std::int64_t{1} << 16 ? 2 : 4),
          file_(partial_, std::ios::binary | std::ios::trunc) {
        write_header();
    }

    int bits() const { return 8 * width_; }
    std::int64_t count() const { return count_; }
    void append(int token) {
        std::array<char, 4> octets{};
        for (int b = 0; b < width_; ++b) octets[b] = static_cast<char>(token >> 8 * b);
        file_.write(octets.data(), width_);
        ++count_;
    }
    void finish() {
        file_.seekp(0);
        write_header();
        file_.close();
        if (!file_) fail("writing");
        std::error_code error;
        fs::rename(partial_, path_, error);
        if (error) throw core::MachineError(fmt::format("renaming {}: {}", partial_, error.message()));
    }

private:
    [[noreturn]] void fail(const char* call) const {
        throw core::MachineError(fmt::format("{} {}: {}", call, partial_, std::strerror(errno)));
    }
    // llm.c's (exec/data/text_files.h): 256 words of 32 bits.
    void write_header() {
        std::array<char, 1024> header{};
        const auto set = [&](std::size_t word, std::int64_t value) {
            for (std::size_t b = 0; b < 4; ++b) header[4 * word + b] = static_cast<char>(value >> 8 * b);
        };
        set(0, width_ == 2 ? 20240520 : 20240801);
        set(1, width_ == 2 ? 1 : 7);
        set(2, count_);
        file_.write(header.data(), header.size());
        if (!file_) fail("writing");
    }

    const std::string path_, partial_;
    const int width_;  // bytes a token
    std::ofstream file_;
    std::int64_t count_ = 0;
};

struct Texts {
    std::string path, field;  // field: of each line's JSON; a file that is no .jsonl is one text
};

// Calls `take` for every text; stops after some lines that have none.
template <class Take>
void for_each_text(const Texts& texts, const Take& take, core::Diagnostics& diagnostics) {
    constexpr std::size_t most_errors = 20;
    if (!texts.path.ends_with(".jsonl")) {
        const std::optional<std::string> text =
            core::read_file(texts.path, diagnostics, {}, "FILE", std::numeric_limits<std::size_t>::max() / 2);
        if (text) take(*text);
        return;
    }
    std::ifstream file(texts.path, std::ios::binary);
    if (!file) {
        diagnostics.error(
            {}, "FILE", fmt::format("cannot open {}: {}", core::in_quotes(texts.path), std::strerror(errno)),
            "give a file of texts");
        return;
    }
    int number = 0;
    for (std::string line; std::getline(file, line) && diagnostics.error_count() < most_errors;) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        core::Diagnostics of_line;
        const std::optional<core::Value> value = core::parse_json(line, texts.path, of_line);
        const core::Value* const text = value ? value->find(texts.field) : nullptr;
        if (text && text->is_string()) take(text->string());
        else
            diagnostics.error({texts.path, number, 0}, texts.field,
                              value ? fmt::format("this line has no text \"{}\"", texts.field)
                                    : "this line is no JSON: " + of_line.entries().front().message,
                              "each line is a JSON object; --field names its text");
    }
}

}  // namespace

bool asks_for_tokens(const std::vector<std::string>& arguments) {
    const auto option = std::find(arguments.begin(), arguments.end(), "--to");
    return std::find(arguments.begin(), arguments.end(), "--to=tokens") != arguments.end() ||
           (option != arguments.end() && option + 1 != arguments.end() && *(option + 1) == "tokens");
}

int run_smexec_tokens(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {{"--to", "--tokenizer", "--out", "--field"}, {"--json"}}, diagnostics);
    const Texts texts{options.only_positional("FILE", "texts", "smexec convert --help shows an example"),
                      options.text("--field").value_or("text")};
    for (const char* needed : {"--tokenizer", "--out"})
        if (!options.has(needed))
            options.error(needed, fmt::format("{} is missing", needed),
                          needed == std::string("--out")
                              ? "name the file of tokens, FILE.bin"
                              : "name a tokenizer.model of SentencePiece, or bytes");
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const std::string target = *options.text("--out"), name = *options.text("--tokenizer");
    const std::unique_ptr<const exec::Tokenizer> tokenizer =
        name == "bytes" ? exec::byte_tokenizer() : exec::load_sentencepiece(name, diagnostics);
    check_output("--out", target, diagnostics);
    if (diagnostics.has_errors() || !tokenizer) return show(diagnostics, as_json, out, err);

    TokenFile file(target, tokenizer->vocabulary());
    std::int64_t documents = 0;
    for_each_text(
        texts,
        [&](const std::string& text) {
            for (const int token : tokenizer->encode(text)) file.append(token);
            if (const std::optional<int> end = tokenizer->end()) file.append(*end);
            ++documents;
        },
        diagnostics);
    // The header's word for it has 32 bits.
    if (file.count() > std::numeric_limits<std::uint32_t>::max())
        diagnostics.error({}, "FILE", fmt::format("{} tokens are more than a file holds", file.count()),
                          "divide the texts into several files");
    if (diagnostics.has_errors()) {
        std::error_code none;
        fs::remove(target + ".partial", none);
        return show(diagnostics, as_json, out, err);
    }
    file.finish();
    if (as_json) {
        core::Value value = core::Value::table();
        value["tokens_file"] = target;
        value["documents"] = documents;
        value["tokens"] = file.count();
        value["bits"] = file.bits();
        value["vocabulary"] = tokenizer->vocabulary();
        value["tokenizer"] = tokenizer->describe();
        out << core::to_json(value) << '\n';
        return good;
    }
    out << fmt::format(
        "{}: {} tokens of {} bits, {} documents, by {}; the model's vocabulary is at least {}\n", target,
        file.count(), file.bits(), documents, tokenizer->describe(), tokenizer->vocabulary());
    return good;
}

}  // namespace apps
