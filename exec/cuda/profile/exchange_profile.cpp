#include "exec/cuda/profile/exchange_profile.h"

#include <algorithm>
#include <functional>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace exec::cuda {

namespace {

// The median of some repetitions on the stream that collectives of data parallelism use; `inner` at a time,
// so that one launch's gap does not count.
core::Seconds time_of(Machine& machine, Stream stream, Event begin, Event end, int inner,
                      const std::function<void()>& work) {
    for (int i = 0; i < 2; ++i) work();
    std::vector<core::Seconds> times;
    for (int r = 0; r < 5; ++r) {
        machine.record(begin, stream);
        for (int i = 0; i < inner; ++i) work();
        machine.record(end, stream);
        machine.synchronize();
        times.push_back(machine.between(begin, end) / inner);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // namespace

core::BytesPerSecond ExchangeRate::bus_bandwidth() const {
    const auto n = static_cast<double>(ranks);
    double factor = 1;
    if (operation == "all_reduce") factor = 2 * (n - 1) / n;
    else if (operation == "all_gather" || operation == "reduce_scatter") factor = (n - 1) / n;
    return bytes * factor / time;
}

std::vector<core::Bytes> profiled_sizes() {
    std::vector<core::Bytes> sizes;
    for (double bytes = 4096; bytes <= 256.0 * 1024 * 1024; bytes *= 4) sizes.push_back(core::Bytes(bytes));
    return sizes;
}

std::vector<ExchangeRate> profile_exchange(Machine& machine, Exchange& exchange, int rank,
                                           const std::vector<std::vector<int>>& groups,
                                           const std::vector<core::Bytes>& sizes) {
    core::require(!sizes.empty(), "there are sizes to measure");
    const Stream stream = machine.stream(schedule::Stream::data);
    const Event begin = machine.make_event(true), end = machine.make_event(true);
    const auto most = static_cast<std::size_t>(std::max_element(sizes.begin(), sizes.end())->value);
    std::vector<ExchangeRate> rates;
    for (const std::vector<int>& members : groups) {
        const auto own = std::find(members.begin(), members.end(), rank);
        if (own == members.end()) continue;
        const auto position = static_cast<int>(own - members.begin()), ranks = core::count_of(members);
        const int group = exchange.make_group(members);
        // Zeros: sums of them stay numbers, however often they are added.
        void* data = machine.allocate(most);
        machine.fill_zero(stream, data, most);
        for (const core::Bytes bytes : sizes) {
            const std::size_t count = static_cast<std::size_t>(bytes.value) / sizeof(float),
                              piece = count / ranks;
            const int inner = bytes.value > 4.0 * 1024 * 1024 ? 3 : 20;
            const auto measure = [&](const char* operation, double of, const std::function<void()>& work) {
                rates.push_back(
                    {operation, ranks, core::Bytes(of), time_of(machine, stream, begin, end, inner, work)});
            };
            const auto gathered = static_cast<double>(piece * ranks * sizeof(float));
            measure("all_reduce", bytes.value,
                    [&] { exchange.all_reduce(stream, group, core::DataType::fp32, data, count, false); });
            measure("all_gather", gathered,
                    [&] { exchange.all_gather(stream, group, core::DataType::fp32, data, piece); });
            measure("reduce_scatter", gathered,
                    [&] { exchange.reduce_scatter(stream, group, core::DataType::fp32, data, piece); });
            measure("broadcast", bytes.value,
                    [&] { exchange.broadcast(stream, group, core::DataType::fp32, data, count); });
            if (ranks == 2)
                measure("send", bytes.value, [&] {
                    if (position == 0) exchange.send(stream, group, 1, data, count * sizeof(float), 0);
                    else exchange.receive(stream, group, 0, data, count * sizeof(float), 0);
                });
        }
        machine.release(data);
    }
    return rates;
}

void apply(const std::vector<ExchangeRate>& rates, bool is_one_node, cluster::InstanceType& instance,
           const std::string& date) {
    const std::string source = "measured by `smexec profile --backend cuda` among these GPUs";
    core::BytesPerSecond best;
    core::Seconds latency;
    for (const ExchangeRate& rate : rates) {
        instance.notes.push_back(fmt::format("{}, {}: {} of {} over {} ranks in {}, {} on the bus", source,
                                             date, rate.operation, core::format(rate.bytes), rate.ranks,
                                             core::format(rate.time), core::format(rate.bus_bandwidth())));
        if (rate.operation != "send") continue;
        best = std::max(best, rate.bus_bandwidth());
        latency = latency.value > 0 ? std::min(latency, rate.time) : rate.time;
    }
    if (!is_one_node || best.value <= 0) return;
    for (cluster::Link& link : instance.links) {
        if (link.kind != cluster::LinkKind::nvlink) continue;
        link.efficiency = std::min(1.0, best.value / link.bandwidth.value);
        link.latency = latency / 2.0;  // a route passes two of them, to the switch and from it
        instance.provenance["link." + link.type] = {source, date, "measured"};
    }
    cluster::prepare_routes(instance);
}

}  // namespace exec::cuda
