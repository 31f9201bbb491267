#include "exec/transport/world.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <type_traits>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cpu/cores.h"
#include "exec/runtime/rank_run.h"
#include "exec/transport/exchange.h"
#include "exec/transport/mpi/mpi_wire.h"
#include "exec/transport/tcp/socket_wire.h"

namespace exec::transport {

namespace {

enum : Tag { tag_record = 1, tag_clock = 2 };

// Records travel between processes of one build on machines of one kind: the program hash was compared
// before.
class Packer {
public:
    template <class T>
    void operator()(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    template <class T>
    void operator()(const std::vector<T>& values) {
        static_assert(std::is_trivially_copyable_v<T>);
        (*this)(values.size());
        if (!values.empty())
            text_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    }
    std::string take() { return std::move(text_); }

private:
    std::string text_;
};

class Unpacker {
public:
    explicit Unpacker(const std::string& text) : text_(text) {}
    template <class T>
    void operator()(T& value) {
        core::require(at_ + sizeof value <= text_.size(), "a rank's record is complete");
        std::memcpy(&value, text_.data() + at_, sizeof value);
        at_ += sizeof value;
    }
    template <class T>
    void operator()(std::vector<T>& values) {
        std::size_t count = 0;
        (*this)(count);
        core::require(count <= (text_.size() - at_) / sizeof(T), "a rank's record is complete");
        values.resize(count);
        if (count > 0) std::memcpy(values.data(), text_.data() + at_, count * sizeof(T));
        at_ += count * sizeof(T);
    }

private:
    const std::string& text_;
    std::size_t at_ = 0;
};

// All that a record holds, for packing and unpacking alike.
template <class Visit, class Record>
void visit_fields(const Visit& visit, Record& record) {
    visit(record.begins);
    for (auto& step : record.steps) visit(step);
    visit(record.losses);
    visit(record.evaluations);
    visit(record.samples);
    visit(record.peak);
    visit(record.at_peak);
    visit(record.operator_samples);
    visit(record.probes);
    visit(record.step_computing);
    visit(record.step_on_core);
    visit(record.computing);
    visit(record.on_core);
    visit(record.interruption);
}

std::string pack(const RankRecord& record) {
    Packer packer;
    packer(record.steps.size());
    visit_fields([&](const auto& field) { packer(field); }, record);
    return packer.take();
}

RankRecord unpack(const std::string& text) {
    RankRecord record;
    Unpacker unpacker(text);
    std::size_t steps = 0;
    unpacker(steps);
    record.steps.resize(steps);
    visit_fields([&](auto& field) { unpacker(field); }, record);
    return record;
}

void shift(RankRecord& record, Clock::duration by) {
    for (Clock::time_point& begin : record.begins) begin += by;
    for (auto& step : record.steps)
        for (InstructionTime& time : step) {
            time.start += by;
            time.end += by;
        }
}

// What to add to a peer's clock to read rank 0's: the middle of the shortest of some exchanges (Cristian,
// "Probabilistic clock synchronization", 1989).
std::vector<Clock::duration> clock_differences(World& world) {
    constexpr int exchanges = 16;
    ProcessCommunicator& communicator = world.communicator();
    std::vector<Clock::duration> result(world.size(), Clock::duration::zero());
    for (int peer = 1; peer < world.size(); ++peer) {
        const std::size_t p = peer;
        // On one host all processes read the same clock.
        if (world.hosts()[p] == world.hosts()[0] || (world.rank() != 0 && world.rank() != peer)) continue;
        Clock::duration shortest = Clock::duration::max();
        for (int i = 0; i < exchanges; ++i) {
            if (world.rank() == peer) {
                receive_text(communicator, 0, tag_clock);
                const Clock::time_point now = Clock::now();
                send_text(communicator, 0, tag_clock,
                          std::string(reinterpret_cast<const char*>(&now), sizeof now));
                continue;
            }
            const Clock::time_point before = Clock::now();
            send_text(communicator, peer, tag_clock, "?");
            const std::string answer = receive_text(communicator, peer, tag_clock);
            const Clock::time_point after = Clock::now();
            Clock::time_point there;
            std::memcpy(&there, answer.data(), sizeof there);
            if (after - before >= shortest) continue;
            shortest = after - before;
            result[p] = before + shortest / 2 - there;
        }
    }
    return result;
}

// No message of a run is longer. What ranks exchange is an array of the sender's, of 4 bytes an element on
// the wire whatever its precision; before and after the steps texts and the measurements of all steps.
std::uint64_t longest_message(const schedule::Program& program, int steps) {
    constexpr double most_widening = 4;  // fp8 to fp32
    constexpr std::uint64_t instruction_record = 256, others = 64;
    double arrays = 0;
    std::uint64_t instructions = 0;
    for (const schedule::RankProgram& one : program.classes) {
        double held = 0;
        for (const schedule::Buffer& buffer : one.buffers) held += buffer.bytes.value;
        arrays = std::max(arrays, held);
        instructions = std::max<std::uint64_t>(instructions, one.instructions.size());
    }
    return most_data_bytes_at_first + static_cast<std::uint64_t>(most_widening * arrays) +
           instruction_record * (instructions + others) * static_cast<std::uint64_t>(steps + 1);
}

}  // namespace

World::World(const Launch& launch, core::Seconds time_limit, const JoinOptions& join)
    : transport_(launch.is_mpi ? "MPI" : "TCP") {
    std::unique_ptr<Wire> wire = launch.is_mpi ? mpi::start(hosts_) : connect_all(launch, join, hosts_);
    const std::set<std::string> different(hosts_.begin(), hosts_.end());
    std::vector<std::string> names;
    for (std::size_t r = 0; r < hosts_.size(); ++r)
        names.push_back(different.size() > 1 ? fmt::format("rank {} on {}", r, hosts_[r])
                                             : fmt::format("rank {}", r));
    const std::string& here = hosts_[wire->rank()];
    // A launcher that binds every rank to one core has seen to it that there is one for each, if the machine
    // has them.
    const int cores = cpu::available_cores() == 1 ? static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))
                                                  : cpu::available_cores();
    const bool spins = std::count(hosts_.begin(), hosts_.end(), here) <= cores;
    communicator_ =
        std::make_unique<ProcessCommunicator>(std::move(wire), std::move(names), time_limit, spins);
}

World::~World() = default;

int World::host_count() const {
    return static_cast<int>(std::set<std::string>(hosts_.begin(), hosts_.end()).size());
}

int World::ranks_here() const {
    return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), hosts_[rank()]));
}

int World::rank_on_host() const {
    return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank(), hosts_[rank()]));
}

int World::number_of_first(Tag tag, int number) {
    communicator_->set_patient(true);
    number = std::stoi(broadcast_text(*communicator_, tag, std::to_string(number)));
    communicator_->set_patient(false);
    return number;
}

void World::leave() { communicator_->leave(core::seconds(5)); }

std::optional<RunResult> run(const schedule::Program& program, const model::ModelGraph& graph,
                             std::shared_ptr<const DataSource> data, const RunOptions& options,
                             World& world) {
    core::require(!options.keeps_state, "the state of ranks in processes is read from a checkpoint");
    core::require(world.size() == program.plan.layout.ranks(), "there is a process for every rank");
    ProcessCommunicator& communicator = world.communicator();
    communicator.set_time_limit(options.time_limit);
    communicator.limit_messages(longest_message(program, options.steps));
    if (options.overlaps) communicator.set_spins(false);
    const InputReader inputs(graph, std::move(data));
    const RunPreparation preparation = prepare_run(program, graph, options.evaluation.data != nullptr);
    const std::vector<Clock::duration> differences = clock_differences(world);
    RankRecord own = run_rank(program, graph, inputs, options, communicator, preparation,
                              world.rank_on_host(), world.ranks_here());
    const std::vector<std::string> texts = gather_texts(communicator, tag_record, pack(own));
    if (world.rank() != 0) return std::nullopt;
    std::vector<RankRecord> records;
    for (std::size_t r = 0; r < texts.size(); ++r) {
        records.push_back(unpack(texts[r]));
        shift(records.back(), differences[r]);
    }
    return assemble(program, std::move(records));
}

}  // namespace exec::transport
