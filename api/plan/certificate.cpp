#include "api/plan/certificate.h"

#include <optional>
#include <utility>

#include <fmt/core.h>

#include "api/plan/answer.h"
#include "api/version.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/certificate.h"
#include "sim/scenario.h"

namespace api {

namespace {

constexpr int certificate_version = 1;

struct ReadCertificate {
    Question question;
    planner::Claim claim;
    std::vector<std::string> violations;  // of what can be read
};

// Every missing or mistyped key is a diagnostic.
class CertificateReader {
public:
    CertificateReader(const core::Value& root, const std::string& path, core::Diagnostics& diagnostics)
        : root_(root), path_(path), diagnostics_(diagnostics) {}
    const core::Value* find(std::initializer_list<std::string_view> keys, bool (core::Value::*is)() const) {
        const core::Value* value = &root_;
        std::string name;
        for (const std::string_view key : keys) {
            name += (name.empty() ? "" : ".") + std::string(key);
            value = value ? value->find(key) : nullptr;
        }
        if (value && (value->*is)()) return value;
        diagnostics_.error({path_, 1, 1}, name,
                           fmt::format("{} is missing, or of another type: no certificate of smplan", name),
                           "smplan --certificate FILE writes one");
        return nullptr;
    }
    double number(std::initializer_list<std::string_view> keys) {
        const core::Value* value = find(keys, &core::Value::is_number);
        return value ? value->number() : 0;
    }
    std::size_t count(std::initializer_list<std::string_view> keys) {
        const double value = number(keys);
        return value > 0 ? static_cast<std::size_t>(value) : 0;
    }

private:
    const core::Value& root_;
    const std::string& path_;
    core::Diagnostics& diagnostics_;
};

std::optional<ReadCertificate> read_certificate(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<std::string> text = core::read_file(path, diagnostics, {}, "verify");
    const std::optional<core::Value> value = text ? core::parse_json(*text, path, diagnostics) : std::nullopt;
    if (!value) return std::nullopt;
    CertificateReader reader(*value, path, diagnostics);
    ReadCertificate read;
    std::vector<std::string> arguments;
    if (const core::Value* list = reader.find({"arguments"}, &core::Value::is_array))
        for (const core::Value& item : list->items())
            if (item.is_string()) arguments.push_back(item.string());
    planner::Claim& claim = read.claim;
    claim.target = reader.count({"best", "target"});
    claim.value = reader.number({"best", "value"});
    claim.lower_bound = reader.number({"best", "lower_bound"});
    claim.space = reader.count({"search", "space"});
    claim.evaluated = reader.count({"search", "evaluated"});
    claim.pruned = reader.count({"search", "pruned"});
    claim.unvisited = reader.count({"search", "unvisited"});
    const core::Value* search = value->find("search");
    const core::Value* proven = search ? search->find("proven_optimal") : nullptr;
    claim.is_proven = proven && proven->kind() == core::Value::Kind::boolean && proven->boolean();
    if (const core::Value* rejected = reader.find({"search", "rejected"}, &core::Value::is_table))
        for (const auto& [reason, count] : rejected->members())
            if (count.is_number() && count.number() > 0)
                claim.rejected += static_cast<std::size_t>(count.number());
    const core::Value* plan = reader.find({"best", "plan"}, &core::Value::is_string);
    const core::Value* hash = reader.find({"model_hash"}, &core::Value::is_string);
    if (diagnostics.has_errors()) return std::nullopt;
    Options options(arguments, plan_options(), diagnostics);
    const std::vector<Runner> runners = read_runners(options);
    const std::optional<Runner> runner =
        runners.empty() ? std::nullopt : std::optional<Runner>(runners.front());
    std::optional<Question> question = read_question(options, runner, diagnostics);
    if (!question) return std::nullopt;
    const std::optional<core::Value> document = core::parse_toml(plan->string(), path, diagnostics);
    std::optional<sim::Scenario> scenario =
        document ? sim::read_scenario(*document, path, diagnostics) : std::nullopt;
    if (!scenario) return std::nullopt;
    claim.plan = scenario->file.plan;
    if (model::hash_of(question->graph) != hash->string())
        read.violations.push_back("the model is not the one that the certificate is for");
    if (claim.target >= question->targets.size() ||
        question->targets[claim.target].cluster.nodes != scenario->cluster.nodes ||
        question->targets[claim.target].cluster.instance.name != scenario->cluster.instance.name) {
        read.violations.push_back("the claimed plan is for a cluster that was not asked about");
        claim.target = 0;
    }
    if (claim.plan.global_batch() != question->request.search.global_batch)
        read.violations.push_back("the claimed plan is for another global batch");
    read.question = std::move(*question);
    return read;
}

}  // namespace

core::Value certificate_of(const Request& request, const model::ModelGraph& graph,
                           const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                           const std::vector<std::string>& arguments,
                           const std::vector<sim::PredictionIntervals>& intervals) {
    const planner::RankedPlan& best = result.plans.front();
    core::Value value = core::Value::table();
    value["certificate"] = certificate_version;
    value["tool"] = "smplan";
    value["version"] = version;
    value["arguments"] = arguments;
    value["model_hash"] = model::hash_of(graph);
    value["search"] = account_of(result.account, request.search.objective);
    core::Value simulated = core::Value::array();
    for (std::size_t i = 0; i < result.plans.size(); ++i)
        simulated.append(row_of(result.plans[i], i + 1, targets[result.plans[i].candidate], intervals[i]));
    value["simulated"] = std::move(simulated);
    core::Value claim = core::Value::table();
    claim["target"] = best.candidate;
    claim["value"] = best.value;
    claim["lower_bound"] =
        result.account.lower_bound ? core::Value(*result.account.lower_bound) : core::Value();
    claim["plan"] = plan_text(request, graph, best, targets[best.candidate], *request.certificate_path);
    value["best"] = std::move(claim);
    return value;
}

OptionNames verify_options() {
    return {.with_value = {"--samples", "--seed"}, .flags = {"--json", "--help"}};
}

Reply verify_certificate(const std::vector<std::string>& arguments) {
    core::Diagnostics diagnostics;
    Options options(arguments, verify_options(), diagnostics);
    const std::size_t samples = options.integer("--samples", 0, 1000000).value_or(200);
    const auto seed = static_cast<std::uint64_t>(options.integer("--seed", 0, 1L << 62).value_or(1));
    if (options.positional().size() != 1)
        options.error("verify", "smplan verify needs one certificate",
                      "for example smplan verify certificate.json");
    if (diagnostics.has_errors()) return refusal(std::move(diagnostics));
    const std::optional<ReadCertificate> read = read_certificate(options.positional().front(), diagnostics);
    if (!read) return refusal(std::move(diagnostics));
    const planner::CertificateCheck check =
        planner::check_claim(read->question.graph, read->question.targets, read->question.request.search,
                             read->claim, samples, seed);
    std::vector<std::string> violations = read->violations;
    violations.insert(violations.end(), check.violations.begin(), check.violations.end());
    Reply reply{.outcome = violations.empty() ? Outcome::good : Outcome::no_plan};
    core::Value& value = reply.document;
    value["holds"] = violations.empty();
    value["violations"] = violations;
    value["neighbours"] = check.neighbours;
    value["sampled"] = check.sampled;
    value["bounded"] = check.bounded;
    value["simulated"] = check.simulated;
    value["seed"] = static_cast<std::int64_t>(seed);
    for (const std::string& violation : violations) reply.text += "  " + violation + '\n';
    reply.text += fmt::format(
        "{}: the plan and its {} neighbours by one cut simulated, {} of {} plans drawn with seed {} "
        "excluded by a bound, {} simulated\n",
        violations.empty() ? "the certificate holds" : "the certificate does not hold", check.neighbours,
        check.bounded, check.sampled, seed, check.simulated);
    return reply;
}

}  // namespace api
