#include "sim/engine/lookahead.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/index/integers.h"

namespace sim {

namespace {

// Users of one link, at most, among whom a look pays.
constexpr std::size_t most_users = 64;
constexpr double never = std::numeric_limits<double>::infinity();

void add_new(std::vector<std::int32_t>& known, core::OptionalIndex communication) {
    if (communication && std::find(known.begin(), known.end(), *communication) == known.end())
        known.push_back(*communication);
}

}  // namespace

Lookahead::Lookahead(const schedule::Program& program, const Contention& contention,
                     const std::vector<Chains>& chains, const std::vector<std::int32_t>& class_of,
                     const std::vector<std::vector<double>>& starts)
    : chains_(chains), class_of_(class_of), sources_(class_of.size() * schedule::stream_count) {
    std::vector<std::vector<std::int32_t>> communications_of(sources_.size());
    for (std::size_t p = 0; p < class_of.size(); ++p) {
        const auto c = std::size_t(class_of[p]);
        const std::vector<core::OptionalIndex>& kinds = contention.kind_of[c];
        std::vector<char> seen(program.classes[c].parts.size(), 0);
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            if (!kinds[i]) continue;
            const core::OptionalIndex communication = contention.communication_of[*kinds[i]][p];
            const schedule::Instruction& instruction = program.classes[c].instructions[i];
            if (!communication && !schedule::is_joined(instruction)) continue;
            const std::size_t source = p * schedule::stream_count + chains[c].stream_of[i];
            sources_[source].starts.push_back(starts[p][i]);
            sources_[source].instructions.push_back(static_cast<std::uint32_t>(i));
            sources_[source].performer = p;
            if (!schedule::is_joined(instruction)) add_new(communications_of[source], communication);
            else if (!std::exchange(seen[instruction.parts_begin], 1))
                for (std::uint32_t k = 0; k < instruction.parts_count; ++k)
                    if (const core::OptionalIndex kind =
                            contention.kind_of_part[c][instruction.parts_begin + k])
                        add_new(communications_of[source], contention.communication_of[*kind][p]);
        }
    }
    find_others(contention, communications_of);
}

void Lookahead::find_others(const Contention& contention,
                            const std::vector<std::vector<std::int32_t>>& communications_of) {
    std::vector<std::vector<std::uint32_t>> users(contention.links);
    for (std::uint32_t s = 0; s < communications_of.size(); ++s)
        for (const std::int32_t communication : communications_of[s])
            for (const ResourceUse& use : contention.communications[communication].uses)
                if (std::vector<std::uint32_t>& of_link = users[use.resource];
                    of_link.empty() || of_link.back() != s)
                    of_link.push_back(s);
    for (const std::vector<std::uint32_t>& of_link : users)
        for (const std::uint32_t s : of_link) {
            Source& source = sources_[s];
            source.is_crowded = source.is_crowded || of_link.size() > most_users;
            if (source.is_crowded) continue;
            for (const std::uint32_t other : of_link)
                if (other != s) source.others.push_back(other);
        }
    for (Source& source : sources_) {
        std::sort(source.others.begin(), source.others.end());
        source.others.erase(std::unique(source.others.begin(), source.others.end()), source.others.end());
    }
}

double Lookahead::start_of(std::uint32_t other, std::size_t performer, std::uint32_t instruction) const {
    const Source& source = sources_[other];
    if (source.performer == performer && source.ended < source.starts.size()) {
        const Chains& chains = chains_[std::size_t(class_of_[performer])];
        const std::uint32_t chain = chains.chain_of[source.instructions[source.ended]];
        if (chains.ended[chain][chains.stream_of[instruction]] > instruction) return never;
    }
    return source.next_start();
}

// What is known without a look at the instruction stays so for those after it.
double Lookahead::look(Source& source, std::size_t performer, std::uint32_t instruction) const {
    double until = never;
    source.alone_until = never;
    source.first_other.reset();
    for (std::size_t o = 0; o < source.others.size(); ++o) {
        source.alone_until = std::min(source.alone_until, sources_[source.others[o]].next_start());
        const double start = start_of(source.others[o], performer, instruction);
        if (start >= until) continue;
        until = start;
        source.first_other = o;
    }
    return until;
}

}  // namespace sim
