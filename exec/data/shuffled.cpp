#include "exec/data/shuffled.h"

#include <bit>
#include <utility>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/random.h"

namespace exec {

// A Feistel network over the least even number of bits that holds all indices, walked until the result is
// one of them (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002: the generalized
// Feistel cipher with cycle walking). Memory for no index, and any of them at once.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key) {
    constexpr int rounds =
        4;  // three make any function of the halves a pseudorandom permutation (Luby, Rackoff)
    const std::uint64_t bound = count;
    const int half = (std::bit_width(bound - 1) + 1) / 2;
    const std::uint64_t mask = (std::uint64_t(1) << half) - 1;
    std::uint64_t value = index;
    do {
        std::uint64_t left = value >> half, right = value & mask;
        for (int round = 0; round < rounds; ++round) {
            const std::uint64_t mixed = core::mix64(key + core::mix64(right * rounds + round));
            left = std::exchange(right, (left ^ mixed) & mask);
        }
        value = left << half | right;
    } while (value >= bound);
    return static_cast<std::int64_t>(value);
}

namespace {

class Shuffled : public DataSource {
public:
    Shuffled(std::shared_ptr<const DataSource> source, std::uint64_t seed)
        : source_(std::move(source)), seed_(seed), count_(source_->samples().value_or(0)) {
        core::require(count_ > 0, "samples that are shuffled have a number");
    }

    void tokens(std::int64_t sample, std::span<std::int64_t> into) const override {
        source_->tokens(place(sample), into);
    }
    void image(std::int64_t sample, std::span<float> into) const override {
        source_->image(place(sample), into);
    }
    std::int64_t label(std::int64_t sample, std::int64_t classes) const override {
        return source_->label(place(sample), classes);
    }
    std::optional<std::int64_t> samples() const override { return count_; }
    std::string describe() const override {
        return fmt::format("{}, shuffled by seed {}", source_->describe(), seed_);
    }
    std::string identity() const override {
        return fmt::format("{}, shuffled by seed {}", source_->identity(), seed_);
    }

private:
    std::int64_t place(std::int64_t sample) const {
        const std::uint64_t epoch = sample / count_;
        return permuted(sample % count_, count_, core::mix64(seed_) + core::mix64(~epoch));
    }

    const std::shared_ptr<const DataSource> source_;
    const std::uint64_t seed_;
    const std::int64_t count_;
};

}  // namespace

std::shared_ptr<const DataSource> shuffled(std::shared_ptr<const DataSource> source, std::uint64_t seed) {
    return std::make_shared<Shuffled>(std::move(source), seed);
}

}  // namespace exec
