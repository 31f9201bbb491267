// The price of arithmetic on one device: kernels of an operator by roofline and measured attention rates, or
// the operator's own measured time where there is one.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/device.h"
#include "core/diagnostics_fwd.h"
#include "model/model_fwd.h"
#include "model/operators/cost.h"
#include "schedule/plan/plan.h"
#include "schedule/program/program.h"
#include "sim/cost/constants.h"
#include "sim/cost/framework/framework.h"
#include "sim/cost/operator_prices.h"

namespace sim {

// One kernel alone on the device. Products and convolutions: launch + max(flops / (efficiency * peak), bytes
// / (efficiency * bandwidth)), or the measured curve; attention: the published rate of the flash kernels of
// the architecture; everything else: launch + bytes / achieved bandwidth.
core::Seconds kernel_time(const model::Kernel& kernel, model::Phase phase, const cluster::DeviceSpec& device,
                          core::DataType compute, const FrameworkTraits& traits = {},
                          const CostConstants& constants = {});

// What of a collective decides which computation runs beside it.
struct TensorCollective {
    schedule::CollectiveKind kind;
    schedule::GroupKind group;
    schedule::PayloadKind payload;
    schedule::ComputePhase phase;
    model::OperatorRange operators;  // the one that it performs
    int pieces = 1;                  // of which it is one (schedule::Instruction::pieces)
};

// Of prices: many from one model, or few from each of very many models, which then keep equal prices once.
enum class PriceSums { many, few };

// Prices of every operator of a model under a plan, ready to be summed over ranges.
class ComputeCost {
public:
    // `ranks_a_node` share its host. A compute precision the device has no figure for, or attention kernels
    // it cannot run, are diagnostics; nothing is returned then. `first_like`: of each operator the first that
    // costs the same (model::Repetition::first_operators), which is then priced once.
    static std::optional<ComputeCost> make(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                                           const schedule::Plan& plan, core::Diagnostics& diagnostics,
                                           const CostConstants& constants = {}, int ranks_a_node = 1,
                                           const std::vector<std::int32_t>* first_like = nullptr,
                                           PriceSums sums = PriceSums::many);

    // Of a product or an attention in pieces, one of them, or the gradient of its weights
    // (schedule::Instruction::piece).
    ComputePrice price(model::OperatorRange range, schedule::ComputePhase phase, int piece = 0,
                       int pieces = 1) const;
    // The update of `elements` parameters: every state read and written once, no gradient clipping. Where
    // norms come first (update_norm), what is left beside them.
    ComputePrice optimizer_step(std::int64_t elements, std::int64_t tensors) const;
    // LAMB: the part of the same update that is done when the norms of parameters and updates are known.
    // Frameworks launch both parts together: the step pays for that.
    ComputePrice update_norm(std::int64_t elements) const;
    ComputePrice zero(core::Bytes bytes) const;
    // What is left of a collective of the tensor stream that takes `time` alone, where the framework computes
    // meanwhile: the weight gradient beside a reduction of input gradients, or the product at its side beside
    // tokens that are gathered or scattered in parts (Transformer Engine's user buffers). All of one in
    // pieces: what runs beside it the Program says.
    core::Seconds exposed(const TensorCollective& collective, core::Seconds time) const;

    // Lines for the reader of a prediction: which operators were measured, which rates were carried
    // over.
    const std::vector<std::string>& assumptions() const { return assumptions_; }

private:
    enum Column {
        forward,
        alternate_products,  // of an attention: what its layer runs again
        forward_until_saved,
        backward_input,
        backward_weight,
        column_count
    };
    using Columns = std::array<std::vector<ComputePrice>, column_count>;
    ComputePrice between(Column column, model::OperatorRange range) const {
        return prices_[column].between(range);
    }
    core::Bytes bytes_before_norms() const;  // per parameter
    core::Seconds beside_weight_gradient(core::Seconds reduction, model::OperatorRange enter) const;
    core::Seconds beside_product(core::Seconds time, const TensorCollective& collective) const;
    // Some rows of a product, and as many and one more: pieces differ by a row at most.
    struct PiecePrices {
        std::int64_t rows = 0;  // shared among the pieces
        std::int64_t fewer = 0;
        std::array<ComputePrice, 2> forward, backward_input;  // of `fewer` rows, and of one more
    };
    using MeasuredTimes = std::map<std::string_view, const cluster::MeasuredOperator*>;
    void price_pieces(const model::ModelGraph& graph, const model::CostContext& context,
                      const MeasuredTimes& measured, const std::vector<std::int32_t>* first_like);
    // Of an attention in a ring: its first piece, its last and those between, which are alike.
    struct RingPrices {
        std::array<ComputePrice, 3> forward, backward_input;
    };
    void price_rings(const model::ModelGraph& graph, const model::CostContext& context,
                     const MeasuredTimes& measured, const std::vector<std::int32_t>* first_like);
    std::array<ComputePrice, 2> piece_prices(const std::vector<model::Kernel>& kernels, model::Phase phase,
                                             const PiecePrices& pieces, const core::Seconds* measured) const;
    // `place_of`: of each operator in the columns.
    void recompute_alternate_products(const model::ModelGraph& graph, const model::CostContext& context,
                                      const std::vector<std::int32_t>& place_of, Columns& columns) const;

    const cluster::DeviceSpec* device_ = nullptr;
    const schedule::Plan* plan_ = nullptr;
    FrameworkTraits traits_;
    CostConstants constants_;
    core::Seconds dispatch_;
    std::vector<bool> gathers_projection_;  // by operator: nothing runs beside its collectives
    std::array<OperatorPrices, column_count> prices_;
    std::map<std::int32_t, PiecePrices> pieces_;  // by operator
    std::map<std::int32_t, RingPrices> rings_;
    std::vector<std::string> assumptions_;
};

}  // namespace sim
