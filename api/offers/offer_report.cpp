#include "api/offers/offer_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "api/plan/answer.h"
#include "core/display/text_table.h"
#include "planner/explain.h"

namespace api {

namespace {

constexpr double kilo = 1000;

core::Value number_or_null(const std::optional<double>& number) {
    return number ? core::Value(*number) : core::Value();
}

void put(core::Value& row, const std::string& name, const jobs::Quantiles& quantiles) {
    row[name + "_mean"] = quantiles.mean;
    row[name + "_p10"] = quantiles.p10;
    row[name + "_p50"] = quantiles.p50;
    row[name + "_p90"] = quantiles.p90;
}

core::Value offer_value(const Question& question, const Offers& offers, const OfferRow& row,
                        std::size_t rank) {
    const planner::RankedPlan& plan = offers.plans.plans[row.plan];
    core::Value value = row_of(plan, rank, question.targets[plan.candidate], offers.intervals[row.plan]);
    // Of the plan on demand, or of one plan against another.
    std::erase_if(value.members(), [](const auto& member) {
        return member.first == "why" || member.first == "usd_total" || member.first == "training_hours";
    });
    const jobs::Offer& offer = row.offer;
    value["purchase"] = jobs::name_of(offer.purchase);
    value["usd_per_hour"] = core::to_dollars_per_hour(*offer.model.prices.node) * offer.model.held_nodes();
    put(value, "hours", offer.distribution.hours);
    put(value, "usd", *offer.distribution.usd);
    put(value, "goodput", offer.distribution.goodput);
    value["interruptions_mean"] = offer.distribution.interruptions.mean;
    value["checkpoint_every"] =
        offer.model.checkpointing ? core::Value(offer.model.checkpointing->every) : core::Value();
    value["chance"] = number_or_null(jobs::chance_of(offer));
    value["meets_goals"] = row.meets;
    value["risk"] = jobs::risk_of(offer);
    value["energy_kwh"] = number_or_null(offer.kilowatt_hours);
    value["co2_kg"] = number_or_null(row.carbon_kg);
    value["on_front"] = row.is_on_front;
    return value;
}

std::string spread(const jobs::Quantiles& quantiles) {
    return fmt::format("{} to {}", core::with_thousands(quantiles.p10), core::with_thousands(quantiles.p90));
}

// Empty where it is not known.
std::string in_unit(const std::optional<double>& number, double unit) {
    return number ? core::with_thousands(*number / unit) : "";
}

std::vector<std::string> cells_of(const Question& question, const Offers& offers, const OfferRow& row,
                                  std::size_t number) {
    const jobs::JobDistribution& distribution = row.offer.distribution;
    const planner::RankedPlan& plan = offers.plans.plans[row.plan];
    return {fmt::format("{}{}", number, row.is_on_front ? '*' : ' '),
            name_of(question, offers, row),
            core::format(plan.evaluation.step_time),
            core::with_thousands(distribution.hours.mean),
            spread(distribution.hours),
            core::with_thousands(distribution.usd->mean),
            spread(*distribution.usd),
            fmt::format("{:.1f}%", 100 * distribution.goodput.mean),
            fmt::format("{:.1f}%", 100 * jobs::risk_of(row.offer)),
            in_unit(row.offer.kilowatt_hours, kilo),
            in_unit(row.carbon_kg, kilo),
            planner::describe(plan.plan)};
}

std::string goals_text(const OfferRequest& request) {
    const jobs::Goals& goals = request.terms.goals;
    std::string text;
    if (goals.finish_by) text += fmt::format("within {}", core::format(*goals.finish_by));
    if (goals.budget)
        text += fmt::format("{}for {:.0f} USD", text.empty() ? "" : " and ", goals.budget->value);
    return text;
}

}  // namespace

std::string name_of(const Question& question, const Offers& offers, const OfferRow& row) {
    const cluster::Cluster& cluster = question.targets[offers.plans.plans[row.plan].candidate].cluster;
    return fmt::format("{} x {}, {}", cluster.nodes, cluster.instance.name,
                       jobs::name_of(row.offer.purchase));
}

std::string text_of(const Question& question, const OfferRequest& request, const Offers& offers) {
    std::string text = headline(question.request, question.graph);
    for (const std::vector<std::string>* lines :
         {&question.request.assumptions, &request.assumptions, &offers.assumptions})
        for (const std::string& line : *lines) text += fmt::format("  assumed: {}\n", line);
    for (const std::string& line : offers.not_offered) text += fmt::format("  not offered: {}\n", line);
    core::TextTable table({"#", "cluster", "step", "hours", "hours p10 to p90", "USD", "USD p10 to p90",
                           "goodput", "risk", "MWh", "t CO2", "plan"});
    const std::size_t most = question.request.rows;
    std::size_t shown = 0, misses = 0, more = 0;
    for (const OfferRow& row : offers.rows) {
        if (!row.meets) ++misses;
        else if (request.shows_front_alone ? row.is_on_front : shown < most)
            table.add(cells_of(question, offers, row, ++shown));
        else ++more;
    }
    if (shown > 0) text += '\n' + table.text(question.request.width);
    const std::string goals = goals_text(request);
    text += fmt::format(
        "\n  by expected {}, {} runs each; * on the front of expected cost, expected time and risk\n",
        request.ranks_by_time ? "time" : "cost", request.terms.job.simulation.runs);
    text += goals.empty() ? "  risk: the standard deviation of the time, as a share of its mean\n"
                          : fmt::format(
                                "  risk: the share of runs that do not end {}; at most {:.3g} % are "
                                "accepted\n",
                                goals, 100 * (1 - request.confidence));
    if (misses > 0)
        text += fmt::format("  {} offer{} the goals too often\n", misses, misses == 1 ? " misses" : "s miss");
    if (more > 0) text += fmt::format("  {} more are left out (--top, --csv)\n", more);
    text += fmt::format(
        "  every cluster has its fastest plan: {} of {} searches to the end, {} plans simulated\n",
        offers.proven, offers.searches, offers.simulated);
    return text;
}

core::Value document_of(const Question& question, const OfferRequest& request, const Offers& offers) {
    core::Value document = core::Value::table();
    document["model"] = question.graph.name;
    document["global_batch"] = question.request.search.global_batch;
    document["objective"] = offer_objectives()[request.ranks_by_time ? 1 : 0];
    const jobs::Goals& goals = request.terms.goals;
    document["finish_by_s"] = goals.finish_by ? core::Value(goals.finish_by->value) : core::Value();
    document["budget_usd"] = goals.budget ? core::Value(goals.budget->value) : core::Value();
    document["confidence"] =
        goals.finish_by || goals.budget ? core::Value(request.confidence) : core::Value();
    core::Value rows = core::Value::array();
    for (std::size_t i = 0; i < offers.rows.size(); ++i)
        if (!request.shows_front_alone || offers.rows[i].is_on_front)
            rows.append(offer_value(question, offers, offers.rows[i], i + 1));
    document["offers"] = std::move(rows);
    document["not_offered"] = offers.not_offered;
    std::vector<std::string> assumptions = question.request.assumptions;
    for (const std::vector<std::string>* lines : {&request.assumptions, &offers.assumptions})
        assumptions.insert(assumptions.end(), lines->begin(), lines->end());
    document["assumptions"] = assumptions;
    document["searches"] = offers.searches;
    document["proven"] = offers.proven;
    document["simulated"] = offers.simulated;
    return document;
}

std::string csv_of(const Question& question, const Offers& offers) {
    const auto cell = [](const std::optional<double>& number) {
        return number ? fmt::format("{}", *number) : std::string();
    };
    std::string text =
        "rank,instance,nodes,purchase,plan,step_time_s,hours_mean,hours_p10,hours_p50,hours_p90,usd_mean,"
        "usd_p10,usd_p50,usd_p90,goodput_mean,interruptions_mean,chance,risk,meets_goals,on_front,energy_kwh,"
        "co2_kg\n";
    std::size_t rank = 0;
    for (const OfferRow& row : offers.rows) {
        const planner::RankedPlan& plan = offers.plans.plans[row.plan];
        const cluster::Cluster& cluster = question.targets[plan.candidate].cluster;
        const jobs::JobDistribution& d = row.offer.distribution;
        text += fmt::format("{},{},{},{},\"{}\",{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", ++rank,
                            cluster.instance.name, cluster.nodes, jobs::name_of(row.offer.purchase),
                            planner::describe(plan.plan), plan.evaluation.step_time.value, d.hours.mean,
                            d.hours.p10, d.hours.p50, d.hours.p90, d.usd->mean, d.usd->p10, d.usd->p50,
                            d.usd->p90, d.goodput.mean, d.interruptions.mean,
                            cell(jobs::chance_of(row.offer)), jobs::risk_of(row.offer), row.meets,
                            row.is_on_front, cell(row.offer.kilowatt_hours), cell(row.carbon_kg));
    }
    return text;
}

}  // namespace api
