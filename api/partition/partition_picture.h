// A graph and its assignment as a picture: DOT for Graphviz, SVG drawn here (stages as columns, nodes by
// depth).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace api {

struct PictureNode {
    std::string name;
    std::optional<std::size_t> stage;
    double share = 0;  // of the largest load, for the shade
};
struct Picture {
    std::string title;
    std::vector<PictureNode> nodes;
    std::vector<std::pair<std::size_t, std::size_t>> edges;
    std::vector<std::string> stages;  // captions
};

std::string to_dot(const Picture& picture);
std::string to_svg(const Picture& picture);

}  // namespace api
