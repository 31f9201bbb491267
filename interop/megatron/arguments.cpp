#include "interop/megatron/arguments.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"

namespace interop {

namespace {

// Names as in Megatron-LM's parser at 2026-08-22 (megatron/training/arguments.py and the configurations it
// adds), and of torchrun. A name that ends with * stands for all that begin so.

// Where a run logs, loads, saves and reads; how it is launched, evaluated and stopped; its initialisation and
// its learning-rate schedule.
constexpr std::string_view without_effect[] = {
    "adlr-*",
    "app-tag-*",
    "apply-layernorm-1p",
    "async-*",
    "attention-softmax-in-fp32",
    "auto-detect-ckpt-format",
    "bert-no-binary-head",
    "calculate-per-token-loss",
    "check-for-*",
    "check-weight-hash-*",
    "ckpt-*",
    "config-logger-dir",
    "create-attention-mask-*",
    "data-args-path",
    "data-cache-path",
    "data-parallel-random-init",
    "data-path",
    "dataloader-*",
    "decoupled-*",
    "disable-straggler-*",
    "dist-ckpt-*",
    "distributed-backend",
    "distributed-timeout-*",
    "enable-experimental",
    "enable-gpt-oss",
    "end-weight-decay",
    "eod-mask-loss",
    "error-injection-*",
    "eval-*",
    "exit-*",
    "fim-*",
    "finetune",
    "flight-recorder-*",
    "ft-*",
    "full-validation",
    "hysteresis",
    "inference-*",
    "init-method-*",
    "init-model-with-meta-device",
    "initial-loss-scale",
    "inprocess-*",
    "iter-per-epoch",
    "iterations-to-skip",
    "layernorm-zero-centered-gamma",
    "load",
    "load-*",
    "local-rank",
    "local-ranks-filter",
    "log-*",
    "logging-level",
    "loss-scale",
    "loss-scale-window",
    "lr-*",
    "manual-gc",
    "manual-gc-*",
    "mask-*",
    "master-addr",
    "master-port",
    "max-restarts",
    "merge-file",
    "mid-level-dataset-surplus",
    "min-loss-scale",
    "min-lr",
    "mock-data",
    "moe-input-jitter-eps",
    "moe-per-layer-logging",
    "moe-router-bias-update-rate",
    "moe-router-dtype",
    "moe-router-enable-expert-bias",
    "moe-router-force-load-balancing",
    "moe-router-load-balancing-type",
    "moe-z-loss-coeff",
    "mscale",
    "mscale-all-dim",
    "mtp-loss-scaling-factor",
    "no-check-for-*",
    "no-create-attention-mask-in-dataloader",
    "no-load-*",
    "no-mmap-bin-files",
    "no-one-logger",
    "no-save-*",
    "no-weight-decay-cond-type",
    "node-rank",
    "non-persistent-*",
    "nsys-*",
    "num-dataset-builder-threads",
    "num-workers",
    "nvtx-ranges",
    "object-storage-*",
    "one-logger-*",
    "optimizer-param-*",
    "otel-*",
    "override-*",
    "per-split-data-args-path",
    "pretrained-checkpoint",
    "profile",
    "profile-*",
    "pytorch-profiler-*",
    "rdzv-*",
    "record-memory-history",
    "record-shapes",
    "redirects",
    "memory-snapshot-path",
    "rerun-*",
    "reset-attention-mask",
    "reset-position-ids",
    "result-rejected-*",
    "rotary-interleaved",
    "save",
    "save-*",
    "short-seq-prob",
    "split",
    "standalone",
    "start-weight-decay",
    "straggler-*",
    "swin-*",
    "tee",
    "tensorboard-*",
    "test-data-path",
    "tiktoken-*",
    "timing-log-*",
    "tokenizer-*",
    "train-data-path",
    "trust-remote-code",
    "use-checkpoint-*",
    "use-cpu-initialization",
    "use-dist-ckpt",
    "use-mcore-models",
    "use-mp-args-from-checkpoint-args",
    "use-persistent-ckpt-worker",
    "use-pytorch-profiler",
    "use-tokenizer-model-from-checkpoint-args",
    "valid-data-path",
    "vocab-extra-ids",
    "vocab-file",
    "wandb-*",
    "weight-decay-incr-style",
};
// Choices between ways of doing the same that differ in speed or in memory beside the model's: what is priced
// is what the framework's profile says.
constexpr std::string_view priced_as_usual[] = {
    "batch-p2p-communication",
    "bias-*",
    "cuda-graph-*",
    "cross-entropy-fusion-impl",
    "ddp-average-in-collective",
    "ddp-num-buckets",
    "ddp-pad-buckets-*",
    "ddp-reduce-scatter-*",
    "deallocate-*",
    "defer-embedding-wgrad-compute",
    "delay-wgrad-compute",
    "disable-tp-comm-*",
    "empty-unused-memory-level",
    "enable-cuda-graph",
    "external-cuda-graph",
    "fp16-lm-cross-entropy",
    "fp8-*",
    "first-last-layers-bf16",
    "fsdp-*",
    "fused-*",
    "megatron-fsdp-*",
    "disable-symmetric-registration",
    "disable-bf16-reduced-precision-matmul",
    "export-*",
    "high-priority-stream-groups",
    "keep-fp8-transpose-cache",
    "moe-deepep-*",
    "moe-enable-deepep",
    "moe-flex-*",
    "moe-hybridep-*",
    "moe-layer-recompute",
    "moe-permute-fusion",
    "moe-router-fusion",
    "moe-router-padding-*",
    "moe-shared-expert-overlap",
    "nccl-communicator-config-path",
    "nccl-ub",
    "no-align-param-gather",
    "no-bias-*",
    "no-gradient-accumulation-fusion",
    "no-gradient-reduce-div-fusion",
    "no-overlap-p2p-communication",
    "no-persist-layer-norm",
    "no-rope-fusion",
    "num-layers-at-end-in-bf16",
    "num-layers-at-start-in-bf16",
    "overlap-moe-expert-parallel-comm",
    "overlap-p2p-communication-warmup-flush",
    "overlap-param-gather-with-optimizer-step",
    "overlap-p2p-comm*",
    "persist-layer-norm",
    "te-rng-tracker",
    "tp-comm-*",
    "transformer-impl",
    "use-nccl-ub",
    "use-rope-scaling",
    "use-sharp",
    "use-te-rng-tracker",
    "use-transformer-engine-op-fuser",
    "rope-scaling-factor",
    "rope-type",
    "rotary-scaling-factor",
    "rotary-seq-len-interpolation-factor",
    "yarn-*",
    "no-yarn-*",
    "wgrad-deferral-limit",
    "microbatch-group-size-per-vp-stage",
    "accumulate-bf16",
    "suggested-communication-unit-size",
};

template <std::size_t Count>
bool is_among(const std::string& name, const std::string_view (&names)[Count]) {
    return std::any_of(std::begin(names), std::end(names), [&](std::string_view known) {
        return known.ends_with('*') ? name.starts_with(known.substr(0, known.size() - 1)) : name == known;
    });
}

}  // namespace

MegatronArguments::MegatronArguments(const std::string& text, const std::string& path,
                                     core::Diagnostics& diagnostics)
    : path_(path), diagnostics_(diagnostics) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    is_capture_ = first != std::string::npos && text[first] == '{';
    is_capture_ ? read_capture(text) : read_shell(text);
}

void MegatronArguments::add(const std::string& token, int line) {
    if (token.ends_with(".py") && !token.starts_with("-") && open_.empty())
        program_ = token.substr(token.find_last_of('/') + 1);
    if (token.empty() || token == "\\") return;
    const bool may_be_more = is_capture_ || (line == last_line_ && token.find_first_of("$&|;<>") != 0);
    if (!last_.empty() && may_be_more && !token.starts_with("--")) found_[last_].more.push_back(token);
    else last_.clear();
    if (token.starts_with("--") && token.size() > 2) {
        const std::size_t equals = token.find('=');
        open_ = token.substr(2, equals == std::string::npos ? equals : equals - 2);
        std::replace(open_.begin(), open_.end(), '_', '-');
        found_[open_] = {equals == std::string::npos ? std::string() : token.substr(equals + 1), line};
    } else if (!open_.empty()) {
        found_[open_].value = token;
        last_ = std::exchange(open_, {});
        last_line_ = line;
    }
}

void MegatronArguments::read_capture(const std::string& text) {
    const std::optional<core::Value> document = core::parse_json(text, path_, diagnostics_);
    if (!document) return;
    if (const core::Value* script = document->find("script"); script && script->is_string())
        add(script->string(), script->location.line);
    for (const char* part : {"launcher", "arguments"}) {
        const core::Value* tokens = document->find(part);
        open_.clear();
        if (tokens && tokens->is_array())
            for (const core::Value& token : tokens->items())
                if (token.is_string()) add(token.string(), token.location.line);
        // A launcher's arguments are nobody else's.
        if (part == std::string_view("launcher"))
            for (const auto& [name, entry] : found_) read_.insert(name);
    }
}

void MegatronArguments::read_shell(const std::string& text) {
    std::string token;
    int line = 1;
    char quote = '\0';
    const auto end_token = [&] {
        add(token, line);
        token.clear();
    };
    for (std::size_t i = 0; i <= text.size(); ++i) {
        const char c = i < text.size() ? text[i] : '\n';
        if (quote) {
            if (c == quote || i == text.size()) quote = '\0';
            else token += c;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '#' && token.empty()) {
            while (i < text.size() && text[i] != '\n') ++i;
            --i;
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '(' || c == ')') {
            // Brackets are part of a pipeline layout or a list of layers, and of arrays in shell scripts
            // otherwise.
            const bool is_layout = token.find('|') != std::string::npos || token.starts_with("[");
            if ((c == '(' || c == ')') && !token.empty() && !token.starts_with("--") && is_layout) token += c;
            else end_token();
        } else {
            token += c;
        }
        if (c == '\n') ++line;
    }
}

bool MegatronArguments::has(const std::string& name) {
    read_.insert(name);
    return found_.contains(name);
}

std::string MegatronArguments::text(const std::string& name, const std::string& fallback) {
    return has(name) ? found_[name].value : fallback;
}

std::vector<std::string> MegatronArguments::words(const std::string& name) {
    std::vector<std::string> all, tokens;
    if (has(name)) tokens = found_[name].more;
    tokens.insert(tokens.begin(), text(name));
    for (const std::string& token : tokens)
        for (std::size_t begin = 0; begin <= token.size();) {
            const std::size_t end = std::min(token.find(',', begin), token.size());
            if (end > begin) all.push_back(token.substr(begin, end - begin));
            begin = end + 1;
        }
    return all;
}

std::optional<std::int64_t> MegatronArguments::integer(const std::string& name, std::int64_t most) {
    if (!has(name)) return std::nullopt;
    const std::string& value = found_[name].value;
    std::int64_t result = 0;
    const auto [end, error_code] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error_code == std::errc() && end == value.data() + value.size() && result >= 0 && result <= most)
        return result;
    error(name, fmt::format("--{} {} is no whole number from 0 to {}", name, core::in_quotes(value), most),
          value.find('$') == std::string::npos
              ? "write the number"
              : "shell variables are not known here: write the number, or capture what the script starts "
                "(interop/capture)");
    return std::nullopt;
}

std::int64_t MegatronArguments::positive(const std::string& name, std::int64_t fallback) {
    const auto value = integer(name);
    if (value && *value == 0) error(name, fmt::format("--{} is zero", name), "give 1 or more");
    return value && *value > 0 ? *value : fallback;
}

double MegatronArguments::real(const std::string& name, double fallback) {
    if (!has(name)) return fallback;
    const std::string& value = found_[name].value;
    double result = 0;
    const auto [end, error_code] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error_code == std::errc() && end == value.data() + value.size()) return result;
    error(name, fmt::format("--{} {} is no number", name, core::in_quotes(value)),
          "write the number; shell variables are not known here");
    return fallback;
}

void MegatronArguments::error(const std::string& name, const std::string& message, const std::string& hint) {
    diagnostics_.error({path_, found_.contains(name) ? found_[name].line : 0, 0}, "--" + name, message, hint);
}

void MegatronArguments::warn(const std::string& name, const std::string& message, const std::string& hint) {
    diagnostics_.warning({path_, found_.contains(name) ? found_[name].line : 0, 0}, "--" + name, message,
                         hint);
}

void MegatronArguments::judge_the_rest() {
    std::string list;
    for (const auto& [name, entry] : found_) {
        if (read_.contains(name) || is_among(name, without_effect)) continue;
        if (is_among(name, priced_as_usual)) list += (list.empty() ? "--" : ", --") + name;
        else
            error(name,
                  fmt::format("--{}{} is not known here and may change the model or the step", name,
                              entry.value.empty() ? "" : " " + entry.value),
                  "remove it where it does not, and give --model where it describes the model");
    }
    if (!list.empty())
        diagnostics_.warning(
            {path_, 0, 0}, "",
            "choices that no plan holds; what is priced is what the framework usually does: " + list);
}

}  // namespace interop
