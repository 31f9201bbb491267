#include "model/reader/onnx/onnx_inputs.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace model {

namespace {

std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

bool contains_any(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](const char* word) { return text.find(word) != std::string::npos; });
}

bool is_sequence_name(const std::string& name) {
    return contains_any(lower(name), {"seq", "length", "time", "token"});
}
bool is_batch_name(const std::string& name) {
    const std::string text = lower(name);
    return contains_any(text, {"batch"}) || text == "n" || text == "b" || text == "bs";
}

}  // namespace

OnnxFixedInputs fix_onnx_inputs(const std::vector<OnnxDeclaredInput>& inputs, const LoadOptions& options) {
    OnnxFixedInputs fixed;
    const auto problem = [&](std::string message, std::string hint = {}) {
        fixed.problems.push_back({std::move(message), std::move(hint)});
    };
    std::int64_t fixed_batch = 0;
    bool has_symbolic_batch = false, differ = false;
    for (const OnnxDeclaredInput& input : inputs) {
        std::vector<std::int64_t>& shape = fixed.shapes.emplace_back();
        const std::string name = core::in_quotes(input.name, 100);
        if (!input.has_shape) {
            problem(fmt::format("input {} has no tensor shape", name), "declare its shape when exporting");
            continue;
        }
        const int rank = core::count_of(input.extents);
        int batch_axis = -1;
        for (int d = 0; d < rank; ++d)
            if (batch_axis < 0 && is_batch_name(input.extents[d].symbol)) batch_axis = d;
        if (batch_axis < 0 && rank > 0 && !input.extents[0].value &&
            !is_sequence_name(input.extents[0].symbol))
            batch_axis = 0;
        has_symbolic_batch = has_symbolic_batch || batch_axis >= 0;

        for (int d = 0; d < rank; ++d) {
            const OnnxExtent& extent = input.extents[d];
            const bool is_image = input.type == OnnxType::floating && rank == 4 && d >= 2;
            const bool is_sequence = !is_image && d != batch_axis && d > 0 &&
                                     (is_sequence_name(extent.symbol) ||
                                      (input.type == OnnxType::integer && d == 1) || (rank == 3 && d == 1));
            std::optional<std::int64_t> wanted;
            if (is_image) wanted = options.image_size;
            else if (is_sequence) wanted = options.sequence_length;
            const char* option = is_image ? "image_size (--image-size)" : "sequence_length (--seq-len)";
            if (d == batch_axis && !extent.value) {
                shape.push_back(1);
            } else if (extent.value) {
                shape.push_back(*extent.value);
                if (wanted && *wanted != *extent.value)
                    problem(fmt::format("{} = {} cannot be set: dimension {} of input {} is fixed at {}",
                                        is_image ? "image_size" : "sequence_length", *wanted, d, name,
                                        *extent.value),
                            "export with a dynamic axis there");
            } else if (const auto known = fixed.symbols.find(extent.symbol);
                       !extent.symbol.empty() && known != fixed.symbols.end()) {
                shape.push_back(known->second);
            } else if (wanted && !contains_any(lower(extent.symbol), {"past"})) {
                shape.push_back(*wanted);
            } else {
                const std::string symbol =
                    extent.symbol.empty() ? "" : " (" + core::in_quotes(extent.symbol) + ")";
                problem(fmt::format("dimension {}{} of input {} is not fixed", d, symbol, name),
                        is_image || is_sequence ? fmt::format("give {}", option)
                                                : "export with this dimension fixed");
                shape.push_back(1);
            }
            if (!extent.value && !extent.symbol.empty()) fixed.symbols[extent.symbol] = shape.back();
            if (shape.back() < 1 || shape.back() > (std::int64_t(1) << 28))
                problem(fmt::format("dimension {} of input {} is {}; it must be from 1 to 2^28", d, name,
                                    shape.back()));
        }
        if (rank >= 2 && batch_axis < 0) {
            differ = differ || (fixed_batch != 0 && fixed_batch != shape[0]);
            fixed_batch = shape[0];
        }
    }
    if (!has_symbolic_batch && !differ && fixed_batch > 1) {
        fixed.batch = fixed_batch;
        fixed.assumption = fmt::format(
            "dimension 0 of the inputs, {}, is the batch: everything is divided by it", fixed_batch);
    }
    return fixed;
}

}  // namespace model
