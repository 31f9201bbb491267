#include "exec/cuda/operator/fusion.h"

#include "exec/cuda/operator/operators.h"
#include "model/operators/cost.h"

namespace exec::cuda {

void Fusion::launch(const Product& p) {
    for (const void* from : {p.a, p.b, p.addend, p.bias, p.gelu_input}) execution_.reads(from);
    for (void* to : {p.c, p.before_gelu, p.row_sums}) execution_.writes(to);
    machine_.product(execution_.stream(), p);
}

void Fusion::launch(const HeldDropout& d, const void* residual) {
    execution_.reads(d.x);
    execution_.reads(residual);
    execution_.writes(d.y);
    execution_.writes(d.mask);
    machine_.kernels().dropout(execution_.stream(), type_, d.shape, d.x, residual, d.y, d.mask);
}

void Fusion::launch(const HeldSum& s) {
    for (const void* term : {s.a, s.b}) execution_.reads(term);
    execution_.writes(s.y);
    machine_.kernels().add(execution_.stream(), type_, s.count, s.a, s.b, s.y);
}

void Fusion::launch(const HeldNormGradient& g) {
    for (const void* from : {g.x, static_cast<const void*>(g.statistics), g.scale.data, g.dy, g.base})
        execution_.reads(from);
    execution_.writes(g.dx);
    const auto backward =
        g.is_layer ? machine_.kernels().layer_norm_backward : machine_.kernels().rms_norm_backward;
    backward(execution_.stream(), type_, g.rows, g.width, g.x, g.statistics, g.scale, g.dy, g.dx, g.base);
}

void Fusion::hold(std::int32_t owner, const Product& product) {
    flush();
    owner_ = owner;
    product_ = product;
}

void Fusion::hold(std::int32_t owner, const HeldDropout& dropout) {
    flush();
    owner_ = owner;
    dropout_ = dropout;
}

void Fusion::hold(std::int32_t owner, const HeldSum& sum) {
    flush();
    owner_ = owner;
    sum_ = sum;
}

void Fusion::hold(std::int32_t owner, const HeldNormGradient& gradient) {
    flush();
    owner_ = owner;
    norm_gradient_ = gradient;
}

bool Fusion::holds(const void* result) const {
    return (product_ && product_->c == result) || (dropout_ && dropout_->y == result);
}

void Fusion::drop_held() {
    owner_.reset();
    product_.reset();
    dropout_.reset();
    sum_.reset();
    norm_gradient_.reset();
}

void Fusion::flush() {
    if (product_) launch(*product_);
    if (dropout_) launch(*dropout_, nullptr);
    if (sum_) launch(*sum_);
    if (norm_gradient_) launch(*norm_gradient_);
    drop_held();
}

void Fusion::copy_later(void* to, const void* from, std::size_t bytes) {
    copies_[static_cast<char*>(to)] = {from, bytes};
}

const void* Fusion::contents_of(const void* array, bool is_last) {
    const auto found = copies_.find(static_cast<char*>(const_cast<void*>(array)));
    if (found == copies_.end()) return array;
    found->second.is_done = is_last;
    execution_.reads(found->second.from);
    return found->second.from;
}

const void* Fusion::take_contents(void* array) {
    const auto found = copies_.find(static_cast<char*>(array));
    if (found == copies_.end()) return array;
    const void* from = found->second.from;
    copies_.erase(found);
    execution_.reads(from);
    return from;
}

void Fusion::copy(void* to, const Copy& due) {
    execution_.reads(due.from);
    execution_.writes(to);
    machine_.copy(execution_.stream(), to, due.from, due.bytes);
}

void Fusion::copy_now(void* array) {
    const auto found = copies_.find(static_cast<char*>(array));
    if (found == copies_.end()) return;
    copy(array, found->second);
    copies_.erase(found);
}

void Fusion::forget(void* data, std::size_t bytes) {
    auto* const begin = static_cast<char*>(data);
    copies_.erase(copies_.lower_bound(begin), copies_.lower_bound(begin + bytes));
}

void Fusion::settle() {
    flush();
    for (const auto& [to, due] : copies_)
        if (!due.is_done) copy(to, due);
    copies_.clear();
}

}  // namespace exec::cuda
