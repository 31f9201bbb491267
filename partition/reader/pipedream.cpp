#include "partition/reader/pipedream.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "partition/reader/components.h"

namespace partition {

namespace {

constexpr std::string_view separator = " -- ";

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view blank = " \t\r";
    const std::size_t begin = text.find_first_not_of(blank);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, std::string_view by) {
    std::vector<std::string_view> parts;
    for (std::size_t begin = 0;;) {
        const std::size_t end = text.find(by, begin);
        parts.push_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
        if (end == std::string_view::npos) return parts;
        begin = end + by.size();
    }
}

std::optional<double> quantity(std::string_view text) {
    text = trimmed(text);
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || !(value >= 0) || value > 1e18)
        return std::nullopt;
    return value;
}

// A number, or [a; b; c] as its sum.
std::optional<double> quantity_or_sum(std::string_view text) {
    text = trimmed(text);
    if (text.empty() || text.front() != '[') return quantity(text);
    if (text.back() != ']') return std::nullopt;
    double sum = 0;
    for (std::string_view part : split(text.substr(1, text.size() - 2), ";")) {
        const std::optional<double> value = quantity(part);
        if (!value) return std::nullopt;
        sum += *value;
    }
    return sum;
}

class Reader {
public:
    Reader(const std::string& file_name, core::Diagnostics& diagnostics)
        : file_name_(file_name), diagnostics_(diagnostics) {}

    void line(std::string_view text, int number) {
        number_ = number;
        line_ = text;
        if (trimmed(text).empty()) return;
        std::vector<std::string_view> parts = split(trimmed(text), separator);
        // Edges are told by their two parts, nodes have three or four (a stage id of an earlier run, which is
        // ours to decide anew).
        if (parts.size() == 2)
            edges_.push_back({std::string(trimmed(parts[0])), std::string(trimmed(parts[1])), number,
                              column_of(trimmed(parts[0])), column_of(trimmed(parts[1]))});
        else if (parts.size() >= 3) node(parts);
        else
            error("", fmt::format("{} is neither a node nor an edge", core::in_quotes(trimmed(text))),
                  "`id -- description -- forward_compute_time=..., ...` or `a -- b`");
    }

    std::optional<HierarchicalProblem> finish(std::size_t errors_before) {
        if (nodes_.empty() && diagnostics_.error_count() == errors_before)
            error("", "the profile has no nodes");
        std::vector<Edge> edges;
        std::set<Edge> unique_edges;
        for (const FileEdge& edge : edges_) {
            number_ = edge.line;
            const auto from = index_of_.find(edge.from), to = index_of_.find(edge.to);
            for (const auto& [end, name, column] :
                 {std::tuple(from, edge.from, edge.from_column), std::tuple(to, edge.to, edge.to_column)})
                if (end == index_of_.end())
                    error("", fmt::format("{} names no node", core::in_quotes(name)),
                          "a node's id, as its own line begins", column);
            if (from == index_of_.end() || to == index_of_.end()) continue;
            if (unique_edges.emplace(from->second, to->second).second)
                edges.emplace_back(from->second, to->second);
        }
        if (diagnostics_.error_count() > errors_before) return std::nullopt;
        const std::vector<std::size_t> component = strong_components(nodes_.size(), edges);
        for (const FileEdge& edge : edges_) {
            number_ = edge.line;
            if (component[index_of_.at(edge.from)] != component[index_of_.at(edge.to)]) continue;
            error("",
                  edge.from == edge.to ? fmt::format("node {} feeds itself", core::in_quotes(edge.from))
                                       : fmt::format("nodes {} and {} lie on a cycle",
                                                     core::in_quotes(edge.from), core::in_quotes(edge.to)),
                  "the graph must be acyclic", edge.from_column);
            return std::nullopt;
        }
        return without_ends(edges);
    }

private:
    struct FileEdge {
        std::string from, to;
        int line, from_column, to_column;
    };
    int column_of(std::string_view part) const { return static_cast<int>(part.data() - line_.data()) + 1; }

    void error(std::string key, std::string message, std::string hint = {}, int column = 1) {
        diagnostics_.error({.file = file_name_, .line = number_, .column = number_ > 0 ? column : 0},
                           std::move(key), std::move(message), std::move(hint));
    }

    void node(const std::vector<std::string_view>& parts) {
        HierarchicalProblem::Node node;
        node.id = std::string(trimmed(parts[0]));
        node.description = std::string(trimmed(parts[1]));
        std::map<std::string, std::string_view, std::less<>> given;
        for (std::string_view field : split(parts[2], ", ")) {
            const std::size_t equals = field.find('=');
            if (equals == std::string_view::npos) continue;
            given.emplace(trimmed(field.substr(0, equals)), field.substr(equals + 1));
        }
        auto read = [&](const char* key) {
            const auto found = given.find(key);
            if (found == given.end()) {
                error(key, fmt::format("node {} has no {}", core::in_quotes(node.id), key),
                      fmt::format("add {} = a number from 0 to 1e18", key));
                return 0.0;
            }
            const std::optional<double> value = quantity_or_sum(found->second);
            if (!value)
                error(key,
                      fmt::format("{} = {} of node {} is not a non-negative number", key,
                                  core::in_quotes(trimmed(found->second)), core::in_quotes(node.id)),
                      "give a number from 0 to 1e18, or the sum of several: [4; 5]",
                      column_of(found->second));
            return value.value_or(0);
        };
        node.forward = core::milliseconds(read("forward_compute_time"));
        node.backward = core::milliseconds(read("backward_compute_time"));
        node.activation = core::Bytes(read("activation_size"));
        node.parameters = core::Bytes(read("parameter_size"));
        if (!index_of_.emplace(node.id, nodes_.size()).second)
            error("", fmt::format("node {} appears twice", core::in_quotes(node.id)),
                  "every node needs an id of its own");
        nodes_.push_back(std::move(node));
    }

    // Leaves out inputs, then unused items of tuples, and numbers the rest topologically.
    std::optional<HierarchicalProblem> without_ends(std::vector<Edge> edges) {
        HierarchicalProblem problem;
        std::vector<char> is_left_out(nodes_.size(), 0);
        auto leave_out = [&](bool sources, std::string_view description) {
            std::vector<char> is_end(nodes_.size(), 1);
            for (auto [from, to] : edges) is_end[sources ? to : from] = 0;
            for (std::size_t i = 0; i < nodes_.size(); ++i)
                if (is_end[i] && !is_left_out[i] && nodes_[i].description.starts_with(description)) {
                    is_left_out[i] = 1;
                    problem.left_out.push_back(nodes_[i].id);
                }
            std::erase_if(edges,
                          [&](const auto& e) { return is_left_out[e.first] || is_left_out[e.second]; });
        };
        leave_out(true, "Input");
        leave_out(false, "__getitem__");
        std::vector<std::size_t> number(nodes_.size()), kept;
        for (std::size_t i = 0; i < nodes_.size(); ++i)
            if (!is_left_out[i]) {
                number[i] = kept.size();
                kept.push_back(i);
            }
        if (kept.empty()) {
            number_ = 0;
            error("", "the profile has no nodes besides its inputs");
            return std::nullopt;
        }
        for (auto& [from, to] : edges) {
            from = number[from];
            to = number[to];
        }
        std::vector<std::size_t> itself(kept.size());
        std::iota(itself.begin(), itself.end(), std::size_t{0});
        const std::vector<std::size_t> position = topological_numbers(itself, edges);
        problem.nodes.resize(kept.size());
        for (std::size_t i = 0; i < kept.size(); ++i) problem.nodes[position[i]] = std::move(nodes_[kept[i]]);
        for (auto [from, to] : edges) problem.edges.emplace_back(position[from], position[to]);
        std::sort(problem.edges.begin(), problem.edges.end());
        return problem;
    }

    const std::string& file_name_;
    core::Diagnostics& diagnostics_;
    int number_ = 0;
    std::string_view line_;
    std::vector<HierarchicalProblem::Node> nodes_;
    std::map<std::string, std::size_t> index_of_;
    std::vector<FileEdge> edges_;
};

}  // namespace

std::optional<HierarchicalProblem> read_pipedream(std::string_view text, const std::string& file_name,
                                                  core::Diagnostics& diagnostics) {
    const std::size_t errors_before = diagnostics.error_count();
    Reader reader(file_name, diagnostics);
    int number = 0;
    for (std::string_view line : split(text, "\n")) {
        reader.line(line, ++number);
        if (diagnostics.error_count() > errors_before + 20) return std::nullopt;  // not such a file at all
    }
    return reader.finish(errors_before);
}

bool looks_like_pipedream(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return false;
    const std::string_view line = text.substr(first, text.find('\n', first) - first);
    return line.find(separator) != std::string_view::npos &&
           line.find("forward_compute_time") != std::string_view::npos;
}

}  // namespace partition
