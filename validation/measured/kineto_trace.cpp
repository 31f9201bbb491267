#include "validation/measured/kineto_trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace validation {

namespace {

struct NamePart {
    const char* part;
    StepKind kind;
};

// The first that a name contains, in lower case: particular names stand before those that they contain.
constexpr std::array kernel_names = {
    NamePart{"reducescatter", StepKind::reduce_scatter},
    NamePart{"reduce_scatter", StepKind::reduce_scatter},
    NamePart{"allreduce", StepKind::all_reduce},
    NamePart{"all_reduce", StepKind::all_reduce},
    NamePart{"allgather", StepKind::all_gather},
    NamePart{"all_gather", StepKind::all_gather},
    NamePart{"alltoall", StepKind::all_to_all},
    NamePart{"all_to_all", StepKind::all_to_all},
    NamePart{"sendrecv", StepKind::send_receive},
    NamePart{"nccl", StepKind::other_communication},
    NamePart{"multi_tensor_apply", StepKind::optimizer},
    NamePart{"multitensorapply", StepKind::optimizer},
    NamePart{"adam", StepKind::optimizer},
    NamePart{"flash_fwd", StepKind::attention_and_loss},
    NamePart{"flash_bwd", StepKind::attention_and_loss},
    NamePart{"flash::", StepKind::attention_and_loss},
    NamePart{"fmha", StepKind::attention_and_loss},
    NamePart{"attention", StepKind::attention_and_loss},
    NamePart{"sdpa", StepKind::attention_and_loss},
    NamePart{"softmax", StepKind::attention_and_loss},
    NamePart{"nll_loss", StepKind::attention_and_loss},
    NamePart{"cross_entropy", StepKind::attention_and_loss},
    NamePart{"layer_norm", StepKind::norm},
    NamePart{"layernorm", StepKind::norm},
    NamePart{"rms_norm", StepKind::norm},
    NamePart{"rmsnorm", StepKind::norm},
    NamePart{"batch_norm", StepKind::norm},
    NamePart{"batchnorm", StepKind::norm},
    NamePart{"bn_fw", StepKind::norm},
    NamePart{"bn_bw", StepKind::norm},
    NamePart{"ln_fwd", StepKind::norm},
    NamePart{"ln_bwd", StepKind::norm},
    NamePart{"wgrad", StepKind::convolution},
    NamePart{"dgrad", StepKind::convolution},
    NamePart{"fprop", StepKind::convolution},
    NamePart{"scudnn", StepKind::convolution},  // of cuDNN, as products: maxwell_scudnn_128x128_relu
    NamePart{"conv2d", StepKind::convolution},
    NamePart{"convolve", StepKind::convolution},
    NamePart{"winograd", StepKind::convolution},
    NamePart{"gemm", StepKind::matrix_product},
    NamePart{"gemv", StepKind::matrix_product},
    NamePart{"nvjet", StepKind::matrix_product},
    NamePart{"cutlass", StepKind::matrix_product},
    NamePart{"cublas", StepKind::matrix_product},
    NamePart{"splitkreduce", StepKind::matrix_product},
};

constexpr std::array operator_names = {
    NamePart{"optimizer.step", StepKind::optimizer},
    NamePart{"_fused_adam", StepKind::optimizer},
    NamePart{"reduce_scatter", StepKind::reduce_scatter},
    NamePart{"allreduce", StepKind::all_reduce},
    NamePart{"all_reduce", StepKind::all_reduce},
    NamePart{"allgather", StepKind::all_gather},
    NamePart{"all_gather", StepKind::all_gather},
    NamePart{"alltoall", StepKind::all_to_all},
    NamePart{"all_to_all", StepKind::all_to_all},
    NamePart{"c10d::send", StepKind::send_receive},
    NamePart{"c10d::recv", StepKind::send_receive},
    NamePart{"c10d::", StepKind::other_communication},
    NamePart{"attention", StepKind::attention_and_loss},
    NamePart{"softmax", StepKind::attention_and_loss},
    NamePart{"nll_loss", StepKind::attention_and_loss},
    NamePart{"cross_entropy", StepKind::attention_and_loss},
    NamePart{"norm", StepKind::norm},
    NamePart{"conv", StepKind::convolution},
    NamePart{"linear", StepKind::matrix_product},
    NamePart{"matmul", StepKind::matrix_product},
    NamePart{"addmm", StepKind::matrix_product},
    NamePart{"bmm", StepKind::matrix_product},
    NamePart{"aten::mm", StepKind::matrix_product},
    NamePart{"aten::copy_", StepKind::copy},
    NamePart{"aten::to", StepKind::copy},
    NamePart{"aten::", StepKind::elementwise},
};

struct Event {
    std::string name;
    double begin_us = 0, end_us = 0;
    StepKind kind = StepKind::elementwise;
};

const std::string& text_of(const core::Value& event, std::string_view key) {
    static const std::string none;
    const core::Value* const value = event.find(key);
    return value && value->is_string() ? value->string() : none;
}

class KinetoReader {
public:
    KinetoReader(const std::string& file, core::Diagnostics& diagnostics)
        : file_(file), diagnostics_(diagnostics) {}

    std::optional<MeasuredStep> read(const core::Value& document) {
        const std::size_t errors_before = diagnostics_.error_count();
        const core::Value* const events = document.find("traceEvents");
        if (!events || !events->is_array()) {
            error(document, "traceEvents", "no trace of torch.profiler: traceEvents is missing",
                  "give what export_chrome_trace wrote");
            return std::nullopt;
        }
        const core::Value* const version = document.find("schemaVersion");
        if (!version || !version->is_number() || version->number() != 1)
            error(version ? *version : document, "schemaVersion", "another trace than Kineto's",
                  "schemaVersion = 1 is read");
        for (const core::Value& event : events->items()) take(event);
        if (diagnostics_.error_count() == errors_before) check(document);
        if (diagnostics_.error_count() > errors_before) return std::nullopt;
        return sum_up();
    }

private:
    void error(const core::Value& at, std::string key, std::string message, std::string hint) {
        core::SourceLocation location = at.location;
        if (location.file.empty()) location.file = file_;
        diagnostics_.error(location, std::move(key), std::move(message), std::move(hint));
    }

    void take(const core::Value& event) {
        if (!event.is_table() || text_of(event, "ph") != "X") return;
        const std::string& category = text_of(event, "cat");
        const std::string& name = text_of(event, "name");
        const bool is_step = category == "user_annotation" && name.starts_with("ProfilerStep#");
        const bool is_optimizer = category == "user_annotation" && name.starts_with("Optimizer.step#");
        const bool is_kernel = category == "kernel", is_operator = category == "cpu_op" || is_optimizer;
        const bool is_copy = category == "gpu_memcpy" || category == "gpu_memset";
        if (!is_step && !is_kernel && !is_operator && !is_copy) return;
        const core::Value *const begin = event.find("ts"), *const duration = event.find("dur");
        if (!begin || !begin->is_number() || !duration || !duration->is_number() || duration->number() < 0)
            return error(event, "dur", fmt::format("{} has no time and duration in microseconds", name), "");
        Event one{name, begin->number(), begin->number() + duration->number()};
        if (is_step) return steps_.push_back(std::move(one));
        if (is_operator) {
            const core::Value* const thread = event.find("tid");
            const std::string where =
                thread && thread->is_number() ? fmt::format("{}", thread->number()) : std::string();
            return operators_[where].push_back(std::move(one));
        }
        if (const core::Value* const arguments = event.find("args"))
            if (const core::Value* const device = arguments->find("device"); device && device->is_number())
                devices_.insert(device->number());
        one.kind = is_copy ? StepKind::copy : kind_of_kernel(name);
        kernels_.push_back(std::move(one));
    }

    void check(const core::Value& document) {
        if (steps_.empty())
            error(document, "traceEvents", "no ProfilerStep tells where a step begins",
                  "call step() of the profiler after every training step, under a schedule");
        if (devices_.size() > 1)
            error(document, "traceEvents",
                  fmt::format("kernels of {} devices: one trace is of one rank", devices_.size()),
                  "give the trace of one rank");
        if (kernels_.empty() && operators_.empty())
            error(document, "traceEvents", "no kernel and no operator was traced",
                  "profile with ProfilerActivity.CUDA, on processors ProfilerActivity.CPU");
    }

    // On a thread the outermost operators of a known kind: what runs inside them is theirs.
    std::vector<Event> outermost_operators() const {
        std::vector<Event> result;
        for (auto [thread, list] : operators_) {
            std::sort(list.begin(), list.end(), [](const Event& a, const Event& b) {
                return a.begin_us != b.begin_us ? a.begin_us < b.begin_us : a.end_us > b.end_us;
            });
            double counted_until = -std::numeric_limits<double>::infinity();
            for (Event& event : list) {
                if (event.begin_us < counted_until) continue;
                const std::optional<StepKind> kind = kind_of_operator(event.name);
                if (!kind) continue;
                counted_until = event.end_us;
                event.kind = *kind;
                result.push_back(std::move(event));
            }
        }
        return result;
    }

    MeasuredStep sum_up() {
        MeasuredStep result;
        result.work = kernels_.empty() ? MeasuredWork::operators : MeasuredWork::kernels;
        result.steps = core::count_of(steps_);
        double first = steps_.front().begin_us, last = steps_.front().end_us, steps = result.steps;
        for (const Event& step : steps_) {
            first = std::min(first, step.begin_us);
            last = std::max(last, step.end_us);
        }
        const double microsecond = 1e-6 / steps;
        result.step = core::seconds((last - first) * microsecond);
        std::vector<Event> work =
            result.work == MeasuredWork::kernels ? std::move(kernels_) : outermost_operators();
        std::erase_if(work, [&](const Event& event) { return event.end_us <= first; });
        std::sort(work.begin(), work.end(),
                  [](const Event& a, const Event& b) { return a.begin_us < b.begin_us; });
        std::map<StepKind, std::map<std::string, double>> by_name;
        std::map<StepKind, double> sums;
        double busy = 0, busy_until = first;
        for (const Event& event : work) {
            const double time = event.end_us - event.begin_us;
            sums[event.kind] += time;
            by_name[event.kind][event.name] += time;
            ++result.shares[event.kind].count;
            // Kernels of the last step may end after its host did.
            const double begin = std::max(event.begin_us, busy_until), end = std::min(event.end_us, last);
            if (end > begin) busy += end - begin;
            busy_until = std::max(busy_until, event.end_us);
        }
        result.busy = core::seconds(busy * microsecond);
        for (auto& [kind, share] : result.shares) {
            share.time = core::seconds(sums[kind] * microsecond);
            share.count /= result.steps;
            const auto longest =
                std::max_element(by_name[kind].begin(), by_name[kind].end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
            share.longest = longest->first;
        }
        return result;
    }

    const std::string& file_;
    core::Diagnostics& diagnostics_;
    std::vector<Event> steps_, kernels_;
    std::map<std::string, std::vector<Event>> operators_;  // by thread
    std::set<double> devices_;
};

}  // namespace

StepKind kind_of_kernel(const std::string& name) {
    const std::string text = in_lower_case(name);
    for (const NamePart& one : kernel_names)
        if (text.find(one.part) != std::string::npos) return one.kind;
    return StepKind::elementwise;
}

std::optional<StepKind> kind_of_operator(const std::string& name) {
    const std::string text = in_lower_case(name);
    // Autograd's own entries hold the operators of a backward.
    if (!text.starts_with("aten::") && !text.starts_with("c10d::") && !text.starts_with("optimizer.step"))
        return std::nullopt;
    for (const NamePart& one : operator_names)
        if (text.find(one.part) != std::string::npos) return one.kind;
    return std::nullopt;
}

std::optional<MeasuredStep> read_kineto_trace(const core::Value& document, const std::string& file,
                                              core::Diagnostics& diagnostics) {
    return KinetoReader(file, diagnostics).read(document);
}

}  // namespace validation
