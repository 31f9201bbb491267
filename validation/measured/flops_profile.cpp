#include "validation/measured/flops_profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace validation {

namespace {

constexpr std::string_view headline = "- DeepSpeed Flops Profiler -";
constexpr std::string_view tree_headline = "- Detailed Profile per GPU -";
constexpr int indent_of_level = 2;             // what Module.__repr__ adds for each
constexpr core::Seconds longest_forward(1e6);  // 11 days; the clock has counted 1.7e9 s in 2024
constexpr int most_instances = 1 << 20;        // of one line "(0-3): 4 x Dropout"

// Takes text from the front of a line, piece by piece.
class Piece {
public:
    explicit Piece(std::string_view text) : text_(text) {}

    bool take(std::string_view word) {
        if (!text_.starts_with(word)) return false;
        text_.remove_prefix(word.size());
        return true;
    }
    template <class Number>
    std::optional<Number> number() {
        Number value{};
        const auto [end, failure] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
        if (failure != std::errc()) return std::nullopt;
        text_ = std::string_view(end, text_.data() + text_.size());
        return value;
    }
    // "54.53 M" before `unit`; parameters have no unit, and billions of them are B.
    std::optional<double> quantity(std::string_view unit) {
        const std::optional<double> value = number<double>();
        constexpr double largest = 1e15;  // with its prefix far beyond any model or machine
        if (!value || !(*value >= 0 && *value <= largest)) return std::nullopt;
        take(" ");
        constexpr std::array prefixes = {std::pair('T', 1e12), std::pair('G', 1e9), std::pair('B', 1e9),
                                         std::pair('M', 1e6),  std::pair('K', 1e3), std::pair('m', 1e-3),
                                         std::pair('u', 1e-6)};
        double scale = 1;
        for (const auto& [prefix, factor] : prefixes)
            if (text_.starts_with(prefix) && text_.substr(1).starts_with(unit)) {
                scale = factor;
                text_.remove_prefix(1);
                break;
            }
        if (!take(unit)) return std::nullopt;
        return *value * scale;
    }
    bool share(std::string_view of) {  // "= 38.45% MACs"
        take(" ");
        return take("= ") && number<double>() && take("% ") && take(of);
    }
    std::string_view rest() const { return text_; }

private:
    std::string_view text_;
};

// "660.99 K = 100% Params, 141.82 MMACs = 100% MACs, 285.35 ms = 100% latency, 997.79 MFLOPS"
std::optional<FlopsProfile::Module::Figures> figures_of(std::string_view text) {
    Piece piece(text);
    const std::optional<double> parameters = piece.quantity("");
    if (!parameters || !piece.share("Params, ")) return std::nullopt;
    const std::optional<double> macs = piece.quantity("MACs");
    if (!macs || !piece.share("MACs, ")) return std::nullopt;
    const std::optional<double> latency = piece.quantity("s");
    if (!latency || !piece.share("latency, ") || !piece.quantity("FLOPS")) return std::nullopt;
    return FlopsProfile::Module::Figures{*parameters, *macs, core::seconds(*latency)};
}

bool is_class_name(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']';
    });
}

class ReportReader {
public:
    ReportReader(const std::string& file, core::Diagnostics& diagnostics)
        : file_(file), diagnostics_(diagnostics) {}

    std::optional<FlopsProfile> read(std::string_view text) {
        const std::size_t errors_before = diagnostics_.error_count();
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = std::min(text.find('\n', at), text.size());
            std::string_view line = text.substr(at, end - at);
            if (line.ends_with('\r')) line.remove_suffix(1);
            ++line_;
            take(line);
            at = end + 1;
        }
        if (diagnostics_.error_count() == errors_before) check();
        if (diagnostics_.error_count() > errors_before) return std::nullopt;
        profile_.parameters = profile_.modules.front().figures->parameters;
        profile_.macs = profile_.modules.front().figures->macs;
        return std::move(profile_);
    }

private:
    void error(int line, std::string key, std::string message, std::string hint) {
        diagnostics_.error({file_, line, line > 0 ? 1 : 0}, std::move(key), std::move(message),
                           std::move(hint));
    }

    void take(std::string_view line) {
        if (line.find(headline) != std::string_view::npos) {  // the next report
            profile_ = {};
            open_.clear();
            part_ = Part::summary;
        } else if (part_ == Part::summary && line.find(tree_headline) != std::string_view::npos) {
            part_ = Part::before_tree;
        } else if (part_ == Part::summary && line.starts_with("iter latency: ")) {
            Piece piece(line.substr(std::min(line.find_first_not_of(' ', 13), line.size())));
            const std::optional<double> latency = piece.quantity("s");
            if (!latency)
                return error(line_, "iter latency", "is no time: " + core::in_quotes(line), known_form);
            profile_.step = core::seconds(*latency);
        } else if (part_ == Part::before_tree) {
            // Explanations come first; the model's own line has no name before its class.
            const std::size_t bracket = line.find('(');
            if (bracket != std::string_view::npos && is_class_name(line.substr(0, bracket)) &&
                (bracket + 1 == line.size() || figures_of(line.substr(bracket + 1)))) {
                part_ = Part::tree;
                tree_begins_ = line_;
                module(line, 0);
            }
        } else if (part_ == Part::tree) {
            tree_line(line);
        }
    }

    void tree_line(std::string_view line) {
        const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
        const std::string_view text = line.substr(indent);
        const Open& top = open_.back();
        if (text == ")" && indent == top.indent) {
            open_.pop_back();
            if (open_.empty()) part_ = Part::done;
        } else if (indent == top.indent + indent_of_level && text.starts_with('(') &&
                   text.find("): ") != std::string_view::npos) {
            module(text, indent);
        } else if (indent == top.indent + indent_of_level && !top.has_seen_figures &&
                   text.find("% Params") != std::string_view::npos) {
            FlopsProfile::Module& owner = profile_.modules[top.module];
            owner.figures = figures_of(text);
            if (!owner.figures) unreadable(text);
            open_.back().has_seen_figures = true;
        }
        // Anything else is a further line of what a class prints of itself.
    }

    // "(blocks): ModuleList(", "(0-3): 4 x Dropout(0 = 0% Params, ...)", "GPT("
    void module(std::string_view text, std::size_t indent) {
        FlopsProfile::Module one;
        const int instances_of_holder = open_.empty() ? 1 : profile_.modules[open_.back().module].instances;
        one.instances = instances_of_holder;
        if (!open_.empty()) {
            one.parent = open_.back().module;
            profile_.modules[open_.back().module].has_modules = true;
            text.remove_prefix(text.find("): ") + 3);
        }
        Piece piece(text);
        if (const std::optional<int> instances = piece.number<int>(); instances && piece.take(" x ")) {
            const std::int64_t all = std::int64_t(*instances) * instances_of_holder;
            if (all < 1 || all > most_instances)
                return error(line_, "modules",
                             fmt::format("{} times one module: 1 to {} are read", all, most_instances),
                             known_form);
            one.instances = static_cast<int>(all);
            text = piece.rest();
        }
        const std::size_t bracket = text.find('(');
        if (bracket == std::string_view::npos)
            return error(line_, "modules", "no module: " + core::in_quotes(text), known_form);
        one.class_name = std::string(text.substr(0, bracket));
        const std::string_view inside = text.substr(bracket + 1);
        if (inside.find("% Params") != std::string_view::npos) {
            one.figures = figures_of(inside);
            if (!one.figures) unreadable(inside);
        }
        profile_.modules.push_back(std::move(one));
        if (inside.empty()) open_.push_back({profile_.modules.size() - 1, indent, line_, false});
        else if (open_.empty()) part_ = Part::done;  // a model without modules
    }

    void unreadable(std::string_view text) {
        error(line_, "modules", "figures in another form: " + core::in_quotes(text), known_form);
    }

    void check() {
        if (part_ == Part::none)
            return error(0, "", "no report of DeepSpeed's flops profiler: its headline is missing",
                         known_form);
        if (part_ == Part::summary || part_ == Part::before_tree)
            return error(0, "", "the report has no tree of modules",
                         "print it with detailed=True (\"flops_profiler\": {\"detailed\": true})");
        if (part_ == Part::tree)
            return error(open_.back().line, "modules",
                         fmt::format("the report ends within {}, which begins here",
                                     core::in_quotes(profile_.modules[open_.back().module].class_name)),
                         "copy the report whole");
        FlopsProfile::Module& model = profile_.modules.front();
        if (!model.figures)
            return error(tree_begins_, "modules", "the model's own line has no figures", known_form);
        if (*model.figures->latency > longest_forward) {
            diagnostics_.warning({file_, tree_begins_, 1}, "modules",
                                 fmt::format("the model's own latency, {}, is the clock and no duration: the "
                                             "latencies of its modules are added up instead",
                                             core::format(*model.figures->latency)),
                                 "what the model does outside of its modules is missing");
            model.figures->latency.reset();
        }
        if (std::none_of(profile_.modules.begin(), profile_.modules.end(), [](const auto& module) {
                return module.figures && module.figures->latency.value_or(core::Seconds(0)).value > 0;
            }))
            error(tree_begins_, "modules", "no module has a latency: no forward pass was measured",
                  "start_profile() before the forward pass, print_model_profile() after it");
    }

    enum class Part { none, summary, before_tree, tree, done };
    struct Open {
        std::size_t module = 0, indent = 0;
        int line = 0;
        bool has_seen_figures = false;
    };
    static constexpr const char* known_form =
        "the report of print_model_profile(detailed=True) as of DeepSpeed 0.19.8 is read";

    const std::string& file_;
    core::Diagnostics& diagnostics_;
    FlopsProfile profile_;
    Part part_ = Part::none;
    std::vector<Open> open_;  // modules whose closing bracket comes
    int line_ = 0, tree_begins_ = 0;
};

}  // namespace

bool is_flops_profile(std::string_view text) { return text.find(headline) != std::string_view::npos; }

std::optional<FlopsProfile> read_flops_profile(std::string_view text, const std::string& file,
                                               core::Diagnostics& diagnostics) {
    return ReportReader(file, diagnostics).read(text);
}

StepKind kind_of_module(std::string_view class_name, bool has_modules) {
    if (class_name == "Conv1D") return StepKind::matrix_product;  // transformers' linear layer of GPT-2
    const std::string name = in_lower_case(std::string(class_name));
    const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
    // What a module with modules does itself is the small rest, but for the products of attention.
    if (has("attention") || has("attn") || has("softmax")) return StepKind::attention_and_loss;
    if (has_modules || has("embedding")) return StepKind::elementwise;
    if (has("loss") || has("crossentropy")) return StepKind::attention_and_loss;
    if (has("norm")) return StepKind::norm;
    if (has("conv")) return StepKind::convolution;
    if (has("linear") || has("experts") || has("lstm") || has("gru") || has("rnn"))
        return StepKind::matrix_product;
    return StepKind::elementwise;
}

MeasuredStep forward_of(const FlopsProfile& profile) {
    const std::size_t count = profile.modules.size();
    // Of all instances, as printed. A class without figures takes the time of its modules, and children come
    // after their parents.
    std::vector<double> latency(count), of_modules(count);
    for (std::size_t i = count; i-- > 0;) {
        const FlopsProfile::Module& module = profile.modules[i];
        const bool is_timed = module.figures && module.figures->latency;
        latency[i] = is_timed ? module.figures->latency->value * module.instances : of_modules[i];
        if (module.parent) of_modules[*module.parent] += latency[i];
    }
    MeasuredStep result;
    result.part = MeasuredPart::forward;
    result.work = MeasuredWork::modules;
    result.steps = 1;
    result.step = result.busy = core::seconds(latency.front());
    std::vector<double> scale(count, 1);
    std::map<StepKind, std::map<std::string, double>> by_class;
    for (std::size_t i = 0; i < count; ++i) {
        const FlopsProfile::Module& module = profile.modules[i];
        if (module.parent) {
            const double room = latency[*module.parent], inside = of_modules[*module.parent];
            scale[i] = scale[*module.parent] * (inside > room ? room / inside : 1);
        }
        const double own = std::max(0.0, latency[i] - of_modules[i]) * scale[i];
        const StepKind kind = kind_of_module(module.class_name, module.has_modules);
        MeasuredStep::Share& share = result.shares[kind];
        share.time += core::seconds(own);
        share.count += module.instances;
        by_class[kind][module.class_name] += own;
    }
    for (auto& [kind, share] : result.shares)
        share.longest =
            std::max_element(by_class[kind].begin(), by_class[kind].end(), [](const auto& a, const auto& b) {
                return a.second < b.second;
            })->first;
    // A parameter that ZeRO-3 has away is counted as none.
    if (profile.parameters > 0) result.parameters = profile.parameters;
    if (profile.macs > 0) result.forward_flops = 2 * profile.macs;
    result.whole_step = profile.step;
    return result;
}

}  // namespace validation
