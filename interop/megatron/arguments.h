// The arguments of a Megatron-LM run, from a shell script, an argument file, a log, or what interop/capture
// wrote: each is asked for by the name under which Megatron-LM's parser knows it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace interop {

class MegatronArguments {
public:
    // Every token of the text that begins with -- and the value behind it; the rest is passed over. Text that
    // begins with { is a capture: {"arguments": [tokens]} as the shell gave them to Megatron-LM.
    MegatronArguments(const std::string& text, const std::string& path, core::Diagnostics& diagnostics);

    bool has(const std::string& name);
    std::string text(const std::string& name, const std::string& fallback = {});
    // Every value of an argument that takes several, between blanks or commas.
    std::vector<std::string> words(const std::string& name);
    std::optional<std::int64_t> integer(const std::string& name, std::int64_t most = std::int64_t{1} << 30);
    std::int64_t positive(const std::string& name, std::int64_t fallback);
    double real(const std::string& name, double fallback);
    void error(const std::string& name, const std::string& message, const std::string& hint);
    void warn(const std::string& name, const std::string& message, const std::string& hint);
    // The program that is started, its file's name alone; empty where the text does not say.
    const std::string& program() const { return program_; }

    // What nobody asked for: passed over where it changes neither the model nor the step; a warning where it
    // makes a step somewhat faster or slower than is priced; else an error each.
    void judge_the_rest();

private:
    struct Entry {
        std::string value;
        int line = 0;
        std::vector<std::string> more = {};  // what stands behind the value
    };
    void add(const std::string& token, int line);
    void read_capture(const std::string& text);
    void read_shell(const std::string& text);

    std::map<std::string, Entry> found_;
    std::string program_;
    std::string open_;  // the argument that waits for its value
    std::string last_;  // the one that has its value and may take more: of a shell's, on the same line and
                        // before its variables and operators
    int last_line_ = 0;
    bool is_capture_ = false;
    std::set<std::string> read_;
    std::string path_;
    core::Diagnostics& diagnostics_;
};

}  // namespace interop
