#include "validation/measured/nccl_tests.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/core.h>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "sim/cost/collective/collective.h"

namespace validation {

namespace {

using schedule::CollectiveKind;

struct NamedCollective {
    const char* name;
    CollectiveKind kind;
};
constexpr std::array collectives = {NamedCollective{"all_reduce", CollectiveKind::all_reduce},
                                    NamedCollective{"all_gather", CollectiveKind::all_gather},
                                    NamedCollective{"reduce_scatter", CollectiveKind::reduce_scatter}};
const char* const allowed_collectives = "all_reduce, all_gather and reduce_scatter are read";

std::vector<std::string_view> words_of(std::string_view line) {
    std::vector<std::string_view> words;
    for (std::size_t at = 0; at < line.size();) {
        const std::size_t begin = line.find_first_not_of(" \t\r", at);
        if (begin == std::string_view::npos) break;
        const std::size_t end = std::min(line.find_first_of(" \t\r", begin), line.size());
        words.push_back(line.substr(begin, end - begin));
        at = end;
    }
    return words;
}

std::optional<double> number(std::string_view word) {
    double value = 0;
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (failure != std::errc() || end != word.data() + word.size()) return std::nullopt;
    return value;
}

class NcclTestsReader {
public:
    NcclTestsReader(const std::string& file, core::Diagnostics& diagnostics)
        : file_(file), diagnostics_(diagnostics) {}

    std::optional<NcclTests> read(std::string_view text, const std::optional<std::string>& collective) {
        const std::size_t errors_before = diagnostics_.error_count();
        if (collective) take_collective(*collective, "--collective");
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = std::min(text.find('\n', at), text.size());
            ++line_;
            const std::string_view line = text.substr(at, end - at);
            const std::vector<std::string_view> words = words_of(line);
            if (!words.empty()) words[0].front() == '#' ? header(line, words) : row(words);
            at = end + 1;
        }
        line_ = 0;
        check_whole();
        if (diagnostics_.error_count() > errors_before) return std::nullopt;
        tests_.ranks = ranks_;
        tests_.nodes = core::count_of(ranks_of_node_);
        return std::move(tests_);
    }

private:
    void error(std::string key, std::string message, std::string hint) {
        diagnostics_.error({file_, line_, line_ > 0 ? 1 : 0}, std::move(key), std::move(message),
                           std::move(hint));
    }

    void take_collective(std::string_view name, const std::string& key) {
        const auto found = std::find_if(collectives.begin(), collectives.end(),
                                        [&](const NamedCollective& one) { return name == one.name; });
        if (found == collectives.end())
            return error(key, fmt::format("{} is no collective that can be compared", name),
                         allowed_collectives);
        if (collective_ && *collective_ != found->kind)
            error(key, fmt::format("{} after another collective: one file is one test", name),
                  "keep the output of one test in a file");
        collective_ = found->kind;
    }

    void header(std::string_view line, const std::vector<std::string_view>& words) {
        constexpr std::string_view starting = "Collective test starting: ", version = "nccl-tests version ";
        if (const std::size_t at = line.find(starting); at != std::string_view::npos) {
            std::string_view name = words.back();
            for (const std::string_view suffix : {"_mpi", "_perf"})
                if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
            take_collective(name, "collective");
        } else if (const std::size_t found = line.find(version); found != std::string_view::npos) {
            tests_.version = std::string(words_of(line.substr(found + version.size())).at(0));
        } else if (words.size() > 6 && words[1] == "Rank") {
            rank(line, words);
        } else if (words.size() > 2 && words[1] == "size" && words[2] == "count") {
            const std::array<std::string_view, 13> current = {
                "size",  "count", "type", "redop", "root",  "time", "algbw",
                "busbw", "",      "time", "algbw", "busbw", ""};  // "#wrong", before 2.13 "error"
            bool is_current = words.size() == current.size() + 1;
            for (std::size_t i = 0; is_current && i < current.size(); ++i)
                is_current = current[i].empty() || words[i + 1] == current[i];
            if (!is_current)
                error("columns", "columns of another version of nccl-tests",
                      "size, count, type, redop, root, then time, algbw, busbw and #wrong twice are read "
                      "(nccl-tests since 2.10)");
            has_columns_ = true;
        }
    }

    // "#  Rank  0 Group  0 Pid 1887 on worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3"
    void rank(std::string_view line, const std::vector<std::string_view>& words) {
        const auto on = std::find(words.begin(), words.end(), "on");
        if (words.end() - on < 2)
            return error("Rank", "a rank without its host", "keep the lines below \"Using devices\"");
        ++ranks_;
        ++ranks_of_node_[std::string(on[1])];
        const std::size_t bracket = line.find(']');
        if (tests_.device.empty() && bracket != std::string_view::npos) {
            const std::vector<std::string_view> name = words_of(line.substr(bracket + 1));
            for (const std::string_view word : name)
                tests_.device += (tests_.device.empty() ? "" : " ") + std::string(word);
        }
    }

    void row(const std::vector<std::string_view>& words) {
        const std::optional<double> bytes = number(words[0]);
        if (!bytes) {  // what launchers and NCCL print
            if (!has_columns_ || words.size() != 13) return;
            return error("size", fmt::format("{} is no number of bytes", words[0]), "");
        }
        constexpr std::size_t columns = 13, first_time = 5, first_wrong = 8, second = 4;
        if (!has_columns_ || words.size() != columns)
            return error("row",
                         fmt::format("{} values where the header has {} columns", words.size(), columns),
                         "keep the lines as nccl-tests prints them");
        double sum = 0;
        int count = 0;
        for (const std::size_t place : {std::size_t{0}, second}) {
            const std::string_view time = words[first_time + place], wrong = words[first_wrong + place];
            if (time == "N/A") continue;  // not measured in place
            const std::optional<double> microseconds = number(time);
            if (!microseconds || *microseconds <= 0)
                return error("time", fmt::format("{} is no time in microseconds", time), "");
            if (wrong != "N/A" && number(wrong).value_or(1) > wrong_limit)
                return error("#wrong", fmt::format("{} values of {} bytes were wrong", wrong, words[0]),
                             "mend the installation before measuring it");
            sum += *microseconds;
            ++count;
        }
        if (count == 0) return error("time", "neither out of place nor in place was measured", "");
        if (*bytes > 0) tests_.rows.push_back({core::Bytes(*bytes), core::seconds(sum / count * 1e-6)});
    }

    void check_whole() {
        if (!has_columns_)
            return error("", "no output of nccl-tests: it has no line of its columns",
                         "give what all_reduce_perf, all_gather_perf or reduce_scatter_perf printed");
        if (!collective_)
            error("collective", "nccl-tests before 2.17 do not say which test ran",
                  fmt::format("name it with --collective; {}", allowed_collectives));
        else tests_.collective = *collective_;
        if (tests_.rows.empty()) error("rows", "no size was measured", "let the test end");
        if (ranks_ < 2)
            return error("Rank", fmt::format("{} ranks are listed", ranks_),
                         "run the test on two ranks or more, and keep the lines below \"Using devices\"");
        const int most =
            std::max_element(ranks_of_node_.begin(), ranks_of_node_.end(), [](const auto& a, const auto& b) {
                return a.second < b.second;
            })->second;
        for (const auto& [host, ranks] : ranks_of_node_)
            if (ranks != most)
                error("Rank", fmt::format("{} has {} ranks where another host has {}", host, ranks, most),
                      "run the test with as many ranks on every host");
    }

    // Before 2.13 the last column was the largest difference, not a count.
    static constexpr double wrong_limit = 1e-3;

    const std::string& file_;
    core::Diagnostics& diagnostics_;
    NcclTests tests_;
    std::optional<CollectiveKind> collective_;
    std::map<std::string, int> ranks_of_node_;
    int ranks_ = 0, line_ = 0;
    bool has_columns_ = false;
};

// Predictions of the tests' rows on a cluster.
class Prediction {
public:
    Prediction(const NcclTests& tests, core::Diagnostics& diagnostics)
        : tests_(tests), diagnostics_(diagnostics) {
        plan_.layout = {tests.ranks, 1, 1, "PDT"};
        plan_.communication = "nccl";
    }

    std::optional<std::vector<core::Seconds>> of(const cluster::Cluster& cluster) {
        std::vector<core::Seconds> times;
        sim::CommunicationCost cost(plan_, cluster);
        for (const NcclTests::Row& row : tests_.rows)
            times.push_back(cost.collective(tests_.collective, schedule::GroupKind::data, row.bytes, 0));
        return times;
    }

    std::optional<cluster::Cluster> cluster(core::Value table, std::optional<double> efficiency,
                                            std::optional<core::Seconds> latency) {
        table["nodes"] = tests_.nodes;
        if (efficiency) table["network_efficiency"] = *efficiency;
        if (latency) table["network_latency"] = fmt::format("{:.6g}us", latency->value * 1e6);
        std::optional<cluster::Cluster> result = cluster::load_cluster(table, diagnostics_);
        if (result) result->ranks_per_node = tests_.ranks / tests_.nodes;
        return result;
    }

private:
    const NcclTests& tests_;
    core::Diagnostics& diagnostics_;
    schedule::Plan plan_;
};

double squared_error(const NcclTests& tests, const std::vector<core::Seconds>& predicted) {
    double sum = 0;
    for (std::size_t i = 0; i < predicted.size(); ++i) {
        const double ratio = std::log(predicted[i].value / tests.rows[i].time.value);
        sum += ratio * ratio;
    }
    return sum;
}

double mean_error_pct(const NcclTests& tests, const std::vector<core::Seconds>& predicted) {
    double sum = 0;
    for (std::size_t i = 0; i < predicted.size(); ++i)
        sum += std::abs(predicted[i].value / tests.rows[i].time.value - 1);
    return 100 * sum / core::count_of(predicted);
}

}  // namespace

std::optional<NcclTests> read_nccl_tests(std::string_view text, const std::string& file,
                                         const std::optional<std::string>& collective,
                                         core::Diagnostics& diagnostics) {
    return NcclTestsReader(file, diagnostics).read(text, collective);
}

// Efficiency and latency are searched by turns on a logarithmic scale, in steps that halve: two figures, and
// an error that falls towards its least in each of them.
std::optional<NetworkFit> fit_network(const NcclTests& tests, core::Value cluster,
                                      core::Diagnostics& diagnostics) {
    if (tests.nodes < 2) {
        diagnostics.error({}, "Rank", "the test ran within one node, and says nothing of a network",
                          "run it on two nodes or more");
        return std::nullopt;
    }
    if (tests.rows.size() < 2) {
        diagnostics.error({}, "rows", "one size does not tell latency from bandwidth",
                          "measure several: -b 8 -e 1G -f 2");
        return std::nullopt;
    }
    Prediction prediction(tests, diagnostics);
    const std::optional<cluster::Cluster> start = prediction.cluster(cluster, {}, {});
    if (!start) return std::nullopt;
    if (start->ranks_per_node > start->instance.devices) {
        diagnostics.error({}, "Rank",
                          fmt::format("{} ranks on a node, and {} has {} devices", start->ranks_per_node,
                                      start->instance.name, start->instance.devices),
                          "name the instance that the test ran on with --instance");
        return std::nullopt;
    }
    constexpr double least_efficiency = 0.01, least_latency_s = 1e-7, greatest_latency_s = 1e-2;
    NetworkFit fit;
    fit.efficiency_before = start->instance.network_efficiency;
    fit.latency_before = start->instance.network_latency;
    std::array<double, 2> best = {fit.efficiency_before, std::max(fit.latency_before.value, least_latency_s)};
    const auto predicted = [&](const std::array<double, 2>& at) {
        return prediction.of(*prediction.cluster(cluster, at[0], core::Seconds(at[1])));
    };
    const std::vector<core::Seconds> before = *prediction.of(*start);
    std::vector<core::Seconds> after = *predicted(best);
    double least = squared_error(tests, after);
    for (double step = 0.7; step > 1e-3;) {  // of logarithms: halves and doubles, then parts of a thousand
        bool has_improved = false;
        for (std::size_t which = 0; which < best.size(); ++which)
            for (const double sign : {-1.0, 1.0}) {
                std::array<double, 2> at = best;
                at[which] *= std::exp(sign * step);
                at[0] = std::clamp(at[0], least_efficiency, 1.0);
                at[1] = std::clamp(at[1], least_latency_s, greatest_latency_s);
                if (at == best) continue;
                std::vector<core::Seconds> times = *predicted(at);
                const double error = squared_error(tests, times);
                if (error >= least) continue;
                least = error;
                best = at;
                after = std::move(times);
                has_improved = true;
            }
        if (!has_improved) step /= 2;
    }
    fit.efficiency = best[0];
    fit.latency = core::Seconds(best[1]);
    for (std::size_t i = 0; i < tests.rows.size(); ++i)
        fit.rows.push_back({tests.rows[i].bytes, tests.rows[i].time, before[i], after[i]});
    fit.error_before_pct = mean_error_pct(tests, before);
    fit.error_pct = mean_error_pct(tests, after);
    return fit;
}

std::string cluster_table(const NetworkFit& fit, const NcclTests& tests, core::Value cluster,
                          const std::string& file, const std::string& date) {
    cluster["nodes"] = tests.nodes;
    cluster["network_efficiency"] = std::round(fit.efficiency * 1e4) / 1e4;
    cluster["network_latency"] = fmt::format("{:.4g}us", fit.latency.value * 1e6);
    core::Value document = core::Value::table();
    document["cluster"] = std::move(cluster);
    return fmt::format(
               "# Network by {} on {} ranks of {} nodes: {}, {}. Predicted within {:.1f} % on the mean of {} "
               "sizes.\n",
               tests.version.empty() ? "nccl-tests" : "nccl-tests " + tests.version, tests.ranks, tests.nodes,
               file, date, fit.error_pct, fit.rows.size()) +
           core::to_toml(document);
}

core::Value to_value(const NetworkFit& fit, const NcclTests& tests) {
    core::Value value = core::Value::table();
    value["ranks"] = tests.ranks;
    value["nodes"] = tests.nodes;
    value["network_efficiency"]["before"] = fit.efficiency_before;
    value["network_efficiency"]["fitted"] = fit.efficiency;
    value["network_latency_s"]["before"] = fit.latency_before.value;
    value["network_latency_s"]["fitted"] = fit.latency.value;
    value["error_before_pct"] = fit.error_before_pct;
    value["error_pct"] = fit.error_pct;
    core::Value rows = core::Value::array();
    for (const NetworkFit::Row& row : fit.rows) {
        core::Value one = core::Value::table();
        one["bytes"] = row.bytes.value;
        one["measured_s"] = row.measured.value;
        one["predicted_before_s"] = row.before.value;
        one["predicted_s"] = row.after.value;
        rows.append(std::move(one));
    }
    value["sizes"] = std::move(rows);
    return value;
}

}  // namespace validation
