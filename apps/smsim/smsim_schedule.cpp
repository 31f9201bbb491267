#include "apps/smsim/smsim_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>
#include <utility>
#include <variant>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "planner/order/schedule_search.h"
#include "schedule/pass/list_passes.h"
#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"
#include "sim/engine/schedule_timing.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim schedule NAME --stages P --micro-batches M [options]\n"
    "       smsim schedule auto --stages P --micro-batches M [--objective makespan|span] [options]\n"
    "       smsim schedule --from FILE.csv [options]\n"
    "       smsim schedule --list\n"
    "\n"
    "Generates (or reads), verifies and times one pipeline schedule. Times are in any one unit and are those "
    "of one\n"
    "micro-batch in one virtual stage (chunk); transfers are latencies between ranks that occupy neither.\n"
    "`auto` searches the order with the smallest makespan or longest rank span within --memory-limit.\n"
    "\n"
    "  --stages P                  pipeline ranks\n"
    "  --chunks V                  virtual stages per rank (default: the schedule's least)\n"
    "  --micro-batches M           micro-batches (default: P)\n"
    "  --forward T                 time of a forward (default 1)\n"
    "  --backward-input T          time of a backward for the input (default 1)\n"
    "  --backward-weight T         time of a backward for the weights (default 1)\n"
    "  --p2p T                     latency between ranks (default 0)\n"
    "  --stage-times FILE          times and memory per virtual stage\n"
    "  --memory-limit M            of a rank's activations, in the unit of the stage file (else: "
    "micro-batches)\n"
    "  --active-micro-batches N    interleaved: most micro-batches in execution (default: P + 2)\n"
    "  --optimize memory|speed     interleaved: strict (memory, default) or less strict (speed)\n"
    "  --group-size G              interleaved-1f1b: micro-batches per group (default: P)\n"
    "  --segments S                seq1f1b: segments of the sequence (default: 2)\n"
    "  --overlap X                 time of an overlapped forward and backward as a share of their sum "
    "(default 1)\n"
    "  --objective makespan|span   auto: last end (default), or longest time any one rank is occupied\n"
    "  --time-limit S              auto: seconds of search (default 0.6)\n"
    "  --seed N                    auto: of the search's random numbers (default 1)\n"
    "  --from FILE                 read the schedule: one row per rank, cells such as 2F0\n"
    "  --out FILE                  write the schedule in that form\n"
    "  --with transfers|sharding   add sends and receives, or windows of gathered parameters and gradient "
    "reductions\n"
    "  --print                     draw the grid\n"
    "  --list                      name all schedules\n"
    "  --json                      one JSON document on stdout\n"
    "\n"
    "A stage file has the header "
    "stage,forward,backward_input,backward_weight,memory_forward,memory_backward_input,\n"
    "memory_backward_weight: durations, and the change of the rank's activation memory when that action "
    "starts\n"
    "(positive) or ends (negative). Without it every forward holds 1 until its backward_weight.\n"
    "\n"
    "Example:\n"
    "  smsim schedule 1f1b --stages 4 --micro-batches 8 --forward 1 --backward-input 1 --backward-weight 1 "
    "--p2p 0.1 --print\n"
    "  smsim schedule auto --stages 4 --micro-batches 8 --p2p 0.1 --memory-limit 6 --objective span --json\n";

// A shape beyond this many actions is a slip of the finger; the largest published pipelines have fewer than
// 10^5.
constexpr double most_actions = 2e7;
constexpr double greatest_time = 1e300;

struct Request {
    std::string name;                                   // empty where --from is given
    std::optional<std::string> from, stage_times, out;  // files
    planner::OrderObjective objective = planner::OrderObjective::makespan;
    planner::SearchBudget budget;
    schedule::PipelineShape shape;
    std::optional<std::string> with;  // cells to add: transfers or sharding
    double overlap = 1;
    bool as_json = false, prints = false, lists = false, helps = false;
    bool names_shape = false;  // --stages was given
};

// The options of one kind of schedules each; one that the named schedule does not take is an error.
void read_parameters(Options& options, const std::string& name, core::Diagnostics& diagnostics,
                     schedule::PipelineShape& shape) {
    const auto integer = [&](const char* option) {
        return core::narrow<int>(options.integer(option, 1, 1 << 24).value_or(0));
    };
    const bool is_strict = options.choice("--optimize", {"memory", "speed"}).value_or("memory") == "memory";
    const schedule::ScheduleParameters kinds[] = {
        schedule::AdmissionParameters{integer("--active-micro-batches"), is_strict},
        schedule::GroupParameters{integer("--group-size")},
        schedule::SegmentParameters{integer("--segments")}};
    const schedule::PipelineSchedule* entry = schedule::find_pipeline_schedule(name);
    for (const schedule::ScheduleParameters& kind : kinds)
        if (entry && entry->parameters.index() == kind.index()) shape.parameters = kind;
    if (name.empty()) return;
    const std::pair<const char*, std::size_t> owners[] = {{"--active-micro-batches", kinds[0].index()},
                                                          {"--optimize", kinds[0].index()},
                                                          {"--group-size", kinds[1].index()},
                                                          {"--segments", kinds[2].index()}};
    for (const auto& [option, kind] : owners) {
        if (!options.has(option) || (entry ? entry->parameters.index() == kind : name != "auto")) continue;
        std::vector<std::string> takers;
        for (const schedule::PipelineSchedule& known : schedule::pipeline_schedules())
            if (known.parameters.index() == kind) takers.push_back(known.name);
        diagnostics.error({}, option, fmt::format("{} takes no {}", name, option),
                          "it belongs to " + core::list_in_words(takers));
    }
}

Request read_arguments(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(
        arguments,
        {{"--stages",          "--chunks",     "--micro-batches", "--forward",      "--backward-input",
          "--backward-weight", "--p2p",        "--stage-times",   "--memory-limit", "--active-micro-batches",
          "--optimize",        "--group-size", "--segments",      "--overlap",      "--objective",
          "--time-limit",      "--seed",       "--from",          "--out",          "--with"},
         {"--print", "--list", "--json", "--help"}},
        diagnostics);
    const auto integer = [&](const char* name, int least, int& target) {
        target = core::narrow<int>(options.integer(name, least, 1 << 24).value_or(target));
    };
    const auto real = [&](const char* name, double greatest, double& target) {
        target = options.real(name, 0, greatest).value_or(target);
    };
    Request request;
    request.as_json = options.has("--json");
    request.helps = options.has("--help");
    request.lists = options.has("--list");
    request.prints = options.has("--print");
    request.names_shape = options.has("--stages");
    request.name =
        options.only_positional("NAME", "schedule", "smsim schedule --list shows their names", false);
    // An empty name is as none.
    const auto file = [&](const char* name) {
        std::optional<std::string> path = options.text(name);
        return path && !path->empty() ? path : std::nullopt;
    };
    request.from = file("--from");
    request.out = file("--out");
    if (options.has("--out")) check_output("--out", request.out.value_or(""), diagnostics);
    request.with = options.choice("--with", {"transfers", "sharding"});
    request.stage_times = file("--stage-times");
    schedule::PipelineShape& shape = request.shape;
    integer("--stages", 1, shape.ranks);
    shape.micro_batches = shape.ranks;
    shape.chunks = 0;  // the schedule's least
    integer("--chunks", 1, shape.chunks);
    integer("--micro-batches", 1, shape.micro_batches);
    real("--forward", greatest_time, shape.forward);
    real("--backward-input", greatest_time, shape.backward_input);
    real("--backward-weight", greatest_time, shape.backward_weight);
    real("--p2p", greatest_time, shape.transfer);
    shape.memory_limit = options.real("--memory-limit", 0, greatest_time);
    real("--overlap", 1, request.overlap);
    if (options.choice("--objective", {"makespan", "span"}) == "span")
        request.objective = planner::OrderObjective::span;
    real("--time-limit", 1e6, request.budget.time_limit.value);
    request.budget.seed = static_cast<std::uint64_t>(options.integer("--seed", 0, 1 << 24).value_or(1));
    read_parameters(options, request.name, diagnostics, shape);
    return request;
}

// One row per virtual stage, in any order.
std::vector<schedule::RelativeStageCost> read_stage_times(const std::string& path,
                                                          core::Diagnostics& diagnostics) {
    static const std::vector<std::string> columns = {"stage",
                                                     "forward",
                                                     "backward_input",
                                                     "backward_weight",
                                                     "memory_forward",
                                                     "memory_backward_input",
                                                     "memory_backward_weight"};
    const std::optional<core::CsvTable> table = core::load_csv(path, columns, diagnostics);
    if (!table) return {};
    std::vector<schedule::RelativeStageCost> costs(table->rows.size());
    std::vector<bool> seen(costs.size(), false);
    for (const core::CsvRow& row : table->rows) {
        auto number = [&](const std::string& column, bool may_be_negative) {
            const std::optional<double> value = core::parse_real(table->cell(row, column));
            if (value && (may_be_negative || *value >= 0)) return *value;
            diagnostics.error(table->location(row, column), column,
                              fmt::format("{} = {} is no finite number{}", column,
                                          core::in_quotes(table->cell(row, column)),
                                          may_be_negative ? "" : " of at least 0"));
            return 0.0;
        };
        const std::optional<long long> stage = core::parse_integer(table->cell(row, "stage"));
        if (!stage || *stage < 0 || *stage >= static_cast<long long>(costs.size()) || seen[*stage]) {
            diagnostics.error(
                table->location(row, "stage"), "stage",
                fmt::format("stage = {} is no new stage", core::in_quotes(table->cell(row, "stage"))),
                fmt::format("{} rows name the stages 0 to {}, each once", costs.size(),
                            static_cast<long long>(costs.size()) - 1));
            continue;
        }
        seen[*stage] = true;
        costs[*stage] = {number("forward", false),
                         number("backward_input", false),
                         number("backward_weight", false),
                         number("memory_forward", true),
                         number("memory_backward_input", true),
                         number("memory_backward_weight", true)};
    }
    if (costs.empty())
        diagnostics.error({path, 0, 0}, "", "the stage file has no rows", "one row per virtual stage");
    return costs;
}

// A positive number of ranks and a product that fits in memory.
bool check_size(const Request& request, core::Diagnostics& diagnostics) {
    if (!request.names_shape) {
        diagnostics.error({}, "--stages", "the number of pipeline ranks is missing",
                          "for example --stages 4 --micro-batches 8");
        return false;
    }
    const schedule::PipelineShape& shape = request.shape;
    const double actions =
        3.0 * shape.ranks * std::max(1, shape.chunks) * shape.micro_batches *
        schedule::parameters_or_default<schedule::SegmentParameters>(shape.parameters).asked_for();
    if (actions <= most_actions) return true;
    diagnostics.error({}, "--micro-batches",
                      fmt::format("{} ranks, {} chunks and {} micro-batches make {:.3g} actions", shape.ranks,
                                  std::max(1, shape.chunks), shape.micro_batches, actions),
                      fmt::format("at most {:.3g}: a schedule repeats itself long before", most_actions));
    return false;
}

sim::ScheduleCosts costs_of(const Request& request, int stages) {
    sim::ScheduleCosts costs;
    costs.stages.clear();
    for (int stage = 0; stage < (request.shape.stage_costs.empty() ? 1 : stages); ++stage) {
        const schedule::RelativeStageCost cost = request.shape.cost(stage);
        costs.stages.push_back({core::Seconds(cost.forward), core::Seconds(cost.backward_input),
                                core::Seconds(cost.backward_weight), core::Bytes(cost.memory_forward),
                                core::Bytes(cost.memory_backward_input),
                                core::Bytes(cost.memory_backward_weight)});
    }
    costs.transfer = core::Seconds(request.shape.transfer);
    costs.overlap = request.overlap;
    return costs;
}

schedule::ScheduleLimits limits_of(const Request& request, const sim::ScheduleCosts& costs) {
    schedule::ScheduleLimits limits;
    if (request.shape.memory_limit) limits.memory_limit = core::Bytes(*request.shape.memory_limit);
    for (const sim::StageCost& cost : costs.stages)
        limits.activation.push_back(
            {cost.memory_forward, cost.memory_backward_input, cost.memory_backward_weight});
    return limits;
}

void list_schedules(bool as_json, std::ostream& out) {
    core::Value document = core::Value::array();
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules()) {
        if (!as_json) {
            std::string aliases;
            for (const std::string& alias : entry.aliases)
                aliases += (aliases.empty() ? " (also " : ", ") + alias;
            out << for_stdout(fmt::format("{:<24}  {}{}\n", entry.name, entry.summary,
                                          aliases.empty() ? "" : aliases + ")"));
            out << for_stdout(fmt::format("{:<24}    bubble {}; in flight {}; needs: {}\n", "", entry.bubble,
                                          entry.in_flight, entry.constraint));
            continue;
        }
        core::Value row;
        row["name"] = entry.name;
        row["aliases"] = core::Value(entry.aliases);
        row["summary"] = entry.summary;
        row["source"] = entry.source;
        row["bubble"] = entry.bubble;
        row["in_flight"] = entry.in_flight;
        row["constraint"] = entry.constraint;
        row["splits_backward"] = entry.splits_backward;
        row["is_forward_only"] = entry.is_forward_only;
        row["is_asynchronous"] = entry.is_asynchronous;
        row["is_bidirectional"] = entry.is_bidirectional;
        document.append(std::move(row));
    }
    if (!as_json) return;
    core::Value root;
    root["schedules"] = std::move(document);
    out << core::to_json(root) << '\n';
}

std::optional<schedule::Schedule> generate(Request& request, core::Diagnostics& diagnostics) {
    const schedule::PipelineSchedule* entry = schedule::find_pipeline_schedule(request.name);
    if (!entry) {
        std::vector<std::string> names = {"auto"};
        for (const schedule::PipelineSchedule& known : schedule::pipeline_schedules())
            names.push_back(known.name);
        const std::string near = core::did_you_mean(request.name, names);
        diagnostics.error({}, "NAME", "no schedule is called " + core::in_quotes(request.name),
                          (near.empty() ? std::string() : "did you mean " + near + "? ") + "there are " +
                              core::list_in_words(names));
        return std::nullopt;
    }
    if (request.shape.chunks == 0) request.shape.chunks = entry->least_chunks;
    if (!check_size(request, diagnostics)) return std::nullopt;
    if (const auto unsupported = schedule::unsupported(*entry, request.shape)) {
        diagnostics.error({}, "NAME", fmt::format("{} is not possible: {}", entry->name, unsupported->reason),
                          fmt::format("{} needs: {}", entry->name, entry->constraint));
        return std::nullopt;
    }
    return entry->generate(request.shape);
}

std::optional<schedule::Schedule> read_schedule(const Request& request, core::Diagnostics& diagnostics) {
    const std::string& path = *request.from;
    const std::optional<std::string> text = core::read_file(path, diagnostics, {}, "--from");
    if (!text) return std::nullopt;
    std::optional<schedule::Schedule> read = schedule::parse_schedule(*text, path, diagnostics);
    if (read && !request.shape.stage_costs.empty() &&
        core::count_of(request.shape.stage_costs) != read->stages) {
        diagnostics.error({*request.stage_times, 0, 0}, "--stage-times",
                          fmt::format("{} rows for the {} stages of {}", request.shape.stage_costs.size(),
                                      read->stages, path),
                          "one row per virtual stage");
        return std::nullopt;
    }
    return read;
}

core::Value to_value(const schedule::Schedule& list, const std::vector<schedule::Violation>& violations,
                     const std::optional<sim::ScheduleTiming>& timing) {
    core::Value document;
    document["schedule"] = list.name;
    document["valid"] = violations.empty();
    core::Value faults = core::Value::array();
    for (const schedule::Violation& violation : violations) {
        core::Value fault;
        fault["rule"] = violation.rule;
        fault["message"] = violation.message;
        fault["rank"] = violation.rank.value_or(-1);
        fault["position"] = violation.position.value_or(-1);
        faults.append(std::move(fault));
    }
    document["violations"] = std::move(faults);
    document["ranks"] = list.ranks;
    document["stages"] = list.stages;
    document["micro_batches"] = list.micro_batches;
    std::int64_t actions = 0;
    core::Value order = core::Value::array();
    for (const std::vector<schedule::Action>& rank : list.actions) {
        core::Value row = core::Value::array();
        for (const schedule::Action& action : rank) {
            row.append(print_action(list, action));
            actions += is_compute(action.kind);
        }
        order.append(std::move(row));
    }
    document["actions"] = actions;
    auto numbers = [](const auto& quantities) {
        core::Value array = core::Value::array();
        for (const auto& quantity : quantities) array.append(quantity.value);
        return array;
    };
    if (timing) {
        document["makespan"] = timing->makespan.value;
        document["rank_span"] = numbers(timing->rank_span);
        document["rank_work"] = numbers(timing->rank_work);
        document["bubble_rate"] = timing->bubble_rate;
        const double span = timing->greatest_span().value,
                     work = std::max_element(timing->rank_work.begin(), timing->rank_work.end())->value;
        document["span_bubble_rate"] = span > 0 ? 1 - work / span : 0.0;
        document["peak_in_flight"] = core::Value(timing->peak_in_flight);
        document["peak_memory"] = numbers(timing->peak_memory);
    }
    document["order"] = std::move(order);
    return document;
}

void print_timing(const schedule::Schedule& list, const sim::ScheduleTiming& timing, std::ostream& out) {
    const double span = timing.greatest_span().value;
    out << fmt::format("{}: {} ranks, {} virtual stages, {} micro-batches\n", list.name, list.ranks,
                       list.stages, list.micro_batches);
    out << fmt::format("  makespan {:.6g}   longest rank span {:.6g}   bubble rate {:.2f} %\n\n",
                       timing.makespan.value, span, 100 * timing.bubble_rate);
    out << fmt::format("  {:>4} {:>12} {:>12} {:>8} {:>15} {:>12}\n", "rank", "span", "work", "idle %",
                       "peak in flight", "peak memory");
    for (std::size_t rank = 0; rank < timing.rank_span.size(); ++rank) {
        const double idle =
            timing.makespan.value > 0 ? 100 * (1 - timing.rank_work[rank].value / timing.makespan.value) : 0;
        out << fmt::format("  {:>4} {:>12.6g} {:>12.6g} {:>8.2f} {:>15} {:>12.6g}\n", rank,
                           timing.rank_span[rank].value, timing.rank_work[rank].value, idle,
                           timing.peak_in_flight[rank], timing.peak_memory[rank].value);
    }
}

double gap_pct(const planner::FoundSchedule& found) {
    return found.objective.value > 0
               ? 100 * (found.objective - found.lower_bound).value / found.objective.value
               : 0;
}

const char* name_of(planner::OrderObjective objective) {
    switch (objective) {
        case planner::OrderObjective::makespan: return "makespan";
        case planner::OrderObjective::span: return "span";
    }
    throw core::InternalError("broken promise: every objective has a name");
}

void add_search(const planner::FoundSchedule& found, const Request& request, core::Value& document) {
    document["objective"] = name_of(request.objective);
    document["objective_value"] = found.objective.value;
    document["lower_bound"] = found.lower_bound.value;
    document["gap_pct"] = gap_pct(found);
    document["proven_optimal"] = found.is_proven_optimal;
    document["start"] = found.start;
    document["start_objective"] = found.start_objective.value;
    document["evaluations"] = found.evaluations;
    document["nodes"] = found.nodes;
    core::Value releases = core::Value::array();
    for (const core::Seconds release : found.releases) releases.append(release.value);
    document["first_start_not_before"] = std::move(releases);
}

void print_search(const planner::FoundSchedule& found, const Request& request, std::ostream& out) {
    out << fmt::format(
        "\n  {} {:.6g}, lower bound {:.6g}, gap {:.2f} %{}; began with {} at {:.6g}, {} orders timed, {} "
        "nodes\n",
        name_of(request.objective), found.objective.value, found.lower_bound.value, gap_pct(found),
        found.is_proven_optimal ? " (optimal)" : "", found.start, found.start_objective.value,
        found.evaluations, found.nodes);
    const bool is_late = std::any_of(found.releases.begin(), found.releases.end(),
                                     [](core::Seconds release) { return release.value > 0; });
    if (!is_late) return;
    out << "  ranks start no earlier than";
    for (const core::Seconds release : found.releases) out << fmt::format(" {:.6g}", release.value);
    out << ", so that none is occupied for longer\n";
}

std::optional<planner::FoundSchedule> search(Request& request, core::Diagnostics& diagnostics,
                                             bool& has_no_order) {
    schedule::PipelineShape& shape = request.shape;
    shape.chunks = std::max(1, shape.chunks);
    if (!check_size(request, diagnostics)) return std::nullopt;
    if (!shape.stage_costs.empty() && core::count_of(shape.stage_costs) != shape.stages()) {
        diagnostics.error({*request.stage_times, 0, 0}, "--stage-times",
                          fmt::format("{} rows for {} stages", shape.stage_costs.size(), shape.stages()),
                          "one row per virtual stage");
        return std::nullopt;
    }
    planner::OrderProblem problem;
    problem.ranks = shape.ranks;
    problem.chunks = shape.chunks;
    problem.micro_batches = shape.micro_batches;
    problem.stages = costs_of(request, shape.stages()).stages;
    problem.stages.resize(shape.stages(), problem.stages.front());
    problem.transfer = core::Seconds(shape.transfer);
    if (shape.memory_limit) problem.memory_limit = core::Bytes(*shape.memory_limit);
    problem.objective = request.objective;
    std::optional<planner::FoundSchedule> found = search_placements(problem, request.budget);
    has_no_order = !found;
    return found;
}

// Verified, timed and shown; the exit code says whether it holds (a memory limit that is exceeded is "does
// not fit", any other violation wrong input).
int report(const Request& request, const schedule::Schedule& given, const planner::FoundSchedule* found,
           std::ostream& out, std::ostream& err) {
    sim::ScheduleCosts costs = costs_of(request, given.stages);
    if (found) costs.releases = found->releases;
    std::vector<schedule::Violation> violations = verify(given, limits_of(request, costs));
    schedule::Schedule list = given;
    // Cells can only be added to an order that can be played; the complete list is verified again.
    if (violations.empty() && request.with) {
        list = *request.with == "transfers"
                   ? schedule::with_transfers(given)
                   : with_gradient_reductions(schedule::with_sharded_parameters(given));
        violations = verify(list, limits_of(request, costs));
    }
    const bool exceeds_memory =
        !violations.empty() && std::all_of(violations.begin(), violations.end(),
                                           [](const schedule::Violation& v) { return v.rule == "memory"; });
    std::optional<sim::ScheduleTiming> timing;
    if (violations.empty() || exceeds_memory) timing = time_schedule(list, costs);
    constexpr int whole_width = 1 << 24;
    if (request.as_json) {
        core::Value document = to_value(list, violations, timing);
        if (found) add_search(*found, request, document);
        if (request.prints)
            document["grid"] = draw(list, violations.empty() ? nullptr : &violations.front(), whole_width);
        out << core::to_json(document) << '\n';
    } else {
        if (timing) print_timing(list, *timing, out);
        if (found) print_search(*found, request, out);
        if (request.prints)
            out << '\n'
                << draw_in_blocks(list, violations.empty() ? nullptr : &violations.front(), text_width());
        constexpr std::size_t most_shown = 10;
        for (std::size_t i = 0; i < std::min(most_shown, violations.size()); ++i)
            err << fmt::format("{}error: {}: {}\n", request.from ? *request.from + ": " : "",
                               violations[i].rule, violations[i].message);
        if (violations.size() > most_shown)
            err << fmt::format("... and {} more\n", violations.size() - most_shown);
        if (!violations.empty() && !request.prints) err << draw(list, &violations.front(), 12);
    }
    if (request.out)
        if (const int code = write_outputs({{*request.out, print_schedule(list)}}, request.as_json, err);
            code != good)
            return code;
    return violations.empty() ? good : exceeds_memory ? no_plan : wrong_input;
}

}  // namespace

int run_schedule_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    Request request = read_arguments(arguments, diagnostics);
    if (request.helps) {
        out << help;
        return good;
    }
    if (request.lists && !diagnostics.has_errors()) {
        list_schedules(request.as_json, out);
        return good;
    }
    if (request.stage_times) request.shape.stage_costs = read_stage_times(*request.stage_times, diagnostics);
    if (!diagnostics.has_errors() && request.name.empty() == !request.from)
        diagnostics.error(
            {}, "NAME",
            request.name.empty() ? "no schedule is named" : "a schedule's name and --from exclude each other",
            "give a name (smsim schedule --list shows them) or --from FILE.csv");
    std::optional<schedule::Schedule> list;
    std::optional<planner::FoundSchedule> found;
    bool has_no_order = false;
    if (!diagnostics.has_errors()) {
        if (request.name == "auto") {
            found = search(request, diagnostics, has_no_order);
            if (found) list = found->schedule;
        } else {
            list = request.from ? read_schedule(request, diagnostics) : generate(request, diagnostics);
        }
    }
    if (has_no_order) {
        diagnostics.error(
            {}, "--memory-limit",
            fmt::format("no order stays within the memory limit of {:.6g}",
                        request.shape.memory_limit.value()),
            "one micro-batch in flight per rank is the least; raise the limit or make the stages smaller");
        show(diagnostics, request.as_json, out, err);
        return no_plan;
    }
    if (const int code = show(diagnostics, request.as_json, out, err); code != good || !list)
        return code == good ? internal_failure : code;
    return report(request, *list, found ? &*found : nullptr, out, err);
}

}  // namespace apps
