#!/bin/bash
# What a GPU must show, in pieces of less than ten minutes: `./run gpu-check PIECE`. Raw output goes into docs/results/gpu/ (or $OUT), with command, date, machine.
#
#   bundle   builds for one architecture into gpu-bundle/, with the libraries a bare machine lacks: carry that folder to a GPU that has no build tools
#   build    builds in place (what the other pieces use where there is no gpu-bundle/)
#   kernels  kernel tests, and the same under compute-sanitizer's memcheck and racecheck
#   nccl     two and four ranks on this one GPU: pipeline, data, tensor, sharded; losses against the reference
#   train    GPT-2 124M for some steps on text in bf16, its first losses against the fp32 reference
#   torch    GPT-2 124M, GPT-2 1.5B and a Llama of 1.1 billion: smexec, smexec with a CUDA graph, and PyTorch eager
#   predict  twenty configurations: predicted and measured step time and memory
#   profile  smexec profile --backend cuda
# No argument: all of them in this order, after `build`.
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$root"
architecture=${SMSIM_CUDA_ARCHITECTURES:-90}
results=${OUT:-$root/docs/results/gpu}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

programs=$root/build
if [[ -x $root/gpu-bundle/smexec ]]; then programs=$root/gpu-bundle; fi
# Libraries of a bare machine: the bundle's own, the toolkit's, and those in python's wheels.
wheels=$(python3 - <<'PY' 2>/dev/null
import glob
try:
    import nvidia
    print(":".join(d for p in nvidia.__path__ for d in sorted(glob.glob(p + "/*/lib"))))
except ImportError:
    pass
PY
)
export LD_LIBRARY_PATH="$root/gpu-bundle/lib:${wheels:+$wheels:}/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"
export SMSIM_HARDWARE_PROFILES="$root/hardware_profiles" SMSIM_MODEL_CATALOG="$root/model/catalog"

heading() {
    mkdir -p "$results"
    printf '# ./run gpu-check %s\n# %s\n# %s, driver %s\n# commit %s\n' "$1" "$(date -u '+%Y-%m-%d %H:%M:%S UTC')" \
        "$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null || echo 'no GPU')" \
        "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null || echo '-')" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
}

# Runs a piece with its output in a file and on the screen; the file is kept whatever happens.
piece() {
    local name=$1
    mkdir -p "$results"
    { heading "$name"; "do_$name"; } 2>&1 | tee "$results/$name.txt"
    return "${PIPESTATUS[0]}"
}

shown() {
    printf '\n$ %s\n' "$*"
    "$@"
}

do_bundle() {
    local build=$root/build-gpu
    # cudnn-frontend: headers only; without them our own attention kernel is used.
    if [[ ! -e $root/.cudnn-frontend/include/cudnn_frontend.h ]] && command -v pip >/dev/null; then
        (cd "$scratch" && pip download -q --no-deps nvidia-cudnn-frontend && mkdir -p "$root/.cudnn-frontend" &&
            python3 -m zipfile -e ./*.whl wheel && cp -r wheel/include "$root/.cudnn-frontend/") || echo "cudnn-frontend: not to be had; attention by our own kernel"
    fi
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSMSIM_CUDA=ON -DSMSIM_MPI=OFF -DSMSIM_ONNX=OFF \
        "-DCMAKE_CUDA_ARCHITECTURES=$architecture" >"$scratch/cmake.log" || { cat "$scratch/cmake.log"; return 1; }
    ninja -C "$build" smexec test_exec_cuda || return 1
    rm -rf "$root/gpu-bundle"
    mkdir -p "$root/gpu-bundle/lib"
    local program
    for program in smexec tests/test_exec_cuda; do
        cp "$build/$program" "$root/gpu-bundle/"
        strip "$root/gpu-bundle/${program##*/}"
    done
    # Everything but the C library, the driver and NVIDIA's own.
    ldd "$root/gpu-bundle/smexec" "$root/gpu-bundle/test_exec_cuda" | awk '$3 ~ /^\// {print $3}' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda|libcublas[^/]*|libcudnn[^/]*|libnccl)\.so' | xargs -r -I{} cp -L {} "$root/gpu-bundle/lib/"
    du -sh "$root/gpu-bundle"
}

do_build() {
    if [[ $programs == "$root/gpu-bundle" ]]; then
        echo "gpu-bundle/ is there: nothing to build"
    else
        SMSIM_CUDA_ARCHITECTURES=$architecture "$root/run" build || return 1
        ln -sf tests/test_exec_cuda "$root/build/test_exec_cuda"
    fi
    shown "$programs/smexec" --version
}

do_kernels() {
    local failed=0
    shown "$programs/test_exec_cuda" '[device]' || failed=1
    local sanitizer
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [[ -x $sanitizer ]]; then
        shown timeout 240 "$sanitizer" --tool memcheck --error-exitcode 9 "$programs/test_exec_cuda" '[device]' || failed=1
        shown timeout 240 "$sanitizer" --tool racecheck --error-exitcode 9 "$programs/test_exec_cuda" '[device]' || failed=1
    else
        echo "skipped: compute-sanitizer is not on this machine"
    fi
    return $failed
}

# A small GPT in fp32 as a plan; "$@" are lines of [plan].
tiny_plan() {
    printf '%s\n' 'version = 1' '[model]' 'family = "gpt"' 'hidden = 64' 'layers = 4' 'heads = 4' 'vocabulary = 256' 'max_positions = 64' 'sequence_length = 64' \
        '[cluster]' 'instance = "p5en.48xlarge"' 'nodes = 1' '[plan]' 'micro_batch = 2' 'micro_batches = 4' 'precision = "fp32"' "$@" \
        '[training]' 'optimizer = "sgd"' 'learning_rate = 0.1' 'seed = 1234' 'steps = 5'
}

# N processes on this host, each a rank: rank 0's output and exit code.
ranks() {
    local count=$1 port=$((20000 + RANDOM % 20000)) rank pids=() code=0
    shift
    for ((rank = count - 1; rank >= 0; --rank)); do
        RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NET=Socket \
            NCCL_DEBUG=WARN timeout 120 "$programs/smexec" "$@" --ranks-from env >"$scratch/rank$rank.out" 2>"$scratch/rank$rank.err" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
    cat "$scratch/rank0.out"
    for ((rank = 0; rank < count; ++rank)); do sed "s/^/rank $rank: /" "$scratch/rank$rank.err" | head -20; done
    return $code
}

do_nccl() {
    local failed=0 name
    local -A plans=(
        [1_single]='data_parallel = 1'
        [2_data]='data_parallel = 2'
        [2_pipeline]=$'pipeline_parallel = 2\nschedule = "1f1b"'
        [2_tensor]='tensor_parallel = 2'
        [2_sharded]=$'data_parallel = 2\nsharding = "parameters"'
        [2_optimizer]=$'data_parallel = 2\nsharding = "optimizer"'
        [4_pipeline_data]=$'pipeline_parallel = 2\ndata_parallel = 2\nschedule = "1f1b"'
        [4_tensor_sequence_data]=$'tensor_parallel = 2\nsequence_parallel = true\ndata_parallel = 2'
    )
    for name in $(printf '%s\n' "${!plans[@]}" | sort); do
        tiny_plan "${plans[$name]}" >"$scratch/$name.toml"
        printf '\n== %s: %s\n' "$name" "${plans[$name]//$'\n'/, }"
        if [[ $name == 1_* ]]; then "$programs/smexec" "$scratch/$name.toml" --backend cuda --no-compare --check || failed=1
        else ranks "${name%%_*}" "$scratch/$name.toml" --backend cuda --no-compare --check --time-limit 60 || failed=1; fi
    done
    return $failed
}

do_train() {
    local text=$scratch/text failed=0
    cat "$root"/docs/*.md "$root"/README.md "$root"/schedule/*.h "$root"/exec/*.h "$root"/sim/*.h >"$text"
    sed -e 's/micro_batch = 32/micro_batch = 2/' -e 's/vocabulary = 50304/vocabulary = 256/' "$root/scenarios/gpu_gpt2_124m.toml" >"$scratch/small.toml"
    shown timeout 280 "$programs/smexec" "$scratch/small.toml" --backend cuda --no-compare --steps 200 --data "$text" --verbose || failed=1
    # The reference is slow (double precision, one core): a model of the same kind, two layers.
    sed -e 's/layers = 12/layers = 2/' -e 's/sequence_length = 1024/sequence_length = 128/' -e 's/hidden = 768/hidden = 192/' "$scratch/small.toml" >"$scratch/checked.toml"
    shown timeout 200 "$programs/smexec" "$scratch/checked.toml" --backend cuda --no-compare --steps 10 --data "$text" --check --verbose || failed=1
    return $failed
}

do_torch() {
    local name
    for name in gpu_gpt2_124m gpu_gpt2_xl gpu_llama_1b; do
        for graph in "" --cuda-graph; do
            printf '\n$ smexec scenarios/%s.toml --backend cuda --no-compare %s\n' "$name" "$graph"
            # shellcheck disable=SC2086
            timeout 90 "$programs/smexec" "$root/scenarios/$name.toml" --backend cuda --no-compare --steps 15 --json $graph >"$scratch/$name$graph.json" 2>"$scratch/err" ||
                { cat "$scratch/err"; cat "$scratch/$name$graph.json"; }
        done
    done
    timeout 240 python3 "$root/bench/gpu_torch.py" | tee "$scratch/torch.json"
    python3 - "$scratch" <<'PY'
import glob, json, os, sys
print("\n| model | how | step, ms | tokens/s | MFU, % of 989 TFLOP/s | peak, GiB |\n|---|---|---|---|---|---|")
flops = {}
rows = []
for line in open(sys.argv[1] + "/torch.json"):
    try:
        r = json.loads(line)
    except ValueError:
        continue
    rows.append((r["model"], f'{r["framework"]}, {r["precision"]}', r["step_s"], r["tokens_per_s"], 100 * r["model_tflops"] / 989, r["peak_gib"]))
for path in sorted(glob.glob(sys.argv[1] + "/gpu_*.json")):
    name = {"gpu_gpt2_124m": "gpt2-124m", "gpu_gpt2_xl": "gpt2-1.5b", "gpu_llama_1b": "llama-1b"}[os.path.basename(path).split("--")[0].split(".")[0]]
    try:
        r = json.load(open(path))
        rows.append((name, "smexec" + (", CUDA graph" if "--cuda-graph" in path else ""), r["measured_step_s"]["median"], r["tokens_per_s"], 100 * r["mfu"],
                     r["measured_peak_gib"]))
    except (ValueError, KeyError) as e:
        print(f"{path}: {e}")
for name, how, step, tokens, mfu, peak in sorted(rows):
    print(f"| {name} | {how} | {1e3 * step:.2f} | {tokens:,.0f} | {mfu:.1f} | {peak:.2f} |")
PY
}

do_predict() {
    local failed=0 count=0 base micro tokens recompute batches layers
    while read -r base micro tokens recompute batches layers; do
        [[ -n $base ]] || continue
        local plan=$scratch/predict_$((++count)).toml
        sed -e "s/^micro_batch = .*/micro_batch = $micro/" -e "s/^micro_batches = .*/micro_batches = $batches/" -e "s/^sequence_length = .*/sequence_length = $tokens/" \
            -e "s/^layers = .*/layers = $layers/" -e "s/^attention = .*/attention = \"flash\"\nrecompute = \"$recompute\"/" "$root/scenarios/$base.toml" >"$plan"
        timeout 60 "$programs/smexec" "$plan" --backend cuda --steps 10 --json >"$scratch/predict_$count.json" 2>"$scratch/err" ||
            { printf '%s %s %s %s %s %s: ' "$base" "$micro" "$tokens" "$recompute" "$batches" "$layers"; cat "$scratch/err"; head -c 600 "$scratch/predict_$count.json"; failed=1; }
        printf '%s %s %s %s %s %s\n' "$base" "$micro" "$tokens" "$recompute" "$batches" "$layers" >"$scratch/predict_$count.what"
    done <<'TABLE'
gpu_gpt2_124m 4 1024 none 1 12
gpu_gpt2_124m 8 1024 none 1 12
gpu_gpt2_124m 16 1024 none 1 12
gpu_gpt2_124m 32 1024 none 1 12
gpu_gpt2_124m 16 512 none 1 12
gpu_gpt2_124m 32 256 none 1 12
gpu_gpt2_124m 16 1024 full 1 12
gpu_gpt2_124m 16 1024 selective 1 12
gpu_gpt2_124m 8 1024 none 4 12
gpu_gpt2_124m 8 1024 full 4 12
gpu_gpt2_124m 16 1024 none 1 6
gpu_gpt2_124m 16 1024 none 1 24
gpu_llama_1b 2 2048 none 1 22
gpu_llama_1b 4 2048 none 1 22
gpu_llama_1b 8 2048 none 1 22
gpu_llama_1b 4 1024 none 1 22
gpu_llama_1b 4 2048 full 1 22
gpu_llama_1b 2 2048 none 4 22
gpu_llama_1b 4 2048 none 1 11
gpu_gpt2_xl 4 1024 none 1 48
gpu_gpt2_xl 4 1024 full 1 48
gpu_gpt2_xl 8 512 none 2 24
TABLE
    python3 - "$scratch" <<'PY'
import glob, json, statistics, sys
print("| plan | predicted, ms | measured, ms | error, % | predicted, GiB | measured, GiB | error, % |\n|---|---|---|---|---|---|---|")
steps, peaks = [], []
for path in sorted(glob.glob(sys.argv[1] + "/predict_*.json"), key=lambda p: int(p.split("_")[-1].split(".")[0])):
    try:
        r = json.load(open(path))
        p, m, a, b = r["predicted_step_s"], r["measured_step_s"]["median"], r["predicted_peak_gib"], r["measured_peak_gib"]
    except (ValueError, KeyError, TypeError) as e:
        print(f"| {path} | failed: {e} |")
        continue
    steps.append(abs(p / m - 1) * 100)
    peaks.append(abs(a / b - 1) * 100)
    what = open(path.replace(".json", ".what")).read().strip()
    print(f"| {what} | {1e3 * p:.2f} | {1e3 * m:.2f} | {100 * (p / m - 1):+.1f} | {a:.2f} | {b:.2f} | {100 * (a / b - 1):+.1f} |")
if steps:
    print(f"\nstep time: median {statistics.median(steps):.1f}%, worst {max(steps):.1f}% over {len(steps)}; memory: median {statistics.median(peaks):.1f}%, worst {max(peaks):.1f}%")
PY
    return $failed
}

do_profile() { shown timeout 240 "$programs/smexec" profile --backend cuda --base p5en.48xlarge --out "$results/h200.toml"; }

if [[ $# -eq 0 ]]; then
    set -- build kernels nccl train torch predict profile
fi
failed=()
for name in "$@"; do
    declare -F "do_$name" >/dev/null || { echo "gpu-check: no piece named $name" >&2; exit 2; }
    if [[ $name == bundle ]]; then do_bundle || failed+=("$name")
    else piece "$name" || failed+=("$name"); fi
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "gpu-check: FAILED: ${failed[*]}" >&2
    exit 1
fi
