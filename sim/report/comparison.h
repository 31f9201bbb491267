// Why one scenario's step is faster than another's: the difference of their times, divided fairly over the
// keys in which they differ.
//
// Which part of it a key has depends on what was changed before it. The Shapley value (L. S. Shapley, A value
// for n-person games, 1953) is the mean over all orders: the parts add up to the difference, depend on no
// order, and a key without effect has none.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"

namespace sim {

// A key of [model], [cluster], [plan] or [training] whose value differs; null where it is absent.
struct Difference {
    std::string key;  // dotted
    core::Value from, to;
};
// In the order of `a`, then what only `b` has. Keys of [training] that no step depends on are left out.
std::vector<Difference> differences(const core::Value& a, const core::Value& b);

// The tree with their values of `to`.
core::Value changed(const core::Value& document, const std::vector<Difference>& keys);

struct ComparedPart {
    std::vector<Difference> keys;  // several that make a valid scenario only together
    core::Seconds difference;
};

struct Comparison {
    core::Seconds a, b;               // steps
    std::vector<ComparedPart> parts;  // add up, from the first to the last, to b - a
    bool is_exact = true;             // false: the mean over sampled orders, too many keys for all
    int predictions = 0;
};

// The step's time of a scenario's tree; nothing, with diagnostics, where it is not valid. Asked for from
// several threads at once.
using PredictStep =
    std::function<std::optional<core::Seconds>(const core::Value& document, core::Diagnostics& diagnostics)>;

// Nothing when one of the two has no prediction.
std::optional<Comparison> compare(const core::Value& a, const core::Value& b, const PredictStep& predict,
                                  core::Diagnostics& diagnostics);

// Makes relative paths of files, in a tree read from `path`, good for any folder. Empty: from no file, and
// paths are relative to the current folder.
void anchor_paths(core::Value& document, const std::string& path);

}  // namespace sim
