#include "exec/cuda/emulation/null_machine.h"

#include "model/operators/cost.h"

namespace exec::cuda {

namespace {

// Becomes a function that takes anything and does nothing.
struct Nothing {
    template <class... Arguments>
    using Function = void (*)(Arguments...);
    template <class... Arguments>
    operator Function<Arguments...>() const {
        return [](Arguments...) {};
    }
};

const Kernels& null_kernels() {
    constexpr Nothing n;
    static_assert(sizeof(Kernels) == 69 * sizeof(void (*)()), "one `n` for each kernel, or it would be null");
    static const Kernels table{n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n,
                               n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n,
                               n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n};
    return table;
}

class NullMachine : public Machine {
public:
    explicit NullMachine(const Machine& like) : like_(like) {}
    const Kernels& kernels() const override { return null_kernels(); }
    std::string describe() const override { return "planning"; }
    bool is_real() const override { return false; }
    void* allocate(std::size_t) override {
        return reinterpret_cast<void*>(256);
    }  // never looked at, but there
    void release(void*) override {}
    void* allocate_host(std::size_t) override { return nullptr; }
    void release_host(void*) override {}
    void upload_now(void*, const void*, std::size_t) override {}
    void download_now(void*, const void*, std::size_t) override {}
    void synchronize() override {}
    core::Bytes memory_in_use() override { return {}; }
    Stream stream(schedule::Stream) override { return nullptr; }
    Stream message_stream(int) override { return nullptr; }
    Event make_event(bool) override { return nullptr; }
    void record(Event, Stream) override {}
    void wait(Stream, Event) override {}
    bool has_happened(Event) override { return true; }
    core::Seconds between(Event, Event) override { return {}; }
    void fill_zero(Stream, void*, std::size_t) override {}
    void copy(Stream, void*, const void*, std::size_t) override {}
    void upload(Stream, void*, const void*, std::size_t) override {}
    void download(Stream, void*, const void*, std::size_t) override {}
    void call(Stream, void (*)(void*), void*) override {}
    void product(Stream, const Product& product) override { like_.prepare(product); }
    bool offers(const Product& product) const override { return like_.offers(product); }
    bool offers_fp8(const Product& product, const Product& half) const override {
        return like_.offers_fp8(product, half);
    }
    bool pays(const Alternatives& alternatives) const override { return like_.pays(alternatives); }
    std::optional<core::Unsupported> fused_attention_unsupported(
        Type type, const FusedAttentionShape& shape) const override {
        return like_.fused_attention_unsupported(type, shape);
    }
    void fused_attention(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&) override {}
    void fused_attention_backward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&,
                                  const FusedAttentionGradients&) override {}
    void convolution(Stream, ConvolutionPass pass, Type type, const ImageShape& shape, const void*,
                     const void*, void*, bool) override {
        like_.prepare_convolution(pass, type, shape);
    }
    std::size_t library_workspace() const override { return like_.library_workspace(); }
    bool can_capture() const override { return false; }
    void begin_capture(Stream) override {}
    void end_capture(Stream) override {}
    void launch_captured(Stream) override {}
    void forget_captured() override {}
    bool loads_kernels_late() const override { return false; }
    void begin_range(const char*) override {}
    void end_range() override {}

private:
    const Machine& like_;
};

class NullExchange : public Exchange {
public:
    int make_group(const std::vector<int>&) override { return next_++; }
    void all_reduce(Stream, int, core::DataType, void*, std::size_t, bool) override {}
    void all_gather(Stream, int, core::DataType, void*, std::size_t) override {}
    void reduce_scatter(Stream, int, core::DataType, void*, std::size_t) override {}
    void broadcast(Stream, int, core::DataType, void*, std::size_t) override {}
    void all_to_all(Stream, int, core::DataType, const void*, void*, std::size_t) override {}
    void begin_messages() override {}
    void send(Stream, int, int, const void*, std::size_t, Tag) override {}
    void receive(Stream, int, int, void*, std::size_t, Tag) override {}
    void end_messages() override {}
    void check() override {}
    void abort() override {}

private:
    int next_ = 0;
};

}  // namespace

std::unique_ptr<Machine> make_null_machine(const Machine& like) {
    return std::make_unique<NullMachine>(like);
}
std::unique_ptr<Exchange> make_null_exchange() { return std::make_unique<NullExchange>(); }

}  // namespace exec::cuda
