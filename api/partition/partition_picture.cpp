#include "api/partition/partition_picture.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/core.h>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>
#include <boost/range/iterator_range.hpp>

namespace api {

namespace {

// Okabe and Ito's palette (2008): told apart by colour-blind readers too; repeated beyond eight stages.
constexpr const char* colours[] = {"#56B4E9", "#E69F00", "#009E73", "#F0E442",
                                   "#CC79A7", "#D55E00", "#0072B2", "#999999"};

const char* colour_of(std::optional<std::size_t> stage) {
    return !stage ? "#ffffff" : colours[*stage % std::size(colours)];
}

std::string escaped(const std::string& text, bool is_xml) {
    std::string result;
    for (char c : text) {
        if (is_xml && c == '<') result += "&lt;";
        else if (is_xml && c == '>') result += "&gt;";
        else if (is_xml && c == '&') result += "&amp;";
        else if (c == '"') result += is_xml ? "&quot;" : "\\\"";
        else if (c == '\\') result += is_xml ? "\\" : "\\\\";
        else if (static_cast<unsigned char>(c) < 0x20) result += ' ';
        else result += c;
    }
    return result;
}

// Edges of the longest path from any source to each node.
std::vector<int> depths(const Picture& picture) {
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
    const Graph graph(picture.edges.begin(), picture.edges.end(), picture.nodes.size());
    std::vector<Graph::vertex_descriptor> sinks_first;
    boost::topological_sort(graph, std::back_inserter(sinks_first));
    std::vector<int> depth(picture.nodes.size(), 0);
    for (auto node = sinks_first.rbegin(); node != sinks_first.rend(); ++node)
        for (const auto edge : boost::make_iterator_range(boost::out_edges(*node, graph))) {
            int& below = depth[boost::target(edge, graph)];
            below = std::max(below, depth[*node] + 1);
        }
    return depth;
}

}  // namespace

std::string to_dot(const Picture& picture) {
    std::string text = fmt::format(
        "digraph \"{}\" {{\n  rankdir=TB;\n  node [shape=box, style=filled, fontname=\"sans-serif\"];\n",
        escaped(picture.title, false));
    for (std::size_t s = 0; s < picture.stages.size(); ++s) {
        text += fmt::format("  subgraph cluster_{} {{\n    label=\"{}\";\n", s,
                            escaped(picture.stages[s], false));
        for (std::size_t n = 0; n < picture.nodes.size(); ++n)
            if (picture.nodes[n].stage == s)
                text += fmt::format("    n{} [label=\"{}\", fillcolor=\"{}\"];\n", n,
                                    escaped(picture.nodes[n].name, false), colour_of(s));
        text += "  }\n";
    }
    for (std::size_t n = 0; n < picture.nodes.size(); ++n)
        if (!picture.nodes[n].stage)
            text += fmt::format("  n{} [label=\"{}\"];\n", n, escaped(picture.nodes[n].name, false));
    for (auto [from, to] : picture.edges) text += fmt::format("  n{} -> n{};\n", from, to);
    return text + "}\n";
}

std::string to_svg(const Picture& picture) {
    constexpr int width = 210, height = 26, gap_x = 24, gap_y = 12, top = 64, margin = 16;
    // Row = longest path from a source, so edges run down; columns = stages; nodes of one stage and row side
    // by side in the order of the graph.
    const std::size_t n = picture.nodes.size();
    const std::vector<int> row = depths(picture);
    using Stage = std::optional<std::size_t>;    // none comes first
    std::map<std::pair<Stage, int>, int> taken;  // (stage, row): nodes there
    std::map<Stage, int> columns;                // of a stage
    std::vector<int> slot(n);
    int rows = 0;
    for (std::size_t v = 0; v < n; ++v) {
        slot[v] = taken[{picture.nodes[v].stage, row[v]}]++;
        columns[picture.nodes[v].stage] = std::max(columns[picture.nodes[v].stage], slot[v] + 1);
        rows = std::max(rows, row[v] + 1);
    }
    std::map<Stage, int> left;
    int x = margin;
    for (auto [stage, count] : columns) {
        left[stage] = x;
        x += count * (width + gap_x) + gap_x;
    }
    auto x_of = [&](std::size_t v) { return left[picture.nodes[v].stage] + slot[v] * (width + gap_x); };
    auto y_of = [&](std::size_t v) { return top + row[v] * (height + gap_y); };
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<title>{}</title>\n",
        x + margin, top + rows * (height + gap_y) + margin, escaped(picture.title, true));
    for (auto [stage, count] : columns)
        if (stage && *stage < picture.stages.size())
            text += fmt::format("<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>\n", left[stage],
                                top - 24, escaped(picture.stages[*stage], true));
    for (auto [from, to] : picture.edges) {
        const std::size_t a = from, b = to;
        const bool is_cut = picture.nodes[a].stage != picture.nodes[b].stage;
        text +=
            fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"{}\"/>\n",
                        x_of(a) + width / 2, y_of(a) + height, x_of(b) + width / 2, y_of(b),
                        is_cut ? "#D55E00" : "#bbbbbb", is_cut ? 2 : 1);
    }
    for (std::size_t v = 0; v < n; ++v) {
        const PictureNode& node = picture.nodes[v];
        std::string name =
            node.name.size() > 32 ? "..." + node.name.substr(node.name.size() - 29) : node.name;
        text += fmt::format(
            "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" "
            "fill-opacity=\"{:.2f}\" stroke=\"#333333\"/><text x=\"{}\" y=\"{}\">{}</text></g>\n",
            escaped(node.name, true), x_of(v), y_of(v), width, height, colour_of(node.stage),
            0.25 + 0.75 * std::clamp(node.share, 0.0, 1.0), x_of(v) + 6, y_of(v) + 17, escaped(name, true));
    }
    return text + "</svg>\n";
}

}  // namespace api
