#include "partition/hierarchical/data_flow_cuts.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <unordered_set>

#include "core/errors.h"
#include "core/index/integers.h"
#include "core/random.h"

namespace partition {

namespace {

using Bits = std::vector<std::uint64_t>;

void set(Bits& bits, std::size_t i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
bool has(const Bits& bits, std::size_t i) { return bits[i / 64] >> (i % 64) & 1; }
void add(Bits& to, const Bits& more) {
    for (std::size_t w = 0; w < to.size(); ++w) to[w] |= more[w];
}
template <class Visit>
void for_each(const Bits& bits, Visit visit) {
    for (std::size_t w = 0; w < bits.size(); ++w)
        for (std::uint64_t rest = bits[w]; rest; rest &= rest - 1) visit(w * 64 + std::countr_zero(rest));
}

class Cutter {
public:
    explicit Cutter(const HierarchicalProblem& problem)
        : problem_(problem),
          count_(problem.nodes.size()),
          words_((count_ + 63) / 64),
          next_(count_),
          closure_(count_, Bits(words_, 0)),
          awaited_(count_, Bits(words_, 0)),
          is_reached_(count_, 0) {
        std::vector<char> has_before(count_, 0);
        for (auto [from, to] : problem.edges) {
            core::require(from < to, "nodes are in topological order");
            next_[from].push_back(to);
            add(closure_[to], closure_[from]);
            set(closure_[to], from);
            has_before[to] = 1;
        }
        for (std::size_t v = 0; v < count_; ++v) set(closure_[v], v);
        // Ancestors of v whose output is also awaited by a node that neither is v nor an ancestor of it.
        for (std::size_t v = 0; v < count_; ++v)
            for_each(closure_[v], [&](std::size_t p) {
                if (p == v) return;
                for (std::size_t o : next_[p])
                    if (!has(closure_[v], o)) {
                        set(awaited_[v], p);
                        break;
                    }
            });
        // Everything is found from the first source, except what shares no descendant with it: such parts get
        // their own sources.
        for (std::size_t v = 0; v < count_; ++v) {
            if (has_before[v] || is_reached_[v]) continue;
            starts_.push_back(v);
            std::vector<char> below(count_, 0);
            below[v] = 1;
            for (std::size_t a = v; a < count_; ++a) {
                if (!below[a]) continue;
                for_each(closure_[a], [&](std::size_t p) { is_reached_[p] = 1; });
                for (std::size_t o : next_[a]) below[o] = 1;
            }
        }
    }

    std::vector<Bits> all(std::size_t most) const {
        const auto hash_of = [](const Bits& bits) {
            std::uint64_t hash = 0;
            for (std::uint64_t word : bits) hash = core::mix64(hash ^ word);
            return hash;
        };
        std::unordered_set<Bits, decltype(hash_of)> seen(64, hash_of);
        std::vector<Bits> queue{closure_[starts_.front()]};
        seen.insert(queue.front());
        for (std::size_t at = 0; at < queue.size() && queue.size() <= most; ++at) {
            auto offer = [&](std::size_t n) {
                if (has(queue[at], n)) return;
                Bits larger = queue[at];
                add(larger, closure_[n]);
                if (seen.insert(larger).second) queue.push_back(std::move(larger));
            };
            const Bits inside = queue[at];
            for_each(inside, [&](std::size_t x) {
                for (std::size_t n : next_[x]) offer(n);
            });
            for (std::size_t s : starts_) offer(s);
        }
        return queue;
    }
    std::vector<Bits> prefixes() const {
        std::vector<Bits> result(1, Bits(words_, 0));
        for (std::size_t v = 0; v < count_; ++v) {
            if (v > 0) result.push_back(result.back());
            set(result.back(), v);
        }
        return result;
    }

    DataFlowCut measured(Bits nodes) const {
        DataFlowCut cut{.nodes = std::move(nodes)};
        Bits crossing(words_, 0);
        for_each(cut.nodes, [&](std::size_t v) {
            const HierarchicalProblem::Node& node = problem_.nodes[v];
            cut.compute += (node.forward + node.backward).value;
            cut.parameters += node.parameters.value;
            cut.activations += node.activation.value;
            if (std::any_of(next_[v].begin(), next_[v].end(),
                            [&](std::size_t n) { return has(cut.nodes, n); }))
                return;
            set(crossing, v);  // a last node
            add(crossing, awaited_[v]);
        });
        for_each(crossing, [&](std::size_t v) { cut.output += problem_.nodes[v].activation.value; });
        return cut;
    }

private:
    const HierarchicalProblem& problem_;
    std::size_t count_, words_;
    std::vector<std::vector<std::size_t>> next_;
    std::vector<Bits> closure_, awaited_;
    std::vector<char> is_reached_;
    std::vector<std::size_t> starts_;
};

}  // namespace

DataFlowCuts data_flow_cuts(const HierarchicalProblem& problem, std::size_t most) {
    core::require(!problem.nodes.empty(), "a profile has nodes");
    const Cutter cutter(problem);
    DataFlowCuts result;
    std::vector<Bits> sets = cutter.all(most);
    if (sets.size() > most) {
        result.is_complete = false;
        sets = cutter.prefixes();
    }
    for (Bits& bits : sets) result.cuts.push_back(cutter.measured(std::move(bits)));
    auto size = [](const DataFlowCut& cut) {
        int nodes = 0;
        for (std::uint64_t word : cut.nodes) nodes += std::popcount(word);
        return nodes;
    };
    std::sort(result.cuts.begin(), result.cuts.end(), [&](const DataFlowCut& a, const DataFlowCut& b) {
        const int of_a = size(a), of_b = size(b);
        // Totals are sums in node order, so a superset's is never smaller.
        return std::tie(a.compute, of_a, a.nodes) < std::tie(b.compute, of_b, b.nodes);
    });
    core::require(size(result.cuts.back()) == core::count_of(problem.nodes), "the last cut holds every node");
    return result;
}

DataFlowCut data_flow_cut(const HierarchicalProblem& problem, const std::vector<char>& nodes) {
    Bits bits((nodes.size() + 63) / 64, 0);
    for (std::size_t v = 0; v < nodes.size(); ++v)
        if (nodes[v]) set(bits, v);
    return Cutter(problem).measured(std::move(bits));
}

}  // namespace partition
