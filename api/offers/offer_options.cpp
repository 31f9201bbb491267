#include "api/offers/offer_options.h"

#include <algorithm>
#include <charconv>

#include <fmt/core.h>

#include "api/output.h"
#include "core/diagnostics.h"
#include "core/document.h"

namespace api {

namespace {

// Llama 2, arXiv 2307.09288 (July 2023), table 2: 1,720,320 hours of A100 at 400 W for the 70B model are
// 291.42 t CO2eq.
constexpr double llama2_carbon = 291.42e3 / (1'720'320 * 0.4);

// Of a command line, to be read as a table is.
constexpr const char* keys_of_offers[] = {"step_time", "purchase", "stragglers"};

std::optional<double> parse_number(std::string_view text) {
    double number = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc() || rest != text.data() + text.size()) return std::nullopt;
    return number;
}

std::optional<jobs::Purchase> purchase_named(std::string_view text) {
    for (const jobs::Purchase purchase : jobs::all_purchases)
        if (jobs::name_of(purchase) == text) return purchase;
    return std::nullopt;
}

std::string purchase_names() {
    std::string names;
    for (const jobs::Purchase purchase : jobs::all_purchases)
        names += (names.empty() ? "" : ", ") + std::string(jobs::name_of(purchase));
    return names;
}

void read_purchases(Options& options, OfferRequest& request) {
    for (const std::string& text : options.list("--purchase")) {
        if (const std::optional<jobs::Purchase> purchase = purchase_named(text))
            request.purchases.push_back(*purchase);
        else
            options.error("--purchase",
                          fmt::format("--purchase = {} is no way to buy instances", core::in_quotes(text)),
                          "choose from " + purchase_names());
    }
    if (!options.has("--purchase"))
        request.purchases = {jobs::Purchase::on_demand, jobs::Purchase::spot, jobs::Purchase::reserved,
                             jobs::Purchase::capacity_block};
}

// "p4d.24xlarge:reserved=12.5"
std::optional<PriceOfKind> parse_price(const std::string& text) {
    const std::size_t colon = text.find(':'), equals = text.find('=');
    if (colon == std::string::npos || equals == std::string::npos || colon > equals) return std::nullopt;
    const auto purchase = purchase_named(std::string_view(text).substr(colon + 1, equals - colon - 1));
    const auto usd = parse_number(std::string_view(text).substr(equals + 1));
    if (colon == 0 || !purchase || !usd || !(*usd > 0) || *usd > 1e6) return std::nullopt;
    return PriceOfKind{text.substr(0, colon), *purchase, core::dollars_per_hour(*usd)};
}

void read_prices(Options& options, OfferRequest& request) {
    for (const std::string& text : options.list("--price")) {
        const std::optional<PriceOfKind> price = parse_price(text);
        if (!price) {
            options.error("--price",
                          fmt::format("--price = {} is no price of an instance", core::in_quotes(text)),
                          "for example --price p4d.24xlarge:reserved=12.5, in USD an hour of a node");
            continue;
        }
        request.prices.push_back(*price);
        request.assumptions.push_back(fmt::format("{} {}: {:g} USD/h (--price)", price->instance,
                                                  jobs::name_of(price->purchase),
                                                  core::to_dollars_per_hour(price->price)));
    }
}

// The [job] table of --job with the --tokens of the command line.
void read_terms(Options& options, OfferRequest& request, core::Diagnostics& diagnostics) {
    const std::optional<std::string> tokens = options.text("--tokens");
    if (!options.has("--job")) {
        request.terms.job = jobs::published_terms();
        // A wrong count is diagnosed where the question is read.
        if (tokens) request.terms.job.tokens = jobs::parse_token_count(*tokens);
        else
            options.error("--objective", "expected cost and time need the length of the training",
                          "add --tokens, for example --tokens 2e12, or --job FILE with a [job] table");
        for (std::string& line : jobs::assumptions_of_published_terms())
            request.assumptions.push_back(std::move(line));
        return;
    }
    const std::string path = options.text("--job").value_or("");
    const std::optional<core::Value> document = core::load_document(path, diagnostics, {}, "--job");
    if (!document) return;
    const core::Value* found = document->find("job");
    if (found == nullptr || !found->is_table()) {
        diagnostics.error(document->location, "job", "the file of --job has no [job] table",
                          "add one, for example [job] with tokens = \"300B\" (docs/jobs.md)");
        return;
    }
    core::Value table = *found;
    for (const char* key : keys_of_offers)
        if (const core::Value* value = table.find(key))
            diagnostics.error(value->location, std::string("job.") + key,
                              fmt::format("job.{}: every offer has its own, or none", key), "leave it out");
    if (tokens) {
        std::erase_if(table.members(),
                      [](const auto& member) { return member.first == "steps" || member.first == "tokens"; });
        table["tokens"] = *tokens;
    }
    request.terms.table = table;
    if (std::optional<jobs::Job> job = jobs::read_job(table, diagnostics)) request.terms.job = *job;
    request.terms.chooses_interval =
        request.terms.job.checkpoint.has_value() && options.choice("--interval", {"best", "given"}) == "best";
}

void read_goals(Options& options, OfferRequest& request) {
    jobs::Goals& goals = request.terms.goals;
    goals = {request.terms.job.finish_by, request.terms.job.budget};
    if (const std::optional<std::string> text = options.text("--finish-by")) {
        const std::optional<core::Seconds> time = core::parse_seconds(*text);
        if (time && time->value > 0) goals.finish_by = time;
        else
            options.error("--finish-by", fmt::format("--finish-by = {} is no time", core::in_quotes(*text)),
                          "for example --finish-by 30d or 12h");
    }
    if (const std::optional<double> usd = options.real("--budget", 0, 1e15))
        goals.budget = core::Dollars(*usd);
    const bool has_goals =
        goals.finish_by || goals.budget || options.has("--finish-by") || options.has("--budget");
    if (std::optional<std::string> text = options.text("--confidence")) {
        if (text->ends_with('%')) text->pop_back();
        const std::optional<double> per_cent = parse_number(*text);
        if (per_cent && *per_cent > 0 && *per_cent <= 100) request.confidence = *per_cent / 100;
        else
            options.error("--confidence",
                          fmt::format("--confidence = {} is no share of runs", core::in_quotes(*text)),
                          "for example --confidence 90%");
        if (!has_goals)
            options.error("--confidence", "--confidence is of meeting a date or a budget",
                          "add --finish-by 30d or --budget 100000");
    } else if (has_goals) {
        request.assumptions.push_back(
            fmt::format("confidence {:g} % (no --confidence given)", 100 * request.confidence));
    }
}

void read_carbon(Options& options, OfferRequest& request) {
    const std::optional<double> carbon = options.real("--carbon", 0, 10);
    request.carbon = carbon.value_or(llama2_carbon);
    if (!carbon)
        request.assumptions.push_back(
            fmt::format("{:.3f} kg CO2 a kWh, as Llama 2's authors counted (arXiv 2307.09288, table 2); "
                        "--carbon says another grid's",
                        request.carbon));
    request.assumptions.push_back(
        "energy is that of the boards at their power limit; hosts, network and cooling come on top");
}

}  // namespace

const std::vector<std::string>& offer_objectives() {
    static const std::vector<std::string> words = {"expected-cost", "expected-time"};
    return words;
}

bool wants_offers(const Options& options) {
    const std::vector<std::string>& words = offer_objectives();
    return std::find(words.begin(), words.end(), options.text("--objective").value_or("")) != words.end();
}

const std::vector<std::string>& offer_option_names() {
    static const std::vector<std::string> names = {"--purchase", "--price",     "--job",        "--interval",
                                                   "--carbon",   "--finish-by", "--confidence", "--picture"};
    return names;
}

std::optional<OfferRequest> read_offer_request(Options& options, core::Diagnostics& diagnostics) {
    if (!wants_offers(options)) {
        for (const std::string& name : offer_option_names())
            if (options.has(name))
                options.error(name, fmt::format("{} is of expected cost and time", name),
                              "add --objective expected-cost or expected-time");
        return std::nullopt;
    }
    for (const char* name : {"--certificate", "--deadline"})
        if (options.has(name))
            options.error(name, fmt::format("{} is not of expected cost and time", name),
                          name == std::string("--deadline") ? "use --finish-by" : "leave it out");
    if (options.has("--interval") && !options.has("--job"))
        options.error("--interval", "--interval is of the checkpoints of --job", "leave it out");
    OfferRequest request;
    request.ranks_by_time = options.text("--objective") == "expected-time";
    request.shows_front_alone = options.has("--pareto");
    read_purchases(options, request);
    read_prices(options, request);
    read_terms(options, request, diagnostics);
    read_goals(options, request);
    read_carbon(options, request);
    request.csv_path = options.text("--csv");
    if (request.csv_path) check_output("--csv", *request.csv_path, diagnostics);
    request.picture_path = options.text("--picture");
    if (request.picture_path) check_output("--picture", *request.picture_path, diagnostics);
    if (diagnostics.has_errors()) return std::nullopt;
    return request;
}

}  // namespace api
