#include "sim/report/comparison.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <numeric>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/parallel.h"
#include "core/random.h"

namespace sim {

namespace {

using core::Value;

constexpr std::array sections = {"model", "cluster", "plan", "training"};
// Keys of [training] that say what is learned, not what a step does.
constexpr std::array idle_keys = {
    "training.shuffle_seed", "training.eval_data",     "training.eval_data_format",
    "training.eval_every",   "training.eval_batches",  "training.steps",
    "training.seed",         "training.data",          "training.data_format",
    "training.beta1",        "training.learning_rate", "training.beta2",
    "training.epsilon"};

bool is_same(const Value& a, const Value& b) { return core::to_json(a) == core::to_json(b); }

void find_differences(const Value* a, const Value* b, const std::string& path,
                      std::vector<Difference>& found) {
    if (a != nullptr && b != nullptr && a->is_table() && b->is_table()) {
        for (const auto& [key, value] : a->members())
            find_differences(&value, b->find(key), path + "." + key, found);
        for (const auto& [key, value] : b->members())
            if (a->find(key) == nullptr) find_differences(nullptr, &value, path + "." + key, found);
        return;
    }
    if (a != nullptr && b != nullptr && is_same(*a, *b)) return;
    if (std::find(idle_keys.begin(), idle_keys.end(), path) != idle_keys.end()) return;
    found.push_back({path, a != nullptr ? *a : Value(), b != nullptr ? *b : Value()});
}

// The member at a dotted key becomes `value`, or goes where that is null. Tables on the way are made.
void put(Value& document, const std::string& key, const Value& value) {
    Value* at = &document;
    std::size_t begin = 0;
    for (std::size_t dot; (dot = key.find('.', begin)) != std::string::npos; begin = dot + 1)
        at = &(*at)[key.substr(begin, dot - begin)];
    const std::string last = key.substr(begin);
    if (!value.is_null()) {
        (*at)[last] = value;
        return;
    }
    if (at->is_table())
        std::erase_if(at->members(), [&](const auto& member) { return member.first == last; });
}

// Which groups of keys have b's values, a bit each.
using Coalition = std::uint64_t;
constexpr std::size_t most_groups = 63;
// Beyond so many groups orders are sampled: 2^8 predictions are enough waiting.
constexpr std::size_t most_exact_groups = 8;
constexpr int sampled_orders = 16;  // and their reverses

class Game {
public:
    Game(const Value& a, std::vector<Difference> keys, const PredictStep& predict)
        : a_(a), predict_(predict) {
        for (Difference& key : keys) groups_.push_back({std::move(key)});
    }

    std::size_t size() const { return groups_.size(); }
    const std::vector<Difference>& group(std::size_t i) const { return groups_[i]; }
    int predictions() const { return predictions_; }
    Coalition all() const { return (Coalition(1) << size()) - 1; }

    // Predicts those that are not known yet, on all cores.
    void predict_all(const std::vector<Coalition>& coalitions) {
        std::vector<Coalition> missing;
        for (Coalition c : coalitions)
            if (!known_.contains(c)) missing.push_back(c);
        std::sort(missing.begin(), missing.end());
        missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
        std::vector<std::optional<core::Seconds>> answers(missing.size());
        core::for_each_in_parallel(missing.size(), 0, [&](std::size_t i, int) {
            core::Diagnostics unneeded;  // a mixture that is not valid is found out about, not told
            answers[i] = predict_(document(missing[i]), unneeded);
        });
        predictions_ += int(missing.size());
        for (std::size_t i = 0; i < missing.size(); ++i) known_[missing[i]] = answers[i];
    }
    const std::optional<core::Seconds>& step(Coalition coalition) const { return known_.at(coalition); }

    // The groups that make `coalition` valid together with it become one. All of them always do.
    void unite(Coalition coalition) {
        std::vector<std::size_t> outside;
        for (std::size_t i = 0; i < size(); ++i)
            if ((coalition >> i & 1) == 0) outside.push_back(i);
        Coalition united = all();
        for (std::size_t more = 1; more < outside.size() && united == all(); ++more) {
            std::vector<Coalition> candidates;
            add_subsets(coalition, outside, 0, more, candidates);
            predict_all(candidates);
            for (Coalition c : candidates)
                if (united == all() && step(c)) united = c;
        }
        std::vector<std::vector<Difference>> groups;
        std::vector<Difference> one;
        for (std::size_t i = 0; i < size(); ++i) {
            if ((united >> i & 1) == 0) groups.push_back(std::move(groups_[i]));
            else one.insert(one.end(), groups_[i].begin(), groups_[i].end());
        }
        groups.push_back(std::move(one));
        groups_ = std::move(groups);
        known_.clear();
    }

private:
    Value document(Coalition coalition) const {
        Value mixed = a_;
        for (std::size_t i = 0; i < size(); ++i)
            if ((coalition >> i & 1) != 0)
                for (const Difference& key : groups_[i]) put(mixed, key.key, key.to);
        return mixed;
    }
    static void add_subsets(Coalition with, const std::vector<std::size_t>& of, std::size_t from,
                            std::size_t count, std::vector<Coalition>& found) {
        if (count == 0) {
            found.push_back(with);
            return;
        }
        for (std::size_t i = from; i + count <= of.size(); ++i)
            add_subsets(with | Coalition(1) << of[i], of, i + 1, count - 1, found);
    }

    const Value& a_;
    const PredictStep& predict_;
    std::vector<std::vector<Difference>> groups_;
    std::map<Coalition, std::optional<core::Seconds>> known_;
    int predictions_ = 0;
};

// The coalitions that an exact value needs, or those along sampled orders and their reverses.
struct Orders {
    std::vector<std::vector<std::size_t>> sampled;  // empty: exact
    std::vector<Coalition> coalitions;
};

Orders orders_of(std::size_t groups) {
    Orders orders;
    if (groups <= most_exact_groups) {
        for (Coalition c = 0; c < Coalition(1) << groups; ++c) orders.coalitions.push_back(c);
        return orders;
    }
    core::Random random(1);
    std::vector<std::size_t> order(groups);
    std::iota(order.begin(), order.end(), std::size_t(0));
    for (int sample = 0; sample < sampled_orders; ++sample) {
        for (std::size_t i = groups; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
        orders.sampled.push_back(order);
        orders.sampled.emplace_back(order.rbegin(), order.rend());
    }
    for (const std::vector<std::size_t>& sample : orders.sampled) {
        Coalition c = 0;
        orders.coalitions.push_back(c);
        for (std::size_t i : sample) orders.coalitions.push_back(c |= Coalition(1) << i);
    }
    return orders;
}

std::vector<core::Seconds> sampled_values(const Game& game, const Orders& orders) {
    std::vector<core::Seconds> values(game.size());
    for (const std::vector<std::size_t>& order : orders.sampled) {
        Coalition c = 0;
        for (std::size_t i : order) {
            const Coalition more = c | Coalition(1) << i;
            values[i] += (*game.step(more) - *game.step(c)) / double(orders.sampled.size());
            c = more;
        }
    }
    return values;
}

std::vector<core::Seconds> exact_values(const Game& game) {
    const std::size_t n = game.size();
    // |S|! (n - |S| - 1)! / n! is 1 / (n times the number of sets of |S| among n - 1).
    std::vector<double> weight(n);
    double sets = 1;
    for (std::size_t s = 0; s < n; ++s) {
        weight[s] = 1 / (double(n) * sets);
        sets = sets * double(n - 1 - s) / double(s + 1);
    }
    std::vector<core::Seconds> values(n);
    for (Coalition c = 0; c <= game.all(); ++c)
        for (std::size_t i = 0; i < n; ++i)
            if ((c >> i & 1) == 0)
                values[i] += (*game.step(c | Coalition(1) << i) - *game.step(c)) *
                             weight[std::size_t(std::popcount(c))];
    return values;
}

// The parts add up from the first to the last: what rounding leaves goes to the last.
void settle(Comparison& comparison) {
    constexpr int enough = 8;
    for (int i = 0; i < enough && !comparison.parts.empty(); ++i) {
        core::Seconds sum;
        for (const ComparedPart& part : comparison.parts) sum += part.difference;
        if (sum == comparison.b - comparison.a) return;
        comparison.parts.back().difference += comparison.b - comparison.a - sum;
    }
}

}  // namespace

std::vector<Difference> differences(const Value& a, const Value& b) {
    std::vector<Difference> found;
    for (const char* section : sections) {
        static const Value none = Value::table();
        const Value *in_a = a.find(section), *in_b = b.find(section);
        find_differences(in_a != nullptr ? in_a : &none, in_b != nullptr ? in_b : &none, section, found);
    }
    return found;
}

Value changed(const Value& document, const std::vector<Difference>& keys) {
    Value mixed = document;
    for (const Difference& key : keys) put(mixed, key.key, key.to);
    return mixed;
}

std::optional<Comparison> compare(const Value& a, const Value& b, const PredictStep& predict,
                                  core::Diagnostics& diagnostics) {
    const std::optional<core::Seconds> step_a = predict(a, diagnostics), step_b = predict(b, diagnostics);
    if (!step_a || !step_b) return std::nullopt;
    std::vector<Difference> keys = differences(a, b);
    if (keys.size() > most_groups) {
        diagnostics.error({}, "compare", "the scenarios differ in " + std::to_string(keys.size()) + " keys",
                          "compare scenarios that differ in at most " + std::to_string(most_groups));
        return std::nullopt;
    }
    Comparison comparison{*step_a, *step_b, {}, true, 0};
    if (keys.empty()) return comparison;
    Game game(a, std::move(keys), predict);
    Orders orders;
    while (true) {
        orders = orders_of(game.size());
        game.predict_all(orders.coalitions);
        std::optional<Coalition> broken;  // the smallest that is not valid
        for (Coalition c : orders.coalitions)
            if (!game.step(c) && (!broken || std::popcount(c) < std::popcount(*broken))) broken = c;
        if (!broken) break;
        game.unite(*broken);
    }
    comparison.is_exact = orders.sampled.empty();
    const std::vector<core::Seconds> values =
        comparison.is_exact ? exact_values(game) : sampled_values(game, orders);
    for (std::size_t i = 0; i < game.size(); ++i) comparison.parts.push_back({game.group(i), values[i]});
    comparison.predictions = game.predictions() + 2;
    settle(comparison);
    return comparison;
}

void anchor_paths(Value& document, const std::string& path) {
    // What comes from no file is relative to the current folder.
    const std::filesystem::path folder =
        path.empty() ? std::filesystem::current_path() : std::filesystem::absolute(path).parent_path();
    for (const char* section : sections) {
        Value* table = document.find(section);
        if (table == nullptr || !table->is_table()) continue;
        for (auto& [key, value] : table->members()) {
            if (!value.is_string() || value.string().empty()) continue;
            const std::filesystem::path file = value.string();
            // Names of profiles and models are no files beside the scenario.
            std::error_code unreadable;
            if (!file.is_absolute() && std::filesystem::is_regular_file(folder / file, unreadable)) {
                const core::SourceLocation place = value.location, place_of_key = value.key_location;
                value = Value((folder / file).lexically_normal().string());
                value.location = place;
                value.key_location = place_of_key;
            }
        }
    }
}

}  // namespace sim
