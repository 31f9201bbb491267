#include <charconv>
#include <cmath>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "core/reader.h"
#include "jobs/job.h"

namespace jobs {

std::string_view name_of(Purchase purchase) {
    switch (purchase) {
        case Purchase::on_demand: return "on-demand";
        case Purchase::spot: return "spot";
        case Purchase::reserved: return "reserved";
        case Purchase::sagemaker: return "sagemaker";
        case Purchase::capacity_block: return "capacity-block";
    }
    throw core::InternalError("broken promise: every kind of purchase has a name");
}

core::Seconds mean_time_of_share(double share) {
    constexpr double month = 30 * 86400;  // seconds; the Spot Instance Advisor looks at the month behind it
    return core::seconds(-month / std::log1p(-share));
}

std::optional<double> parse_token_count(std::string_view text) {
    double number = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc() || !std::isfinite(number)) return std::nullopt;
    const std::string_view unit(rest, std::size_t(text.data() + text.size() - rest));
    if (unit.empty()) return number;
    for (const auto& [name, scale] : {std::pair("K", 1e3), {"M", 1e6}, {"B", 1e9}, {"T", 1e12}})
        if (unit == name) return number * scale;
    return std::nullopt;
}

namespace {

constexpr std::int64_t most_steps = 1'000'000'000'000;
// Thirty million years: sums of such times are still exact enough to be compared.
constexpr core::Seconds longest = core::seconds(1e15);

// A duration that can be reckoned with, above zero where it must take time.
std::optional<core::Seconds> duration(core::TableReader& reader, std::string_view key,
                                      bool must_take_time = false) {
    const std::optional<core::Seconds> time = reader.optional_seconds(key);
    if (!time) return std::nullopt;
    if (*time > longest) {
        reader.error(key, reader.path_of(key) + " is longer than 30 million years", "give a shorter time");
        return std::nullopt;
    }
    if (must_take_time && time->value <= 0) {
        reader.error(key, reader.path_of(key) + " is zero", "give a time above zero");
        return std::nullopt;
    }
    return time;
}

core::Seconds duration_or(core::TableReader& reader, std::string_view key, core::Seconds fallback) {
    return duration(reader, key).value_or(fallback);
}

core::Seconds required_duration(core::TableReader& reader, std::string_view key) {
    if (!reader.has(key)) return reader.required_seconds(key);
    return duration(reader, key, true).value_or(core::seconds(1));
}

std::optional<core::BytesPerSecond> rate(core::TableReader& reader, std::string_view key) {
    const std::optional<core::BytesPerSecond> rate = reader.optional_bytes_per_second(key);
    if (rate && rate->value <= 0) {
        reader.error(key, reader.path_of(key) + " is zero", "give a rate above zero");
        return std::nullopt;
    }
    return rate;
}

// Both of two keys that say the same thing in two ways.
bool excludes(core::TableReader& reader, std::string_view first, std::string_view second) {
    if (!reader.has(first) || !reader.has(second)) return false;
    reader.error(second,
                 reader.path_of(first) + " and " + reader.path_of(second) + " say the same in two ways",
                 "leave out one of them");
    return true;
}

void needs_one(core::TableReader& reader, std::string_view first, std::string_view second,
               const std::string& example) {
    if (excludes(reader, first, second) || reader.has(first) || reader.has(second)) return;
    reader.error(first,
                 reader.path_of(first) + " and " + reader.path_of(second) + " are missing: one is needed",
                 "for example " + example);
}

std::optional<Transfer> read_transfer(core::TableReader& job, std::string_view key, bool needs_bytes) {
    const core::Value* table = job.optional_table(key);
    if (table == nullptr) return std::nullopt;
    core::TableReader reader(*table, job.path_of(key), job.diagnostics());
    Transfer transfer;
    transfer.time = duration(reader, "time");
    transfer.bytes = reader.optional_bytes("bytes");
    transfer.bandwidth = rate(reader, "bandwidth");
    needs_one(reader, "time", "bandwidth", "bandwidth = \"10GB/s\"");
    excludes(reader, "time", "bytes");
    if (needs_bytes && reader.has("bandwidth") && !reader.has("bytes"))
        reader.error("bytes", reader.path_of("bytes") + " is missing", "add bytes = \"1TB\"");
    reader.finish();
    return transfer;
}

EvaluationRule read_evaluation(core::TableReader& reader) {
    EvaluationRule rule;
    rule.every = reader.required_integer("every", {.least = 1, .greatest = most_steps});
    rule.batches = reader.optional_integer("batches", {.least = 1, .greatest = 1'000'000'000});
    rule.time = duration(reader, "time");
    needs_one(reader, "batches", "time", "batches = 32");
    reader.finish();
    return rule;
}

CheckpointRule read_checkpoint(core::TableReader& reader) {
    CheckpointRule rule;
    rule.interval = duration(reader, "interval", true);
    rule.every = reader.optional_integer("every", {.least = 1, .greatest = most_steps});
    needs_one(reader, "interval", "every", "interval = \"30min\"");
    rule.write = duration(reader, "write");
    if (const core::Value* storage = reader.optional_table("storage")) {
        core::TableReader rates(*storage, reader.path_of("storage"), reader.diagnostics());
        rule.bandwidth = rate(rates, "bandwidth");
        if (!rates.has("bandwidth")) rates.required_bytes_per_second("bandwidth");
        rates.finish();
    }
    needs_one(reader, "write", "storage", "write = \"60s\" or storage = { bandwidth = \"10GB/s\" }");
    rule.bytes = reader.optional_bytes("bytes");
    excludes(reader, "write", "bytes");
    rule.is_asynchronous = reader.boolean("asynchronous", false);
    rule.snapshot = duration_or(reader, "snapshot", {});
    if (reader.has("snapshot") && !rule.is_asynchronous)
        reader.error("snapshot", reader.path_of("snapshot") + " is of asynchronous checkpoints",
                     "add asynchronous = true, or leave it out: a synchronous one stops the training for "
                     "the whole write");
    reader.finish();
    return rule;
}

FailureRule read_failures(core::TableReader& reader) {
    FailureRule rule;
    rule.node_mtbf = required_duration(reader, "node_mtbf");
    rule.law = reader.optional_choice("law", {"exponential", "weibull"}) == "weibull" ? Law::weibull
                                                                                      : Law::exponential;
    const bool has_shape = reader.has("shape"), has_age = reader.has("age");
    if (rule.law == Law::weibull) {
        rule.shape = reader.required_real("shape", {.least = 0.1, .greatest = 10});
        rule.age = duration_or(reader, "age", {});
    } else {
        for (const char* key : {"shape", "age"}) {
            reader.ignore(key);
            if (key == std::string_view("shape") ? has_shape : has_age)
                reader.error(key, reader.path_of(key) + " is of the Weibull law: the exponential has none",
                             "add law = \"weibull\", or leave it out");
        }
    }
    rule.detect = duration_or(reader, "detect", {});
    rule.restart = duration_or(reader, "restart", {});
    reader.finish();
    return rule;
}

SpotRule read_spot(core::TableReader& reader) {
    SpotRule rule;
    if (const std::optional<core::Seconds> mean = duration(reader, "node_mean_time", true))
        rule.node_mean_time = *mean;
    if (const std::optional<double> share =
            reader.optional_real("reclaimed_per_month", {.least = 1e-6, .greatest = 0.999999}))
        rule.node_mean_time = mean_time_of_share(*share);
    needs_one(reader, "node_mean_time", "reclaimed_per_month", "reclaimed_per_month = 0.05");
    // Two minutes: Amazon EC2 User Guide, Spot Instance interruption notices.
    rule.notice = duration_or(reader, "notice", core::seconds(120));
    rule.saves_on_notice = reader.boolean("saves_on_notice", true);
    rule.wait = duration_or(reader, "wait", {});
    rule.wait_law = reader.optional_choice("wait_law", {"fixed", "exponential"}) == "exponential"
                        ? WaitLaw::exponential
                        : WaitLaw::fixed;
    rule.restart = duration(reader, "restart");
    reader.finish();
    return rule;
}

StragglerRule read_stragglers(core::TableReader& reader) {
    StragglerRule rule;
    rule.device_speed = reader.optional_real("device_speed", {.least = 0.01, .greatest = 1});
    rule.network_speed = reader.optional_real("network_speed", {.least = 0.01, .greatest = 1});
    rule.jitter = reader.real("jitter", 0, {.least = 0, .greatest = 1});
    reader.finish();
    return rule;
}

ElasticRule read_elastic(core::TableReader& reader) {
    ElasticRule rule;
    rule.spares = int(reader.integer("spares", 0, {.least = 0, .greatest = 100'000}));
    rule.replace = required_duration(reader, "replace");
    rule.least_nodes = int(reader.required_integer("least_nodes", {.least = 1, .greatest = 1'000'000}));
    rule.reconfigure = duration(reader, "reconfigure");
    rule.replans = reader.boolean("replan", false);
    reader.finish();
    return rule;
}

BillRule read_bill(core::TableReader& reader) {
    BillRule rule;
    if (const auto usd = reader.optional_real("usd_per_hour", {.least = 0, .greatest = 1e6}))
        rule.node = core::dollars_per_hour(*usd);
    rule.minimum = duration_or(reader, "minimum", rule.minimum);
    rule.increment = duration_or(reader, "increment", rule.increment);
    if (const core::Value* table = reader.optional_table("storage")) {
        core::TableReader storage(*table, reader.path_of("storage"), reader.diagnostics());
        const core::Bytes bytes = storage.required_bytes("bytes");
        const double usd = storage.required_real("usd_per_gb_month", {.least = 0, .greatest = 1000});
        storage.finish();
        constexpr double month = 730 * 3600;  // seconds; a twelfth of a year, as AWS counts
        rule.storage = core::DollarsPerSecond(bytes.value / 1e9 * usd / month);
    }
    reader.finish();
    return rule;
}

WarmPoolRule read_warm_pool(core::TableReader& reader) {
    WarmPoolRule rule;
    rule.keep_alive = duration_or(reader, "keep_alive", {});
    rule.start = duration(reader, "start");
    reader.finish();
    return rule;
}

SimulationRule read_simulation(core::TableReader& reader) {
    SimulationRule rule;
    rule.runs = reader.integer("runs", rule.runs, {.least = 1, .greatest = 1'000'000});
    rule.seed = std::uint64_t(reader.integer("seed", 1, {.least = 0}));
    rule.threads = int(reader.integer("threads", 0, {.least = 0, .greatest = 1024}));
    reader.finish();
    return rule;
}

template <class Rule>
std::optional<Rule> read_table(core::TableReader& job, std::string_view key,
                               Rule (*read)(core::TableReader& reader)) {
    const core::Value* table = job.optional_table(key);
    if (table == nullptr) return std::nullopt;
    core::TableReader reader(*table, job.path_of(key), job.diagnostics());
    return read(reader);
}

void read_amount(core::TableReader& reader, Job& job) {
    job.steps = reader.optional_integer("steps", {.least = 1, .greatest = most_steps});
    const core::Value* tokens = reader.optional_any("tokens");
    needs_one(reader, "steps", "tokens", "steps = 10000 or tokens = \"300B\"");
    if (tokens == nullptr) return;
    if (tokens->is_number()) job.tokens = tokens->number();
    else if (tokens->is_string()) job.tokens = parse_token_count(tokens->string());
    if (job.tokens && std::isfinite(*job.tokens) && *job.tokens >= 1 && *job.tokens <= 1e18) return;
    job.tokens.reset();
    reader.error("tokens", reader.path_of("tokens") + " is no count of tokens from 1 to 1e18",
                 "write a number, or one with K, M, B or T: tokens = \"300B\"");
}

// What one table says and another denies.
void check_together(core::TableReader& reader, const Job& job) {
    if (job.spot && reader.has("purchase") && job.purchase != Purchase::spot)
        reader.error(
            "purchase",
            "purchase = '" + std::string(name_of(job.purchase)) + "': only spot instances are reclaimed",
            "write purchase = \"spot\", or leave out [job.spot]");
    if (job.warm_pool && (job.spot || job.purchase == Purchase::spot))
        reader.error("warm_pool", "spot instances are not kept in warm pools",
                     "leave out [job.warm_pool], or buy on demand");
    if (job.warm_pool && job.warm_pool->start && reader.has("acquire"))
        reader.error("acquire", "job.acquire and job.warm_pool.start say the same in two ways",
                     "leave out one of them: instances come from a pool, or are acquired");
    if (job.elastic && !job.failures)
        reader.error("elastic", "a job whose nodes do not fail has no nodes to go on without",
                     "add [job.failures]");
    if (job.elastic && job.spot)
        reader.error("elastic", "a reclaim takes all instances: an elastic job on spot is not modelled",
                     "leave out [job.elastic] or [job.spot]");
}

}  // namespace

std::optional<Job> read_job(const core::Value& table, core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(table, "job", diagnostics);
    Job job;
    read_amount(reader, job);
    job.step_time = duration(reader, "step_time", true);
    job.acquire = duration_or(reader, "acquire", {});
    job.image = read_transfer(reader, "image", true);
    job.data = read_transfer(reader, "data", true);
    job.warm_up = duration_or(reader, "warm_up", {});
    job.evaluation = read_table(reader, "evaluation", read_evaluation);
    job.checkpoint = read_table(reader, "checkpoint", read_checkpoint);
    job.upload = read_transfer(reader, "upload", false);
    job.release = duration_or(reader, "release", {});
    job.failures = read_table(reader, "failures", read_failures);
    job.spot = read_table(reader, "spot", read_spot);
    job.stragglers = read_table(reader, "stragglers", read_stragglers);
    job.elastic = read_table(reader, "elastic", read_elastic);
    if (const auto bill = read_table(reader, "bill", read_bill)) job.bill = *bill;
    job.warm_pool = read_table(reader, "warm_pool", read_warm_pool);
    if (const auto simulation = read_table(reader, "simulation", read_simulation))
        job.simulation = *simulation;
    job.finish_by = duration(reader, "finish_by", true);
    if (const auto usd = reader.optional_real("budget_usd", {.least = 0, .greatest = 1e15}))
        job.budget = core::Dollars(*usd);
    const std::optional<std::string> purchase =
        reader.optional_choice("purchase", {"on-demand", "spot", "reserved", "sagemaker", "capacity-block"});
    job.purchase = job.spot ? Purchase::spot : Purchase::on_demand;
    for (const Purchase known : all_purchases)
        if (purchase && name_of(known) == *purchase) job.purchase = known;
    check_together(reader, job);
    reader.finish();
    if (diagnostics.error_count() > errors) return std::nullopt;
    return job;
}

}  // namespace jobs
