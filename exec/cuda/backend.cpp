#include "exec/cuda/backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/cuda/operator/precision.h"
#include "exec/data.h"
#include "model/operators/cost.h"

namespace exec::cuda {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;
using schedule::PayloadKind;

CudaBackend::CudaBackend(const schedule::Program& program, const model::SegmentGraphs& graphs,
                         const RunOptions& options, int rank, std::shared_ptr<Machine> machine,
                         std::shared_ptr<Exchange> exchange, std::shared_ptr<const RunPlan> plan,
                         const BackendSettings& settings, const std::vector<std::string>& activities)
    : program_(program),
      graph_(graphs[0]),
      options_(options),
      rank_(rank),
      list_(program.classes[program.class_of_rank[rank]]),
      messages_(plan ? plan->messages : plan_messages(program)),
      lanes_(lanes_of(list_, messages_.has_channels)),
      machine_keeper_(std::move(machine)),
      exchange_keeper_(std::move(exchange)),
      machine_(*machine_keeper_),
      exchange_(*exchange_keeper_),
      plan_(std::move(plan)),
      settings_(settings),
      activities_(activities),
      exchanges_(program, graph_, rank, machine_, exchange_, messages_,
                 {DeviceUpdates::scales_loss(program.plan), settings.rehearses, settings.expert_room}, *this),
      updates_(program, machine_, exchanges_, *this),
      offload_(machine_, *this) {
    for (const std::int32_t i : core::indices(graph_.operators))
        if (graph_.operators[i].attributes.probability > 0) {
            key_row_[i] = dropping_.size();
            dropping_.push_back(i);
        }
    const schedule::RankCoordinates coordinates = schedule::coordinates_of(program.plan.layout, rank);
    const auto tables = std::make_shared<const AttentionTables>(graph_, program.plan.cost_context(),
                                                                coordinates.tensor, machine_);
    for (const model::ModelGraph& segment : graphs)
        operators_.push_back(std::make_unique<Operators>(
            segment, program.plan, coordinates.tensor, coordinates.data % program.plan.layout.context,
            schedule::trains(program), tables, machine_, static_cast<ExecutionContext&>(*this)));
    if (plans()) {
        learnt_.messages = messages_;
        planner_ = std::make_shared<ArenaPlanner>(list_, messages_.has_channels);
        blocks_ = planner_;
    } else {
        take_memory();
    }
    auto* const loss = static_cast<float*>(blocks_->take(alignment));
    updates_.take_sums(loss, static_cast<float*>(blocks_->take(alignment)));
    if (plans()) return;
    std::vector<char> is_awaited(list_.instructions.size(), 0);
    for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
        for (const std::uint32_t other : list_.after(list_.instructions[i])) is_awaited[other] = 1;
        for (const std::uint32_t other : plan_->arena.waits[i]) is_awaited[other] = 1;
    }
    step_begin_ = machine_.make_event(true);
    fetch_event_ = machine_.make_event(false);
    for (int lane = 0; lane < stream_count(); ++lane) stream_ends_.push_back(machine_.make_event(false));
    for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
        begins_.push_back(settings.times_instructions ? machine_.make_event(true) : nullptr);
        ends_.push_back(machine_.make_event(true));
        orders_.push_back(is_awaited[i] ? machine_.make_event(false) : nullptr);
    }
}

CudaBackend::~CudaBackend() {
    if (plans()) return;
    settle();  // to give memory back waits for the device, and so for launches that wait for other ranks
    machine_.use_workspace(nullptr, 0);
    machine_.release(memory_);
    offload_.release();
    machine_.release_host(staging_);
    if (fetched_) machine_.release_host(fetched_);
    machine_.release_host(step_block_);
}

// Every rank has passed the barrier after its last step, or this one has failed.
void CudaBackend::settle() {
    machine_.forget_captured();
    exchange_.abort();
}

const OperatorKernels& CudaBackend::operators() const { return watched_; }

std::vector<KernelChoice> CudaBackend::kernel_choices() const {
    std::set<KernelChoice> all;
    for (const std::unique_ptr<Operators>& of_segment : operators_)
        all.insert(of_segment->kernel_choices().begin(), of_segment->kernel_choices().end());
    if (settings_.captures_steps && !captures_steps())
        all.insert({"captured step", "",
                    fmt::format("the step is not captured: messages of schedule {} need streams that run at "
                                "once, which branches of a CUDA graph are not promised to do",
                                program_.plan.schedule)});
    else if (settings_.captures_steps && plan_ && plan_->fetched > 0)
        all.insert({"captured step", "",
                    program_.plan.layout.expert_ranks() > 1
                        ? "the step is not captured: how many routed tokens ranks exchange is asked of the "
                          "device in every step"
                        : "the step is not captured: how many routed tokens an expert gets is asked of the "
                          "device where products of experts are launched apart"});
    if (plan_)
        for (const std::string& remark : plan_->remarks) all.insert({"measured choices", "", remark});
    return {all.begin(), all.end()};
}

Operators& CudaBackend::operators_at_work() const {
    const std::int32_t micro_batch = operators_.size() > 1 ? instruction().micro_batch : 0;
    return *operators_[micro_batch < 0 ? 0 : static_cast<std::size_t>(program_.segment_of(micro_batch))];
}

void CudaBackend::take_memory() {
    const auto keys = dropping_.size() * (program_.whole_micro_batches() * program_.plan.micro_batch);
    keys_offset_ = rounded(program_.updates() * sizeof(StepFactors));
    step_block_bytes_ = rounded(
        keys_offset_ + (keys + 1) * sizeof(std::uint64_t));  // and where random numbers of libraries begin
    // All arrays lie in one block.
    std::size_t size = rounded(plan_->arena.bytes);
    const auto reserve = [&](std::size_t bytes) {
        const std::size_t at = size;
        size += rounded(bytes);
        return at;
    };
    const std::size_t block = reserve(step_block_bytes_);
    std::map<std::pair<schedule::Stream, int>, std::size_t> slots;
    for (const auto& [slot, bytes] : plan_->scratch) slots[slot] = reserve(bytes);
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> kept;
    for (const auto& [whose, bytes] : plan_->kept) kept[whose] = reserve(bytes);
    std::map<TableKey, std::pair<std::size_t, std::size_t>> tables;
    std::int64_t chunks = 0;
    for (const auto& [key, table] : plan_->tables) {
        const std::size_t at =
            reserve(table.ranges * sizeof(DeviceRange));  // in this order: an argument list has none
        tables[key] = {at, reserve(table.chunks * sizeof(UpdateChunk))};
        chunks = std::max(chunks, table.chunks);
    }
    const std::size_t partials = reserve(2 * static_cast<std::size_t>(chunks) * sizeof(float));
    const std::size_t workspace = reserve(plan_->library_workspace);
    take_block(size);
    machine_.use_workspace(memory_ + workspace, plan_->library_workspace);
    arena_ = std::make_shared<ArenaBlocks>(plan_->arena, memory_);
    blocks_ = arena_;
    device_block_ = memory_ + block;
    factors_ = reinterpret_cast<StepFactors*>(device_block_);
    keys_ = reinterpret_cast<std::uint64_t*>(device_block_ + keys_offset_);
    for (const auto& [slot, at] : slots) scratch_[slot] = memory_ + at;
    for (const auto& [whose, at] : kept) kept_[whose] = memory_ + at;
    std::map<TableKey, DeviceUpdates::RangeTable> placed;
    for (const auto& [key, at] : tables)
        placed[key] = {reinterpret_cast<DeviceRange*>(memory_ + at.first),
                       reinterpret_cast<UpdateChunk*>(memory_ + at.second), plan_->tables.at(key).chunks,
                       false};
    updates_.take_tables(std::move(placed), reinterpret_cast<float*>(memory_ + partials));
    take_host_memory();
}

void CudaBackend::take_block(std::size_t size) {
    const bool registers = program_.plan.layout.ranks() > 1 && settings_.ranks_per_device == 1 &&
                           !settings_.rehearses && allows(Fused::registered_buffers);
    memory_ = static_cast<char*>(registers ? machine_.allocate_for_exchange(size) : machine_.allocate(size));
    if (registers) exchange_.register_memory(memory_, size);
    if (!settings_.rehearses) return;
    machine_.fill_zero(machine_.stream(schedule::Stream::compute), memory_, size);
    machine_.synchronize();
}

void CudaBackend::take_host_memory() {
    std::size_t staging = alignment;
    for (const std::size_t bytes : plan_->staging) {
        staging_offsets_.push_back(staging);
        staging += rounded(bytes);
    }
    staging_ = static_cast<char*>(machine_.allocate_host(staging));
    if (plan_->fetched > 0)
        fetched_ = static_cast<float*>(machine_.allocate_host(plan_->fetched * sizeof(float)));
    std::optional<Stream> disk;
    if (plan_->offload.most > 0 && program_.plan.offload == schedule::Offload::disk && !settings_.rehearses)
        disk = stream_of(lanes_.count);
    offload_.take_memory(plan_->offload, program_.plan.offload, disk, rank_);
    step_block_ = static_cast<char*>(machine_.allocate_host(step_block_bytes_ + alignment));
    static_assert(DeviceUpdates::host_numbers * sizeof(float) <= alignment);
    updates_.take_host(reinterpret_cast<float*>(step_block_ + step_block_bytes_));
}

RunPlan CudaBackend::planned() const {
    RunPlan plan = learnt_;
    plan.arena = planner_->plan();
    plan.tables = updates_.learnt();
    plan.offload = offload_.learnt();
    plan.library_workspace = machine_.library_workspace();
    return plan;
}

void CudaBackend::reads(const void* address) {
    if (plans()) planner_->read(address);
}
void CudaBackend::writes(void* address) {
    if (plans()) planner_->write(address);
}

void CudaBackend::writes_part(void* address, std::size_t bytes) {
    if (plans()) planner_->write_part(address, bytes);
}

void CudaBackend::overwrites(void* data, std::size_t bytes) {
    for (PendingZeros* zeros : {&pending_zeros_, &gradient_zeros_}) zeros->cut(data, bytes);
}

Stream CudaBackend::stream() { return stream_of(lane(instruction_)); }

Stream CudaBackend::stream_of(int lane) const {
    return lane < schedule::stream_count ? machine_.stream(static_cast<schedule::Stream>(lane))
                                         : machine_.message_stream(lane - schedule::stream_count);
}

void* CudaBackend::scratch(int slot, std::size_t bytes) {
    const std::pair key(instruction().stream, slot);
    if (plans()) {
        std::size_t& most = learnt_.scratch[key];
        most = std::max(most, bytes);
        return reinterpret_cast<void*>(alignment);
    }
    core::require(plan_->scratch.at(key) >= bytes, "scratch is planned");
    return scratch_.at(key);
}

// On the compute stream alone, whose order is enough: no edge is planned for it.
void* CudaBackend::kept(model::OperatorId op, std::int32_t micro_batch, std::size_t bytes) {
    core::require(instruction().stream == schedule::Stream::compute, "what is kept is of the compute stream");
    const std::pair key(op.index, micro_batch);
    if (plans()) {
        std::size_t& most = learnt_.kept[key];
        most = std::max(most, bytes);
        return reinterpret_cast<void*>(alignment);
    }
    core::require(plan_->kept.at(key) >= bytes, "what is kept is planned");
    return kept_.at(key);
}

std::vector<float> CudaBackend::fetch(const float* from, std::size_t count) {
    if (plans()) {
        learnt_.fetched = std::max(learnt_.fetched, count);
        if (learnt_.host_waits.empty() || learnt_.host_waits.back() < instruction_)
            learnt_.host_waits.push_back(instruction_);
        return {};
    }
    core::require(count <= plan_->fetched, "what is fetched is planned");
    machine_.download(stream(), fetched_, from, count * sizeof(float));
    machine_.record(fetch_event_, stream());
    wait_for(fetch_event_);
    return {fetched_, fetched_ + count};
}

bool CudaBackend::takes_over_zeros(void* data, std::size_t bytes) {
    if (!data) return false;
    if (pending_zeros_.take(data, bytes) || gradient_zeros_.take(data, bytes)) return true;
    clear_zeros(data, bytes);
    return false;
}

void CudaBackend::clear_zeros(void* data, std::size_t bytes) {
    if (!data) return;
    clear(pending_zeros_.cut(data, bytes));
    clear(gradient_zeros_.cut(data, bytes));
}

void CudaBackend::clear(const std::vector<PendingZeros::Piece>& pieces) {
    for (const PendingZeros::Piece& piece : pieces) {
        writes(piece.begin);
        machine_.fill_zero(stream(), piece.begin, piece.bytes);
    }
}

const std::uint64_t* CudaBackend::mask_keys(model::OperatorId op, std::int32_t micro_batch) {
    const std::size_t row = key_row_.at(op.index) * program_.whole_micro_batches();
    return keys_ + (row + program_.whole_micro_batch_of(micro_batch)) * program_.plan.micro_batch;
}

const std::uint64_t* CudaBackend::library_offset() {
    if (!settings_.uses_library_masks) return nullptr;
    if (plans()) return reinterpret_cast<const std::uint64_t*>(alignment);
    return keys_ + dropping_.size() * (program_.whole_micro_batches() * program_.plan.micro_batch);
}

bool CudaBackend::begin_step(std::int64_t step) {
    step_ = step;
    has_begun_ = true;
    if (plans()) {
        planner_->begin_step();
        reads_done_ = 0;
        return false;
    }
    arena_->begin_step();
    offload_.begin_step();
    operator_marks_.clear();
    reads_done_ = 0;
    fill_step_block(step);
    host_begin_ = Clock::now();
    const Stream origin = machine_.stream(schedule::Stream::compute);
    is_replayed_ = is_captured_;
    if (is_captured_) {
        for (const DataRead& read : reads_) fill(read);
        machine_.launch_captured(origin);
        return true;
    }
    constexpr int steps_before_capture = 2;
    // A captured step cannot ask the host how large its next launch is.
    is_capturing_ = captures_steps() && plan_->fetched == 0 && !options_.times_operators &&
                    machine_.can_capture() && performed_ >= steps_before_capture;
    if (is_capturing_) machine_.begin_capture(origin);
    machine_.record(step_begin_, origin);
    machine_.upload(origin, device_block_, step_block_, step_block_bytes_);
    updates_.begin_step(origin);
    // All streams start from here.
    const Event start = stream_ends_[static_cast<std::size_t>(schedule::Stream::compute)];
    machine_.record(start, origin);
    for (int lane = 0; lane < stream_count(); ++lane)
        if (stream_of(lane) != origin) machine_.wait(stream_of(lane), start);
    return false;
}

void CudaBackend::begin(std::uint32_t index) {
    instruction_ = index;
    exchanges_.begin(index);
    if (plans()) {
        planner_->begin(index);
        return;
    }
    const Instruction& own = instruction();
    machine_.begin_range(activities_[index].c_str());
    const auto wait_for = [&](std::uint32_t other) {
        if (lane(other) != lane(index)) machine_.wait(stream(), orders_[other]);
    };
    for (const std::uint32_t other : list_.after(own))
        if (!messages_.has_channels || list_.instructions[other].kind != InstructionKind::send)
            wait_for(other);
    for (const std::uint32_t other : plan_->arena.waits[index]) wait_for(other);
    if (begins_[index]) machine_.record(begins_[index], stream());
}

void CudaBackend::end(std::uint32_t index) {
    operators_at_work().fusion().settle();
    updates_.end_instruction();
    clear(pending_zeros_.cut_all());
    if (is_last_instruction()) clear(gradient_zeros_.cut_all());
    if (plans()) return;
    machine_.record(ends_[index], stream());
    if (orders_[index]) machine_.record(orders_[index], stream());
    machine_.end_range();
}

void CudaBackend::end_step(std::vector<InstructionTime>& times) {
    exchanges_.end_step();
    if (plans()) return;
    const Stream origin = machine_.stream(schedule::Stream::compute);
    if (!is_replayed_) {
        updates_.end_step();
        for (int lane = 0; lane < stream_count(); ++lane) {
            if (stream_of(lane) == origin) continue;
            const Event event = stream_ends_[lane];
            machine_.record(event, stream_of(lane));
            machine_.wait(origin, event);
        }
        updates_.download(origin);
        if (is_capturing_) {
            machine_.end_capture(origin);
            machine_.launch_captured(origin);
            is_capturing_ = false;
            is_captured_ = true;
        }
    }
    const Event finished = stream_ends_[static_cast<std::size_t>(schedule::Stream::compute)];
    machine_.record(finished, origin);
    for (DataRead& read : reads_) {
        read.ahead.resize(read.bytes);
        read.write(step_ + 1, read.ahead.data());
        read.ahead_of = step_ + 1;
    }
    wait_for(finished);
    check_disk();
    ++performed_;
    updates_.finish();
    const auto moment = [&](Event event) {
        return host_begin_ + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(machine_.between(step_begin_, event).value));
    };
    for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
        InstructionTime time;
        time.instruction = i;
        time.end = moment(ends_[i]);
        time.start = begins_[i] ? moment(begins_[i]) : time.end;
        if (list_.instructions[i].kind == InstructionKind::compute)
            computing_ += core::Seconds(std::chrono::duration<double>(time.end - time.start).count());
        times.push_back(time);
    }
    for (std::size_t i = 1; i < operator_marks_.size(); ++i)
        if (operator_marks_[i].op)
            operator_samples_.push_back({*operator_marks_[i].op,
                                         static_cast<std::int32_t>(step_),
                                         rank_,
                                         operator_marks_[i].segment,
                                         operator_marks_[i].phase,
                                         machine_.between(operator_events_[i - 1], operator_events_[i]),
                                         {}});
}

// Polls, so that a broken communicator or a rank that never comes ends in words.
void CudaBackend::wait_for(Event event) {
    const core::Seconds limit = options_.time_limit * settings_.ranks_per_device;
    const auto give_up = [&](const std::string& what_for) {
        settle();
        throw core::MachineError(
            fmt::format("rank {} waited longer than {} {}", rank_, core::format(limit), what_for));
    };
    const Clock::time_point begin = Clock::now();
    for (std::int64_t polls = 0; !machine_.has_happened(event); ++polls) {
        constexpr std::int64_t polls_per_check = 1024;  // a check asks NCCL, the disk and the clock
        if (polls % polls_per_check == polls_per_check - 1) {
            exchange_.check();
            check_disk();
            if (std::chrono::duration<double>(Clock::now() - begin).count() > limit.value) {
                for (std::uint32_t i = 0; i < list_.instructions.size(); ++i)
                    if (!machine_.has_happened(ends_[i]))
                        give_up(fmt::format("in step {} for: {}", step_, activities_[i]));
                give_up(fmt::format("for the end of step {}", step_));
            }
        }
        // Ranks that share a device are more than it has work for at a time: they leave the cores to others.
        if (settings_.ranks_per_device > 1) std::this_thread::sleep_for(std::chrono::microseconds(20));
        else std::this_thread::yield();
    }
}

void CudaBackend::begin_operators(std::int32_t segment) {
    if (plans() || !options_.times_operators) return;
    operator_marks_.push_back({{}, segment});
    if (operator_events_.size() < operator_marks_.size())
        operator_events_.push_back(machine_.make_event(true));
    machine_.record(operator_events_[operator_marks_.size() - 1], stream());
}

void CudaBackend::end_operator(std::int32_t op, model::Phase phase) {
    if (plans() || !options_.times_operators) return;
    operator_marks_.push_back({op, operator_marks_.back().segment, phase});
    if (operator_events_.size() < operator_marks_.size())
        operator_events_.push_back(machine_.make_event(true));
    machine_.record(operator_events_[operator_marks_.size() - 1], stream());
}

void CudaBackend::fill_zero(void* data, std::size_t bytes) {
    if (!has_begun_) {
        writes(data);
        return machine_.fill_zero(machine_.stream(schedule::Stream::compute), data, bytes);
    }
    if (instruction().pieces > 1) writes_part(data, bytes);
    else writes(data);
    operators_at_work().fusion().forget(data, bytes);
    (instruction().kind == InstructionKind::zero_gradients ? gradient_zeros_ : pending_zeros_)
        .add(data, bytes);
}

void CudaBackend::copy(void* to, const void* from, std::size_t bytes) {
    reads(from);
    writes(to);
    overwrites(to, bytes);
    clear_zeros(const_cast<void*>(from), bytes);
    machine_.copy(stream(), to, from, bytes);
}

void CudaBackend::accumulate(ConstTensorView x, TensorView y) {
    reads(x.data());
    writes(y.data());
    clear_zeros(const_cast<void*>(x.data()), x.bytes());
    const bool takes_over = takes_over_zeros(y.data(), x.bytes());
    machine_.kernels().scale(stream(), type_of(x.type()), x.elements(), 1.0f, x.data(), y.data(),
                             !takes_over);
}

void CudaBackend::read_data(Buffer& into, core::DataType type,
                            std::function<void(std::int64_t step, void* host)> write_data) {
    writes(into.data());
    const std::size_t number = reads_done_++;
    if (plans()) {
        if (number >= learnt_.staging.size()) learnt_.staging.push_back(into.bytes());
        return;
    }
    char* host = staging_ + staging_offsets_[number];
    const core::DataType kept = program_.plan.precision.activations();
    if (type == core::DataType::fp32 && type_of(kept) != Type::fp32) {  // images
        const std::size_t count = into.bytes() / size_of(type_of(kept));
        write_data = [kept, count, fp32 = std::move(write_data)](std::int64_t step, void* to) {
            std::vector<float> values(count);
            fp32(step, values.data());
            to_precision(kept, values, to);
        };
    }
    if (number == reads_.size()) reads_.push_back({std::move(write_data), host, into.bytes()});
    fill(reads_[number]);
    machine_.upload(stream(), into.data(), host, into.bytes());
}

void CudaBackend::fill(const DataRead& read) const {
    if (read.ahead_of == step_) std::memcpy(read.host, read.ahead.data(), read.bytes);
    else read.write(step_, read.host);
}

void CudaBackend::upload(std::span<const float> values, TensorView to) {
    if (plans()) return;
    machine_.synchronize();  // what cleared the array is on a stream of its own
    if (type_of(to.type()) == Type::fp32) {
        machine_.upload_now(to.data(), values.data(), values.size_bytes());
        return;
    }
    std::vector<char> converted(values.size() * size_of(type_of(to.type())));
    to_precision(to.type(), values, converted.data());
    machine_.upload_now(to.data(), converted.data(), converted.size());
}

void CudaBackend::download(ConstTensorView from, std::span<float> values) {
    if (plans()) return;
    machine_.synchronize();
    std::vector<char> raw(values.size() * size_of(type_of(from.type())));
    machine_.download_now(raw.data(), from.data(), raw.size());
    from_precision(from.type(), raw.data(), values);
}

void CudaBackend::fill_step_block(std::int64_t step) {
    std::memset(step_block_, 0, step_block_bytes_);
    const std::vector<StepFactors> factors = updates_.factors(step);
    std::memcpy(step_block_, factors.data(), factors.size() * sizeof(StepFactors));
    // A library's random numbers begin with the key of a micro-batch's first sample; ranks with other heads
    // of the same samples go on elsewhere: 2^40 scores further.
    auto* key = reinterpret_cast<std::uint64_t*>(step_block_ + keys_offset_);
    const schedule::Plan& plan = program_.plan;
    const int replica = schedule::coordinates_of(plan.layout, rank_).data / plan.layout.context;
    for (const std::int32_t op : dropping_)
        for (int k = 0; k < program_.whole_micro_batches(); ++k)
            for (int i = 0; i < plan.micro_batch; ++i)
                *key++ = mask_key(options_.seed, step, op,
                                  options_.sample_offset +
                                      global_sample(step, replica, plan.layout.replicas(),
                                                    program_.whole_micro_batches(), plan.micro_batch, k, i));
    *key = static_cast<std::uint64_t>(schedule::coordinates_of(plan.layout, rank_).tensor) << 40;
}

void CudaBackend::check_disk() const {
    if (const auto failure = offload_.failure())
        throw core::MachineError(fmt::format("rank {}: {}, in step {}, in: {}", rank_, failure->words, step_,
                                             activities_[failure->instruction]));
}

core::Bytes CudaBackend::overhead() const {
    if (plans()) return {};
    return core::Bytes(std::max(0.0, machine_.memory_in_use().value - plan_->arena.largest_sum));
}

}  // namespace exec::cuda
