#include "exec/runtime/bucket_state.h"

#include <algorithm>

#include "core/errors.h"
#include "exec/runtime/parameters.h"

namespace exec {

using schedule::MemoryKind;
using schedule::Sharding;

int piece_of(const schedule::Plan& plan, const schedule::ParameterBucket& bucket, int rank) {
    const std::vector<int> group = schedule::process_group(
        plan.layout, schedule::groups_of(plan.layout, bucket).shard, rank, plan.effective_shard_degree());
    return static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin());
}

BucketState::BucketState(const model::ModelGraph& graph, const schedule::Plan& plan,
                         const schedule::ParameterBucket& bucket, const ParameterShare& share, int piece,
                         std::uint64_t seed, bool trains, std::shared_ptr<MemoryAccount> account,
                         std::shared_ptr<MemoryAccount> host, RankArrays& arrays)
    : graph_(graph),
      plan_(plan),
      bucket_(bucket),
      account_(std::move(account)),
      host_(std::move(host)),
      arrays_(arrays),
      piece_(piece),
      padded_(bucket.padded_elements) {
    const schedule::Precision& precision = plan.precision;
    piece_size_ = shards(Sharding::optimizer) ? padded_ / bucket.pieces : padded_;

    std::vector<float> initial;
    if (arrays.keeps_values()) {
        initial.resize(padded_, 0.0f);
        for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
            const model::Parameter& parameter = graph.parameter(bucket.parameters[i]);
            initialize(parameter, seed, element_runs(parameter, share), initial.data() + bucket.offsets[i]);
        }
    }
    if (plan.keeps_parameters_on_hosts()) host_parameters_ = update_array(precision.parameters);
    else if (shards(Sharding::parameters))
        piece_parameters_ = array(MemoryKind::parameters, precision.parameters, piece_size_);
    else whole_parameters_ = array(MemoryKind::parameters, precision.parameters, padded_);
    if (trains) {
        if (!bucket.sums_on_host) {
            BufferPointer& gradient = shards(Sharding::gradients) ? piece_gradient_ : whole_gradient_;
            gradient = array(MemoryKind::gradients, precision.gradients,
                             shards(Sharding::gradients) ? piece_size_ : padded_);
        }
        if (precision.has_master_parameters) master_ = update_array(core::DataType::fp32);
        if (plan.updates_on_hosts()) {
            host_gradient_ = update_array(precision.gradients);
            if (!host_parameters_) host_parameters_ = update_array(precision.parameters);
        }
    }
    if (arrays.keeps_values()) upload_parameters(initial);
    if (!trains) return;
    const auto states = static_cast<int>(schedule::state_bytes_per_parameter(plan.optimizer).value / 4);
    if (states > 0) first_state_ = update_array(core::DataType::fp32);
    if (states > 1) second_state_ = update_array(core::DataType::fp32);
    for (const BufferPointer& state : {first_state_, second_state_})
        if (state) arrays.fill_zero(state->data(), state->bytes());
}

BufferPointer BucketState::array(MemoryKind kind, core::DataType type, std::size_t elements) const {
    return make_buffer(account_, kind, elements * core::bytes_per_element(type));
}

BufferPointer BucketState::update_array(core::DataType type) const {
    return make_buffer(plan_.updates_on_hosts() ? host_ : account_, MemoryKind::optimizer,
                       piece_size_ * core::bytes_per_element(type));
}

TensorView BucketState::whole_parameters() {
    core::require(whole_parameters_ != nullptr, "parameters are gathered before they are read");
    return whole_parameters_->view(plan_.precision.parameters);
}

BucketState::Version BucketState::version() {
    if (!version_) version_ = std::make_shared<BufferPointer>(whole_parameters_);
    return version_;
}

TensorView BucketState::owned_parameters() const {
    const core::DataType type = plan_.precision.parameters;
    if (plan_.keeps_parameters_on_hosts()) return host_parameters_->view(type);
    if (shards(Sharding::parameters)) return piece_parameters_->view(type);
    const TensorView whole = whole_parameters_->view(type);
    return shards(Sharding::optimizer) ? piece_of(whole) : whole;
}

TensorView BucketState::whole_gradient() {
    if (!whole_gradient_) {
        whole_gradient_ = array(MemoryKind::gradients, plan_.precision.gradients, padded_);
        arrays_.fill_zero(whole_gradient_->data(), whole_gradient_->bytes());
    }
    return whole_gradient_->view(plan_.precision.gradients);
}

TensorView BucketState::piece_gradient() {
    if (piece_gradient_) return piece_gradient_->view(plan_.precision.gradients);
    const TensorView whole = whole_gradient();
    return shards(Sharding::optimizer) ? piece_of(whole) : whole;
}

void BucketState::begin_gather() {
    if (!shards(Sharding::parameters)) return;  // the pieces are where they belong
    if (!whole_parameters_)
        whole_parameters_ = array(MemoryKind::parameters, plan_.precision.parameters, padded_);
    arrays_.copy(piece_of(whole_parameters()).data(), piece_parameters_->data(), piece_parameters_->bytes());
}

void BucketState::finish_gather() {
    if (plan_.keeps_parameters_on_hosts()) piece_parameters_.reset();
}

void BucketState::release_parameters() {
    if (shards(Sharding::parameters) || plan_.keeps_parameters_on_hosts()) whole_parameters_.reset();
}

void BucketState::finish_reduce_scatter() {
    if (!shards(Sharding::gradients)) return;
    if (bucket_.sums_on_host) {
        piece_gradient_ = array(MemoryKind::gradients, plan_.precision.gradients, piece_size_);
        arrays_.copy(piece_gradient_->data(), piece_of(whole_gradient()).data(), piece_gradient_->bytes());
        whole_gradient_.reset();
        return;
    }
    arrays_.accumulate(piece_of(whole_gradient()), piece_gradient_->view(plan_.precision.gradients));
    whole_gradient_.reset();
}

void BucketState::send_gradient_to_host() {
    has_sent_gradient_ = true;
    if (!bucket_.sums_on_host)
        return arrays_.copy(host_gradient_->data(), piece_gradient().data(), host_gradient_->bytes());
    arrays_.accumulate(piece_gradient(), host_gradient_->view(plan_.precision.gradients));
    piece_gradient_.reset();
    whole_gradient_.reset();
}

void BucketState::load_parameters_from_host() {
    const core::DataType type = plan_.precision.parameters;
    if (!plan_.keeps_parameters_on_hosts())
        return arrays_.copy(owned_parameters().data(), host_parameters_->data(), host_parameters_->bytes());
    BufferPointer& loaded = bucket_.pieces > 1 ? piece_parameters_ : whole_parameters_;
    if (!loaded) loaded = array(MemoryKind::parameters, type, piece_size_);
    arrays_.copy(loaded->data(), host_parameters_->data(), host_parameters_->bytes());
}

TensorView BucketState::updated_gradient() {
    return has_sent_gradient_ ? host_gradient_->view(plan_.precision.gradients) : piece_gradient();
}

void BucketState::zero_gradients() {
    has_sent_gradient_ = false;
    for (const BufferPointer& gradient :
         {piece_gradient_, whole_gradient_, bucket_.sums_on_host ? host_gradient_ : nullptr})
        if (gradient) arrays_.fill_zero(gradient->data(), gradient->bytes());
}

template <class Visit>
void BucketState::for_each_owned(const Visit& visit) const {
    const bool is_divided = shards(Sharding::optimizer);
    const std::size_t begin = is_divided ? piece_begin() : 0,
                      end = is_divided ? begin + piece_size_ : padded_;
    for (std::size_t i = 0; i < bucket_.parameters.size(); ++i) {
        const std::size_t first = bucket_.offsets[i];
        const std::size_t last = i + 1 < bucket_.offsets.size() ? bucket_.offsets[i + 1] : bucket_.elements;
        const std::size_t low = std::max(first, begin), high = std::min(last, end);
        if (low < high) visit(bucket_.parameters[i], low - first, low - begin, high - low);
    }
}

void BucketState::list_updates(const schedule::Optimizer& optimizer, std::vector<UpdateRange>& ranges) {
    if (version_ && version_.use_count() > 1) {
        *version_ = array(MemoryKind::parameters, plan_.precision.parameters, padded_);
        arrays_.copy((*version_)->data(), whole_parameters_->data(), whole_parameters_->bytes());
    }
    version_.reset();
    const TensorView parameters = host_parameters_ ? host_parameters_->view(plan_.precision.parameters)
                                                   : owned_parameters(),
                     gradients = updated_gradient();
    std::int32_t index = 0;
    for_each_owned([&](model::ParameterId id, std::int64_t, std::int64_t at, std::int64_t count) {
        UpdateRange range;
        range.id = id;
        const auto part_of = [&](const BufferPointer& state) {
            return state ? state->view(core::DataType::fp32).part(at, count) : TensorView();
        };
        range.parameter = parameters.part(at, count);
        range.gradient = gradients.part(at, count);
        range.master = part_of(master_);
        range.first = part_of(first_state_);
        range.second = part_of(second_state_);
        range.count = count;
        range.weight_decay = graph_.parameter(id).decays ? optimizer.weight_decay : 0.0;
        while (bucket_.parameters[index] != id) ++index;
        range.place = index;
        ranges.push_back(range);
    });
}

TensorView BucketState::begin_update_sums() {
    update_sums_ = array(MemoryKind::workspace, core::DataType::fp32, 2 * bucket_.parameters.size());
    return update_sums();
}

TensorView BucketState::update_sums() const {
    return update_sums_ ? update_sums_->view(core::DataType::fp32) : TensorView();
}

void BucketState::upload_parameters(std::span<const float> whole) {
    const std::span<const float> own =
        whole.subspan(shards(Sharding::optimizer) ? piece_begin() : 0, piece_size_);
    if (piece_parameters_) arrays_.upload(own, piece_parameters_->view(plan_.precision.parameters));
    else if (whole_parameters_) arrays_.upload(whole, whole_parameters_->view(plan_.precision.parameters));
    if (master_) arrays_.upload(own, master_->view(core::DataType::fp32));
    if (host_parameters_) arrays_.upload(own, host_parameters_->view(plan_.precision.parameters));
}

std::vector<BucketState::Trained> BucketState::trained() const {
    std::vector<Trained> result;
    const TensorView parameters = owned_parameters();
    for_each_owned([&](model::ParameterId id, std::int64_t first, std::int64_t at, std::int64_t count) {
        Trained& own = result.emplace_back();
        own.parameter = id;
        own.first = first;
        own.values.resize(count);
        const TensorView values = master_ ? master_->view(core::DataType::fp32) : parameters;
        arrays_.download(values.part(at, count), own.values);
        const auto copy_state = [&](const BufferPointer& state, std::vector<float>& into) {
            if (!state) return;
            into.resize(count);
            arrays_.download(state->view(core::DataType::fp32).part(at, count), into);
        };
        copy_state(first_state_, own.first_moment);
        copy_state(second_state_, own.second_moment);
    });
    return result;
}

void BucketState::restore(const Read& read) {
    std::vector<float> whole(padded_, 0.0f);
    for (std::size_t i = 0; i < bucket_.parameters.size(); ++i) {
        const std::size_t first = bucket_.offsets[i];
        const std::size_t last = i + 1 < bucket_.offsets.size() ? bucket_.offsets[i + 1] : bucket_.elements;
        read(bucket_.parameters[i], StateKind::value, 0, std::span(whole).subspan(first, last - first));
    }
    upload_parameters(whole);
    std::vector<float> state(piece_size_, 0.0f);
    for (const auto& entry : {std::pair(first_state_, StateKind::first_moment),
                              std::pair(second_state_, StateKind::second_moment)}) {
        const BufferPointer& buffer = entry.first;
        const StateKind kind = entry.second;  // clang 14 captures no bindings
        if (!buffer) continue;
        std::fill(state.begin(), state.end(), 0.0f);
        for_each_owned([&](model::ParameterId id, std::int64_t first, std::int64_t at, std::int64_t count) {
            read(id, kind, first, std::span(state).subspan(at, count));
        });
        arrays_.upload(state, buffer->view(core::DataType::fp32));
    }
}

std::vector<BucketState::Owned> BucketState::owned() {
    std::vector<Owned> result;
    const TensorView parameters = owned_parameters();
    const bool has_gradient = has_sent_gradient_ || (shards(Sharding::gradients)
                                                         ? piece_gradient_ != nullptr
                                                         : whole_gradient_ != nullptr);  // not in evaluation
    const TensorView gradients = has_gradient ? updated_gradient() : TensorView();
    for_each_owned([&](model::ParameterId id, std::int64_t first, std::int64_t at, std::int64_t count) {
        Owned& own = result.emplace_back();
        own.parameter = id;
        own.first = first;
        own.values.resize(count);
        own.gradients.resize(count);
        // The master copy is the parameter; the other one is its rounding.
        const TensorView values = master_ ? master_->view(core::DataType::fp32) : parameters;
        arrays_.download(values.part(at, count), own.values);
        if (gradients) arrays_.download(gradients.part(at, count), own.gradients);
    });
    return result;
}

}  // namespace exec
