// How far is the step of a plan without a partition from that of the best contiguous partition?
//
//   bench_default_partition [MOST]
//
// Every case is simulated with its default partition and with others: all of them where there are at most
// MOST (10,000), else those that moves of one cut, or of a run of cuts, lead to from the default and from 20
// random partitions. The first column of figures is exact in the first case and a lower bound of what can be
// gained in the second.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/random.h"
#include "model/load.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"

namespace {

using Cuts = std::vector<std::int32_t>;

struct Case {
    const char* model;
    int pipeline;
};

class Study {
public:
    Study(const Case& chosen, double most) : most_(most) {
        core::Diagnostics diagnostics;
        core::Value model = core::Value::table(), cluster = core::Value::table();
        model["name"] = chosen.model;
        cluster["instance"] = "p3dn.24xlarge";
        cluster["nodes"] = 1;
        graph_ = *model::load_model(model, {}, diagnostics);
        cluster_ = *cluster::load_cluster(cluster, diagnostics);
        plan_.layout = {cluster_.instance.devices / chosen.pipeline, 1, chosen.pipeline, "PDT"};
        plan_.micro_batch = 1;
        plan_.micro_batches = 4 * chosen.pipeline;
        plan_.precision = {core::DataType::fp16, core::DataType::fp16, core::DataType::fp16, true};
        plan_.attention = model::AttentionImplementation::unfused;
    }

    double step(const Cuts& cuts) {
        const auto [entry, is_new] = known_.try_emplace(cuts, std::numeric_limits<double>::infinity());
        if (!is_new) return entry->second;
        plan_.partition.first_units = cuts;
        core::Diagnostics diagnostics;
        const std::optional<sim::Evaluation> evaluation =
            sim::evaluate(graph_, cluster_, plan_, diagnostics, {.verifies = false});
        if (evaluation && evaluation->fits) entry->second = evaluation->step_time.value;
        return entry->second;
    }

    Cuts chosen() {
        plan_.partition = {};
        return sim::complete_partition(plan_, graph_, cluster_)->first_units;
    }

    double partitions() const {
        const double units = static_cast<double>(graph_.units.size()), cuts = plan_.layout.pipeline - 1;
        return std::exp(std::lgamma(units) - std::lgamma(cuts + 1) - std::lgamma(units - cuts));
    }
    bool is_exhaustive() const { return partitions() <= most_; }

    double best(const Cuts& from) {
        double least = step(from);
        if (is_exhaustive()) {
            Cuts cuts(from.size());
            std::iota(cuts.begin(), cuts.end(), 0);
            do least = std::min(least, step(cuts));
            while (next(cuts));
            return least;
        }
        core::Random random(7);
        constexpr int starts = 20;
        least = descend(from);
        for (int s = 0; s < starts; ++s) {
            Cuts cuts = {0};
            while (cuts.size() < from.size()) {
                const auto cut = static_cast<std::int32_t>(1 + random.below(graph_.units.size() - 1));
                if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
            }
            std::sort(cuts.begin(), cuts.end());
            least = std::min(least, descend(cuts));
        }
        return least;
    }

private:
    // In lexicographic order; the first cut stays.
    bool next(Cuts& cuts) const {
        const auto units = static_cast<std::int32_t>(graph_.units.size());
        const auto stages = static_cast<std::int32_t>(cuts.size());
        for (std::int32_t s = stages; --s > 0;) {
            if (cuts[static_cast<std::size_t>(s)] >= units - stages + s) continue;
            std::iota(cuts.begin() + s, cuts.end(), cuts[static_cast<std::size_t>(s)] + 1);
            return true;
        }
        return false;
    }

    double descend(Cuts cuts) {
        double least = step(cuts);
        for (bool has_moved = true; has_moved;) {
            has_moved = false;
            for (std::size_t c = 1; c < cuts.size(); ++c)
                for (const bool takes_the_rest : {false, true})
                    for (const int by : {-3, -2, -1, 1, 2, 3}) {
                        Cuts moved = cuts;
                        for (std::size_t k = c; k < (takes_the_rest ? cuts.size() : c + 1); ++k)
                            moved[k] += by;
                        if (std::adjacent_find(moved.begin(), moved.end(), std::greater_equal<>()) !=
                                moved.end() ||
                            moved.back() >= static_cast<std::int32_t>(graph_.units.size()))
                            continue;
                        const double value = step(moved);
                        if (!(value < least)) continue;
                        least = value;
                        cuts = std::move(moved);
                        has_moved = true;
                    }
        }
        return least;
    }

    model::ModelGraph graph_;
    cluster::Cluster cluster_;
    schedule::Plan plan_;
    std::map<Cuts, double> known_;
    double most_;
};

}  // namespace

int main(int count, char** arguments) {
    constexpr double default_most = 10'000, percent = 100;
    const double most = count > 1 ? std::atof(arguments[1]) : default_most;
    constexpr Case cases[] = {
        {"bert-large", 2}, {"bert-large", 4}, {"bert-large", 8}, {"gpt2-xl", 2},     {"gpt2-xl", 4},
        {"gpt2-xl", 8},    {"resnet50", 2},   {"resnet50", 4},   {"resnet152", 2},   {"resnet152", 4},
        {"resnet152", 8},  {"t5-large", 2},   {"t5-large", 4},   {"t5-large", 8},    {"gpt2", 4},
        {"bert-base", 4},  {"t5-base", 4},    {"resnet101", 4},  {"gpt2-medium", 8},
    };
    fmt::print("  one p3dn.24xlarge, micro-batches of 1, four a stage; step in ms\n");
    fmt::print("  {:<14}{:>4}{:>10}{:>10}{:>9}  {}\n", "model", "PP", "default", "best", "above",
               "looked at");
    double worst = 0;
    for (const Case& chosen : cases) {
        Study study(chosen, most);
        const Cuts cuts = study.chosen();
        const double step = study.step(cuts), best = study.best(cuts), above = percent * (step / best - 1);
        worst = std::max(worst, above);
        fmt::print("  {:<14}{:>4}{:>10.2f}{:>10.2f}{:>8.2f}%  {}\n", chosen.model, chosen.pipeline,
                   1e3 * step, 1e3 * best, above,
                   study.is_exhaustive() ? fmt::format("all {:.0f} partitions", study.partitions())
                                         : "moves of cuts from 21 partitions");
        std::fflush(stdout);
    }
    fmt::print("  worst {:.2f} %\n", worst);
}
