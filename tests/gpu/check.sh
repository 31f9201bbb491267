#!/bin/bash
# What a GPU must show: `./run gpu-check PIECE...`. Raw output goes into docs/results/gpu/ (or $OUT) as it comes, with command, date and machine.
#
#   bundle   here, where there is CUDA's compiler: builds for one architecture into gpu-bundle/, with the libraries a bare machine lacks: carry that folder
#   build    builds in place (what the other pieces use where there is no gpu-bundle/)
#   kernels  kernel tests, and the same under compute-sanitizer's memcheck and racecheck
#   nccl     two and four ranks on this one GPU: pipeline, data, tensor, sharded, divided and segmented sequences, offload to disk, fp16, a CUDA graph; losses against the reference
#   train    GPT-2 124M on text in bf16, and in fp8 where the GPU has it: its first losses against fp32 on the CPU, then 200 steps
#   torch    GPT-2 124M, GPT-2 1.5B and a Llama of 1.1 billion: smexec, smexec with a CUDA graph, in fp8 where the GPU has it, and PyTorch eager
#   predict  twenty-two configurations: predicted and measured step time and memory
#   profile  smexec profile --backend cuda
# No argument: build, then all of them. With arguments, all together end within GPU_CHECK_BUDGET seconds (570): what does not is left out, and said.
# Exit 4: no GPU; exit 1: a piece failed (the others were still tried).
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$root" || exit 1
architecture=${SMSIM_CUDA_ARCHITECTURES:-90}
results=${OUT:-$root/docs/results/gpu}
tables=$root/tests/gpu/tables.py
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ $# -gt 0 ]]; then budget=${GPU_CHECK_BUDGET:-570}; else budget=${GPU_CHECK_BUDGET:-7200}; fi

programs=$root/build
if [[ -x $root/gpu-bundle/smexec ]]; then programs=$root/gpu-bundle; fi
# Libraries of a bare machine: the bundle's own, those in python's wheels, the toolkit's, the driver's. For our programs alone: python and tools have their own.
wheels=$(python3 - <<'PY' 2>/dev/null
import glob
try:
    import nvidia
    print(":".join(d for p in nvidia.__path__ for d in sorted(glob.glob(p + "/*/lib"))))
except ImportError:
    pass
PY
)
libraries="$root/gpu-bundle/lib:${wheels:+$wheels:}/usr/local/cuda/lib64:/usr/local/cuda/lib:/usr/local/nvidia/lib64:/usr/local/nvidia/lib:${LD_LIBRARY_PATH:-}"
export SMSIM_HARDWARE_PROFILES="$root/hardware_profiles" SMSIM_FRAMEWORK_PROFILES="$root/framework_profiles" SMSIM_MODEL_CATALOG="$root/model/catalog"

commit() {
    if [[ -e $programs/COMMIT ]]; then cat "$programs/COMMIT"
    else git rev-parse --short HEAD 2>/dev/null || echo unknown; fi
}

heading() {
    printf '# ./run gpu-check %s\n# %s\n# %s, driver %s; %s cores\n# commit %s\n' "$1" "$(date -u '+%Y-%m-%d %H:%M:%S UTC')" \
        "$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null || echo 'no nvidia-smi')" \
        "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null || echo '-')" "$(nproc)" "$(commit)"
}

# Runs a piece with its output in a file and on the screen; the file is written as the piece goes on.
piece() {
    local name=$1
    mkdir -p "$results"
    { heading "$name"; "do_$name"; } 2>&1 | tee "$results/$name.txt"
    return "${PIPESTATUS[0]}"
}

# limited SECONDS COMMAND...: no longer than that, nor than what the budget leaves. Our programs and compute-sanitizer get the libraries.
limited() {
    local limit=$1 left=$((budget - SECONDS)) own=()
    shift
    if [[ $left -lt 5 ]]; then
        echo "left out, the budget of $budget s is used up: $*"
        return 125
    fi
    if [[ $1 == "$programs"/* || $1 == *compute-sanitizer ]]; then own=(env "LD_LIBRARY_PATH=$libraries"); fi
    timeout -k 5 "$((limit < left ? limit : left))" "${own[@]}" "$@"
}

# The same with the command shown; a code other than 0 is, too.
shown() {
    local limit=$1 code=0
    shift
    printf '\n$ %s\n' "${*//"$root/"/}"
    limited "$limit" "$@" || code=$?
    case $code in
        0) ;;
        124 | 137) echo "[stopped after $limit s or at the end of the budget]" ;;
        *) echo "[exit code $code]" ;;
    esac
    return "$code"
}

do_bundle() {
    local build=$root/build-gpu frontend=1.18.0  # the newest tried that needs nothing but cuDNN: 1.32 calls NVRTC and the driver
    # cudnn-frontend: headers only; without them our own attention kernel is used.
    if [[ ! -e $root/.cudnn-frontend/include/cudnn_frontend.h ]]; then
        (cd "$scratch" && python3 -m pip download -q --no-deps "nvidia-cudnn-frontend==$frontend" && mkdir -p "$root/.cudnn-frontend" &&
            python3 -m zipfile -e ./*.whl wheel && cp -r wheel/include "$root/.cudnn-frontend/") ||
            { echo "cudnn-frontend is not to be had: attention would be our own kernel, which is slow"; return 1; }
    fi
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSMSIM_CUDA=ON -DSMSIM_MPI=OFF -DSMSIM_ONNX=OFF -DSMSIM_DNNL=OFF \
        "-DSMSIM_CUDNN_FRONTEND=$root/.cudnn-frontend/include" "-DCMAKE_CUDA_ARCHITECTURES=$architecture" >"$scratch/cmake.log" 2>&1 || { cat "$scratch/cmake.log"; return 1; }
    ninja -C "$build" ${GPU_CHECK_JOBS:+-j$GPU_CHECK_JOBS} smexec test_exec_cuda >"$scratch/ninja.log" 2>&1 || { tail -40 "$scratch/ninja.log"; return 1; }
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
    printf '%s%s\n' "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(git diff --quiet HEAD 2>/dev/null || echo ' with changes')" >"$root/gpu-bundle/COMMIT"
    "$root/gpu-bundle/smexec" --version || return 1
    local kilobytes
    kilobytes=$(du -sk "$root/gpu-bundle" | cut -f1)
    echo "gpu-bundle/: $((kilobytes / 1024)) MiB, $(find "$root/gpu-bundle/lib" -type f | wc -l) libraries, commit $(cat "$root/gpu-bundle/COMMIT")"
    [[ $kilobytes -lt 50000 ]] || { echo "that is too large to be carried"; return 1; }
}

do_build() {
    if [[ $programs == "$root/gpu-bundle" ]]; then
        echo "gpu-bundle/ is there: nothing to build"
    else
        SMSIM_CUDA_ARCHITECTURES=$architecture "$root/run" build || return 1
        ln -sf tests/test_exec_cuda "$root/build/test_exec_cuda"
    fi
    shown 20 "$programs/smexec" --version
}

do_kernels() {
    local failed=0 sanitizer filter=() tool
    shown 150 "$programs/test_exec_cuda" '[device]' || failed=1
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    if [[ -x $sanitizer ]]; then
        # Our kernels only: those of the libraries are NVIDIA's to check, and slow to.
        if "$sanitizer" --help 2>/dev/null | grep -q -- '--kernel-regex'; then filter=(--kernel-regex kns=device_body); fi
        export SMSIM_KERNEL_ROUNDS=1
        for tool in memcheck racecheck; do
            shown 150 "$sanitizer" --tool "$tool" "${filter[@]}" --error-exitcode 9 "$programs/test_exec_cuda" '[device]' || failed=1
        done
        unset SMSIM_KERNEL_ROUNDS
    else
        echo "skipped: compute-sanitizer is not on this machine"
    fi
    return $failed
}

# A small GPT as a plan; "$@" are lines of [plan].
tiny_plan() {
    printf '%s\n' 'version = 1' '[model]' 'family = "gpt"' 'hidden = 64' 'layers = 4' 'heads = 4' 'vocabulary = 256' 'max_positions = 64' 'sequence_length = 64' \
        '[cluster]' 'instance = "p5en.48xlarge"' 'nodes = 1' '[plan]' 'micro_batch = 2' 'micro_batches = 4' "$@" \
        '[training]' 'optimizer = "sgd"' 'learning_rate = 0.1' 'seed = 1234' 'steps = 5'
}

# N processes on this host, each a rank: rank 0's output and exit code.
ranks() {
    local count=$1 port=$((20000 + RANDOM % 20000)) rank pids=() code=0
    shift
    for ((rank = count - 1; rank >= 0; --rank)); do
        RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NET=Socket NCCL_MNNVL_ENABLE=0 \
            NCCL_DEBUG=WARN limited 60 "$programs/smexec" "$@" --ranks-from env >"$scratch/rank$rank.out" 2>"$scratch/rank$rank.err" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
    cat "$scratch/rank0.out"
    for ((rank = 0; rank < count; ++rank)); do sed "s/^/rank $rank: /" "$scratch/rank$rank.err" | head -12; done
    [[ $code -eq 0 ]] || echo "[exit code $code]"
    return $code
}

do_nccl() {
    local failed=0 name options
    local -A plans=(
        [1_single]='precision = "fp32"'
        [2_data]=$'precision = "fp32"\ndata_parallel = 2'
        [2_pipeline]=$'precision = "fp32"\npipeline_parallel = 2\nschedule = "1f1b"'
        [2_tensor]=$'precision = "fp32"\ntensor_parallel = 2'
        [2_sharded]=$'precision = "fp32"\ndata_parallel = 2\nsharding = "parameters"'
        [2_optimizer]=$'precision = "fp32"\ndata_parallel = 2\nsharding = "optimizer"'
        [2_fp16_pipeline]=$'precision = "fp16"\npipeline_parallel = 2\nschedule = "1f1b"'
        [2_graph_data]=$'precision = "fp32"\ndata_parallel = 2'
        [4_pipeline_data]=$'precision = "fp32"\npipeline_parallel = 2\ndata_parallel = 2\nschedule = "1f1b"'
        [1_disk]=$'precision = "fp32"\nschedule = "gpipe"\noffload = "disk"\noffload_bandwidth = "1GB/s"\nactivation_loading_horizon = 1'
        [1_graph_disk]=$'precision = "fp32"\nschedule = "gpipe"\noffload = "disk"\noffload_bandwidth = "1GB/s"\nactivation_loading_horizon = 1'
        [1_asynchronous]=$'precision = "fp32"\nschedule = "pipedream"'
        [2_context]=$'precision = "fp32"\ncontext_parallel = 2'
        [2_segments]=$'precision = "fp32"\npipeline_parallel = 2\nschedule = "seq1f1b"\nsegments = 4'
        [2_interleaved]=$'precision = "fp32"\npipeline_parallel = 2\nvirtual_stages = 2\nschedule = "interleaved"'
        [2_graph_v_shape]=$'precision = "fp32"\npipeline_parallel = 2\nvirtual_stages = 2\nschedule = "zb-v"'
        [4_tensor_sequence_data]=$'precision = "fp32"\ntensor_parallel = 2\nsequence_parallel = true\ndata_parallel = 2'
    )
    for name in $(printf '%s\n' "${!plans[@]}" | sort); do
        tiny_plan "${plans[$name]}" >"$scratch/$name.toml"
        options=(--backend cuda --no-compare --check --time-limit 40)
        [[ $name != *graph* ]] || options+=(--cuda-graph)
        printf '\n== %s: %s\n' "$name" "${plans[$name]//$'\n'/, }"
        if [[ $name == 1_* ]]; then limited 60 "$programs/smexec" "$scratch/$name.toml" "${options[@]}" || { echo "[exit code $?]"; failed=1; }
        else ranks "${name%%_*}" "$scratch/$name.toml" "${options[@]}" || failed=1; fi
    done
    return $failed
}

# Ada, Hopper and later multiply in fp8; others are told to be passed over.
has_fp8() {
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d '. ')
    [[ $capability =~ ^[0-9]+$ && $capability -ge 89 ]] && return 0
    echo "skipped in fp8: compute capability ${capability:-unknown}, fp8 begins with 8.9"
    return 1
}

do_train() {
    local text=$scratch/text failed=0
    cat "$root"/docs/*.md "$root"/README.md "$root"/schedule/*.h "$root"/exec/*.h "$root"/sim/*.h >"$text"
    # All of GPT-2 124M, short samples: five steps on a GPU in bf16 and on a core of this CPU in fp32 (whose losses equal the double-precision reference's).
    sed -e 's/^micro_batch = .*/micro_batch = 2/' -e 's/^sequence_length = .*/sequence_length = 128/' "$root/scenarios/gpu_gpt2_124m.toml" >"$scratch/gpu.toml"
    sed -e 's/^precision = .*/precision = "fp32"/' "$scratch/gpu.toml" >"$scratch/cpu.toml"
    sed -e 's/^precision = .*/precision = { compute = "fp8" }/' "$scratch/gpu.toml" >"$scratch/fp8.toml"
    local common=(--no-compare --steps 5 --data "$text" --json) where places=(gpu cpu)
    if has_fp8; then places=(gpu fp8 cpu); fi
    for where in "${places[@]}"; do
        local backend=()
        [[ $where == cpu ]] || backend=(--backend cuda)
        printf '\n$ smexec GPT2-124M-%s.toml %s\n' "$where" "${backend[*]} ${common[*]:0:3}"
        limited 120 "$programs/smexec" "$scratch/$where.toml" "${backend[@]}" "${common[@]}" >"$scratch/$where.json" 2>"$scratch/err" || { failed=1; cat "$scratch/err"; head -c 600 "$scratch/$where.json"; }
    done
    python3 "$tables" losses "$scratch/gpu.json" "$scratch/cpu.json" || failed=1
    if [[ ${places[*]} == *fp8* ]]; then python3 "$tables" losses "$scratch/fp8.json" "$scratch/cpu.json" fp8 || failed=1; fi
    sed -e 's/^micro_batch = .*/micro_batch = 16/' "$root/scenarios/gpu_gpt2_124m.toml" >"$scratch/long.toml"
    shown 120 "$programs/smexec" "$scratch/long.toml" --backend cuda --cuda-graph --no-compare --steps 200 --data "$text" --verbose || failed=1
    return $failed
}

do_torch() {
    local name options failed=0 low=1
    has_fp8 || low=0
    python3 "$tables" speed-heading
    for name in gpu_gpt2_124m gpu_gpt2_xl gpu_llama_1b; do
        for options in "" "--cuda-graph" "--cuda-graph --cuda-tune"; do
            # shellcheck disable=SC2086
            limited 75 "$programs/smexec" "$root/scenarios/$name.toml" --backend cuda --no-compare --steps 15 --json $options >"$scratch/speed.json" 2>"$scratch/err" ||
                { failed=1; cat "$scratch/err"; }
            python3 "$tables" speed-row "$name" "smexec $options" "$scratch/speed.json" || failed=1
        done
        # The MFU is of the bf16 peak in every row, so that they compare.
        sed -e 's/^precision = .*/precision = { compute = "fp8" }/' "$root/scenarios/$name.toml" >"$scratch/fp8.toml"
        for options in "--cuda-graph" "--cuda-graph --cuda-tune"; do
            [[ $low -eq 1 ]] || continue
            # shellcheck disable=SC2086
            limited 75 "$programs/smexec" "$scratch/fp8.toml" --backend cuda --no-compare --steps 15 --json $options >"$scratch/speed.json" 2>"$scratch/err" ||
                { failed=1; cat "$scratch/err"; }
            python3 "$tables" speed-row "$name" "smexec fp8 $options" "$scratch/speed.json" || failed=1
        done
        limited 120 python3 "$root/bench/gpu_torch.py" "$name" >"$scratch/torch.json" 2>"$scratch/err" || { failed=1; tail -5 "$scratch/err"; }
        python3 "$tables" torch-rows "$scratch/torch.json" || failed=1
    done
    return $failed
}

do_predict() {
    local failed=0 base micro tokens recompute batches layers
    : >"$scratch/predicted"
    python3 "$tables" prediction-heading
    while read -r base micro tokens recompute batches layers; do
        [[ -n $base ]] || continue
        sed -e "s/^micro_batch = .*/micro_batch = $micro/" -e "s/^micro_batches = .*/micro_batches = $batches/" -e "s/^sequence_length = .*/sequence_length = $tokens/" \
            -e "s/^layers = .*/layers = $layers/" -e "s/^attention = .*/attention = \"flash\"\nrecompute = \"$recompute\"/" "$root/scenarios/$base.toml" >"$scratch/plan.toml"
        limited 90 "$programs/smexec" "$scratch/plan.toml" --backend cuda --steps 10 --json >"$scratch/run.json" 2>"$scratch/err" || { failed=1; head -3 "$scratch/err"; }
        python3 "$tables" prediction-row "$base $micro $tokens $recompute $batches $layers" "$scratch/run.json" "$scratch/predicted" || failed=1
    done <<'TABLE'
gpu_gpt2_124m 4 1024 none 1 12
gpu_llama_1b 4 2048 none 1 22
gpu_gpt2_xl 4 1024 none 1 48
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
gpu_llama_1b 8 2048 none 1 22
gpu_llama_1b 4 1024 none 1 22
gpu_llama_1b 4 2048 full 1 22
gpu_llama_1b 2 2048 none 4 22
gpu_llama_1b 4 2048 none 1 11
gpu_gpt2_xl 4 1024 full 1 48
gpu_gpt2_xl 8 512 none 2 24
TABLE
    python3 "$tables" prediction-summary "$scratch/predicted"
    return $failed
}

do_profile() { shown 200 "$programs/smexec" profile --backend cuda --base p5en.48xlarge --out "$results/h200.toml"; }

# One line and exit 4 where there is no GPU. Anything else that goes wrong is the pieces' to show.
require_device() {
    [[ -x $programs/smexec ]] || return 0  # do_build makes it
    local words
    tiny_plan 'precision = "fp32"' >"$scratch/probe.toml"
    words=$(limited 60 "$programs/smexec" "$scratch/probe.toml" --backend cuda --no-compare --steps 1 2>&1) && return 0
    if [[ $words == *"no CUDA device"* || $words == *"built without CUDA"* ]]; then
        echo "gpu-check: ${words##*$'\n'}" >&2
        exit 4
    fi
    if [[ $words == *"cannot open shared object file"* ]]; then
        echo "gpu-check: ${words##*$'\n'} (looked in $libraries)" >&2
        exit 4
    fi
    echo "gpu-check: a step of a tiny model failed: $words" >&2
}

if [[ $# -eq 0 ]]; then
    set -- build kernels nccl train torch predict profile
fi
for name in "$@"; do
    declare -F "do_$name" >/dev/null || { echo "gpu-check: no piece named $name" >&2; exit 2; }
done
failed=()
has_probed=0
for name in "$@"; do
    if [[ $name == bundle ]]; then
        do_bundle || failed+=("$name")
        continue
    fi
    if [[ $name != build && $has_probed -eq 0 ]]; then
        [[ -x $programs/smexec && -x $programs/test_exec_cuda ]] || do_build || { echo "gpu-check: nothing built to check with" >&2; exit 1; }
        require_device
        has_probed=1
    fi
    piece "$name" || failed+=("$name")
done
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "gpu-check: FAILED: ${failed[*]}" >&2
    exit 1
fi
