#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "exec/data/tokenizer/module/pieces.h"
#include "exec/data/tokenizer/tokenizer.h"

namespace exec {

namespace {

// Of the module, which stays loaded.
struct Functions {
    decltype(&pieces::smsim_pieces_open) open = nullptr;
    decltype(&pieces::smsim_pieces_close) close = nullptr;
    decltype(&pieces::smsim_pieces_count) count = nullptr;
    decltype(&pieces::smsim_pieces_end) end = nullptr;
    decltype(&pieces::smsim_pieces_encode) encode = nullptr;
    std::string failure;
};

// Beside the program, or in PREFIX/lib/smsim of an installed PREFIX/bin/smexec. Empty: in neither.
std::string module_path() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return {};
    const std::filesystem::path folder = program.parent_path();
    for (const std::filesystem::path& candidate : {folder, folder.parent_path() / "lib" / "smsim"})
        if (const auto path = candidate / "libsmsim_sentencepiece.so"; std::filesystem::exists(path, error))
            return path.string();
    return {};
}

Functions load_module() {
    Functions functions;
    const std::string path = module_path();
    if (path.empty()) {
        functions.failure = "smexec was built without it";
        return functions;
    }
    void* const module = ::dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
        void* const symbol = module ? ::dlsym(module, name) : nullptr;
        if (symbol) function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
        else if (functions.failure.empty()) functions.failure = ::dlerror();
    };
    find(functions.open, "smsim_pieces_open");
    find(functions.close, "smsim_pieces_close");
    find(functions.count, "smsim_pieces_count");
    find(functions.end, "smsim_pieces_end");
    find(functions.encode, "smsim_pieces_encode");
    return functions;
}

class SentencePieces : public Tokenizer {
public:
    SentencePieces(std::string path, Functions functions, void* model)
        : path_(std::move(path)), functions_(std::move(functions)), model_(model) {}
    SentencePieces(const SentencePieces&) = delete;
    SentencePieces& operator=(const SentencePieces&) = delete;
    ~SentencePieces() override { functions_.close(model_); }

    std::vector<int> encode(std::string_view text) const override {
        std::vector<int> tokens;
        const auto take = [](void* into, int token) {
            static_cast<std::vector<int>*>(into)->push_back(token);
        };
        if (!functions_.encode(model_, text.data(), text.size(), take, &tokens))
            throw core::MachineError(
                fmt::format("SentencePiece encodes no text of {} bytes by {}", text.size(), path_));
        return tokens;
    }
    std::int64_t vocabulary() const override { return functions_.count(model_); }
    std::optional<int> end() const override {
        const int token = functions_.end(model_);
        return token < 0 ? std::nullopt : std::optional(token);
    }
    std::string describe() const override { return fmt::format("{} pieces of {}", vocabulary(), path_); }

private:
    const std::string path_;
    const Functions functions_;
    void* const model_;
};

}  // namespace

std::unique_ptr<const Tokenizer> load_sentencepiece(const std::string& path, core::Diagnostics& diagnostics) {
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error({}, "--tokenizer", message, hint);
        return nullptr;
    };
    const std::string name = core::in_quotes(path, 300);
    Functions functions = load_module();
    if (!functions.failure.empty())
        return refuse(fmt::format("{} needs the library SentencePiece: {}", name, functions.failure),
                      "install libsentencepiece-dev and build again; or --tokenizer bytes");
    std::array<char, 512> message{};
    void* const model = functions.open(path.c_str(), message.data(), message.size());
    if (!model)
        return refuse(fmt::format("{} is no model of SentencePiece: {}", name, message.data()),
                      "give a tokenizer.model of SentencePiece, or bytes");
    return std::make_unique<SentencePieces>(path, std::move(functions), model);
}

}  // namespace exec
