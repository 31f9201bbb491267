#include "exec/transport/launch.h"

#include <charconv>
#include <cstdlib>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/transport/mpi/mpi_wire.h"

namespace exec::transport {

namespace {

// torch.distributed's and torchrun's own default.
constexpr int default_port = 29500;

class Reader {
public:
    Reader(const Environment& environment, core::Diagnostics& diagnostics)
        : environment_(environment), diagnostics_(diagnostics) {}

    std::optional<int> number(const char* name, int least, int greatest) {
        const std::optional<std::string> text = environment_(name);
        if (!text) {
            diagnostics_.error({}, "--ranks-from", fmt::format("{} is not set in the environment", name),
                               "start with torchrun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
                               "MASTER_PORT for every rank");
            return std::nullopt;
        }
        int value = 0;
        const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
        if (error != std::errc() || end != text->data() + text->size() || value < least || value > greatest) {
            diagnostics_.error({}, "--ranks-from",
                               fmt::format("{} = {} in the environment", name, core::in_quotes(*text)),
                               fmt::format("a number from {} to {} is expected", least, greatest));
            return std::nullopt;
        }
        return value;
    }

private:
    const Environment& environment_;
    core::Diagnostics& diagnostics_;
};

constexpr int most_ranks = 1 << 20;

std::optional<Launch> from_names(const char* rank, const char* size, const std::string& launcher,
                                 const std::string& address, std::optional<int> port,
                                 const Environment& environment, core::Diagnostics& diagnostics) {
    Reader reader(environment, diagnostics);
    const std::optional<int> ranks = reader.number(size, 1, most_ranks);
    const std::optional<int> own = ranks ? reader.number(rank, 0, *ranks - 1) : std::nullopt;
    if (!port && environment("MASTER_PORT")) {
        port = reader.number("MASTER_PORT", 1, 65535);
        if (!port) return std::nullopt;
    }
    if (!own) return std::nullopt;
    return Launch{false, *own, *ranks, address, port.value_or(default_port), launcher};
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
    const char* const value = std::getenv(name);
    return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

std::string first_host(const std::string& node_list) {
    const std::size_t bracket = node_list.find_first_of("[,");
    if (bracket == std::string::npos || node_list[bracket] == ',') return node_list.substr(0, bracket);
    const std::size_t end = node_list.find_first_of(",-]", bracket + 1);
    if (end == std::string::npos) return {};
    const std::size_t closing = node_list.find(']', bracket);
    if (closing == std::string::npos) return {};
    const std::size_t next = node_list.find(',', closing);
    const std::string suffix =
        node_list.substr(closing + 1, next == std::string::npos ? std::string::npos : next - closing - 1);
    if (suffix.find('[') != std::string::npos) return {};
    return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) + suffix;
}

std::optional<Launch> find_launch(const std::string& wanted, const Environment& environment,
                                  core::Diagnostics& diagnostics) {
    const bool has_open_mpi = environment("OMPI_COMM_WORLD_SIZE").has_value();
    const bool has_torchrun = environment("RANK") && environment("WORLD_SIZE") && environment("MASTER_ADDR");
    const bool has_slurm = environment("SLURM_PROCID").has_value();
    if (wanted == "threads") return std::nullopt;
    if (wanted == "mpi" || (wanted.empty() && has_open_mpi)) {
        if (!mpi::is_available()) {
            diagnostics.error({}, "--ranks-from", "this build has no MPI",
                              "install libopenmpi-dev and build again, or use --ranks-from env");
            return std::nullopt;
        }
        Launch launch;
        launch.is_mpi = true;
        launch.launcher = "MPI";
        return launch;
    }
    // The batch script of a Slurm job has SLURM_PROCID too, but is no step.
    const bool is_slurm_step = has_slurm && environment("SLURM_STEP_NUM_TASKS").value_or("1") != "1";
    // One of many that was not told where rank 0 is would otherwise train alone, and write where the others
    // write.
    const bool is_half_told = environment("RANK") && environment("WORLD_SIZE").value_or("1") != "1";
    if (wanted.empty() && !has_torchrun && !is_half_told && !is_slurm_step) return std::nullopt;
    const std::string address = environment("MASTER_ADDR").value_or("");
    const auto needs_address = [&](std::optional<Launch> launch) {
        if (launch && launch->address.empty()) {
            diagnostics.error({}, "--ranks-from", "MASTER_ADDR is not set in the environment",
                              "set it to the host of rank 0");
            launch.reset();
        }
        return launch;
    };
    if (environment("RANK")) {
        std::optional<Launch> launch = needs_address(
            from_names("RANK", "WORLD_SIZE", "torchrun", address, std::nullopt, environment, diagnostics));
        // torchrun's agent listens at MASTER_PORT itself when workers share its store.
        if (launch && environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") ++launch->port;
        return launch;
    }
    if (has_slurm) {
        const std::string list =
            environment("SLURM_STEP_NODELIST").value_or(environment("SLURM_JOB_NODELIST").value_or(""));
        std::optional<int> port;
        // Jobs that share a node must not share a port.
        if (!environment("MASTER_PORT"))
            port = default_port + std::atoi(environment("SLURM_JOB_ID").value_or("0").c_str()) % 1000;
        const char* const size =
            environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
        return needs_address(from_names("SLURM_PROCID", size, "Slurm",
                                        address.empty() ? first_host(list) : address, port, environment,
                                        diagnostics));
    }
    if (has_open_mpi)
        return needs_address(from_names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI", address,
                                        std::nullopt, environment, diagnostics));
    return needs_address(
        from_names("RANK", "WORLD_SIZE", "torchrun", address, std::nullopt, environment, diagnostics));
}

}  // namespace exec::transport
