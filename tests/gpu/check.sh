#!/bin/bash
# What a GPU must show: `./run gpu-check PIECE...`. Raw output goes into docs/results/gpu/ (or $OUT) as it comes, with command, date and machine.
#
#   bundle   here, where there is CUDA's compiler: builds for one architecture into gpu-bundle/, with the libraries a bare machine lacks: carry that folder
#   build    builds in place (what the other pieces use where there is no gpu-bundle/)
#   smoke    breadth first, within four minutes: versions and libraries, each family of kernels one round, tiny runs, GPT-2 124M by cuDNN's attention, two ranks, one
#            row of speed a model
#   kernels  kernel tests, a process for each family: what one breaks does not hide the others; a family that fails runs again with blocking launches and memcheck
#   nccl     two and four ranks on this one GPU: pipeline, data, tensor, sharded, divided and segmented sequences, offload to disk, fp16, a CUDA graph; losses against the reference
#   train    GPT-2 124M on text in bf16, and in fp8 where the GPU has it: its first losses against fp32 on the CPU, then 200 steps
#   speed    GPT-2 124M, GPT-2 1.5B and a Llama of 1.1 billion: smexec, smexec with a CUDA graph, in fp8 where the GPU has it, and PyTorch eager and compiled
#   predict  twenty-two configurations, twelve different ones first: predicted and measured step time and memory
#   profile  smexec profile --backend cuda
#   ncu      Nsight Compute's account of one step's kernels
#   sanitize kernel tests under compute-sanitizer: memcheck, racecheck, initcheck, synccheck
# No argument: build, then all of them, in this order. With arguments, all together end within GPU_CHECK_BUDGET seconds (540): what does not is left out, and said.
# Three calls that fit: `smoke kernels nccl`, `train speed`, `predict profile ncu sanitize`. Each piece writes one file, named by the card: h200-smoke.txt.
# GPU_CHECK_INSTANCE names the instance type whose profile the card has, where its name is not known here.
# GPU_CHECK_REHEARSAL=1 starts every piece on a machine without a card: each says why it stops. Exit 1 then.
# Exit 4: no GPU, or one that no profile describes; exit 1: a piece failed (the others were still tried).
set -uo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
cd -- "$root" || exit 1
architecture=${SMSIM_CUDA_ARCHITECTURES:-90}
results=${OUT:-$root/docs/results/gpu}
tables=$root/tests/gpu/tables.py
scratch=$(mktemp -d)
export SMSIM_CUDA_CACHE=${SMSIM_CUDA_CACHE:-$scratch/choices} # measured choices: of this check alone
trap 'rm -rf "$scratch"' EXIT
if [[ $# -gt 0 ]]; then budget=${GPU_CHECK_BUDGET:-540}; else budget=${GPU_CHECK_BUDGET:-7200}; fi

programs=${GPU_CHECK_PROGRAMS:-$root/build}
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

# The card by its driver's name: how files are called, and the instance type whose profile describes it.
card=none instance=
read_card() {
    local name
    name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
    case $name in
        *H200*NVL*) card=h200-nvl ;;
        *H200*) card=h200 instance=p5en.48xlarge ;;
        *H100*NVL* | *H100*PCIe*) card=h100-pcie ;;
        *H100*) card=h100 instance=p5.48xlarge ;;
        *A100*80GB*) card=a100-80gb instance=p4de.24xlarge ;;
        *A100*) card=a100 instance=p4d.24xlarge ;;
        *A10G*) card=a10g instance=g5.12xlarge ;;
        *L40S*) card=l40s instance=g6e.12xlarge ;;
        *L4*) card=l4 instance=g6.12xlarge ;;
        *T4*) card=t4 instance=g4dn.12xlarge ;;
        *) card=$(tr -cs 'A-Za-z0-9\n' - <<<"${name:-none}" | tr 'A-Z' 'a-z' | sed 's/-*$//') ;;
    esac
    instance=${GPU_CHECK_INSTANCE:-$instance}
    if [[ -n ${GPU_CHECK_REHEARSAL:-} ]]; then instance=${instance:-p5en.48xlarge}; fi
    [[ -z $name || -n $instance ]] && return 0
    echo "gpu-check: no profile is known for $name: its predictions would be another card's; name one in GPU_CHECK_INSTANCE" >&2
    exit 4
}

# scenario NAME [SED EXPRESSION...]: scenarios/NAME.toml for this card.
scenario() {
    local name=$1
    shift
    sed -e "s/^instance = .*/instance = \"$instance\"/" "$@" "$root/scenarios/$name.toml"
}

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
    { heading "$name"; "do_$name"; } 2>&1 | head -c 16000000 | tee "$results/$card-$name.txt"
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
    local build=$root/build-gpu
    bash "$root/cmake/cudnn_frontend.sh" "$root/.cudnn-frontend" ||
        { echo "cudnn-frontend is not to be had: attention would be our own kernel, which is slow"; return 1; }
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

# The families that test_exec_cuda knows, one a line.
families() { LD_LIBRARY_PATH=$libraries "$programs/test_exec_cuda" '[.families]' | sed -n 's/^family //p'; }

# One process a family: a sticky fault ends it and no other. kernel_families ROUNDS SECONDS
kernel_families() {
    local rounds=$1 seconds=$2 failed=0 family sanitizer
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    while read -r family; do
        if SMSIM_KERNEL_ROUNDS=$rounds limited "$seconds" "$programs/test_exec_cuda" 'every kernel of ours computes what the CPU*s does on a GPU' -c "$family" >"$scratch/family.out" 2>&1; then
            if grep -q 'skipped: ' "$scratch/family.out"; then
                sed -n 's/^ *\(skipped: .*\)/\1/p' "$scratch/family.out" | head -1
                return 1
            fi
            echo "good: $family"
            continue
        fi
        failed=1
        echo "FAILED: $family"
        {
            printf '\n== %s\n' "$family"
            head -60 "$scratch/family.out"
            echo "-- launches one by one"
            CUDA_LAUNCH_BLOCKING=1 SMSIM_KERNEL_ROUNDS=1 limited 40 "$programs/test_exec_cuda" 'every kernel of ours computes what the CPU*s does on a GPU' -c "$family" 2>&1 | tail -40
            if [[ -x $sanitizer ]]; then
                echo "-- memcheck"
                SMSIM_KERNEL_ROUNDS=1 limited 60 "$sanitizer" --tool memcheck --error-exitcode 9 "$programs/test_exec_cuda" \
                    'every kernel of ours computes what the CPU*s does on a GPU' -c "$family" 2>&1 | head -80
            fi
        } >>"$results/$card-failures.txt"
    done < <(families)
    [[ $failed -eq 0 ]] || echo "what failed ran again with CUDA_LAUNCH_BLOCKING=1 and memcheck: $card-failures.txt"
    return $failed
}

do_kernels() {
    local failed=0
    kernel_families 20 60 || failed=1
    shown 60 "$programs/test_exec_cuda" 'products are right by whichever algorithm is the fastest' || failed=1
    shown 60 "$programs/test_exec_cuda" "cuDNN's fused attention takes the shapes of the usual models" || failed=1
    return $failed
}

do_sanitize() {
    local failed=0 sanitizer filter=() tool
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [[ -x $sanitizer ]] || { echo "skipped: compute-sanitizer is not on this machine"; return 0; }
    # Our kernels only: those of the libraries are NVIDIA's to check, and slow to.
    if "$sanitizer" --help 2>/dev/null | grep -q -- '--kernel-regex'; then filter=(--kernel-regex kns=device_body); fi
    export SMSIM_KERNEL_ROUNDS=1
    for tool in memcheck racecheck initcheck synccheck; do
        shown 120 "$sanitizer" --tool "$tool" "${filter[@]}" --error-exitcode 9 "$programs/test_exec_cuda" 'every kernel of ours computes what the CPU*s does on a GPU' || failed=1
    done
    unset SMSIM_KERNEL_ROUNDS
    return $failed
}

# A small GPT as a plan; "$@" are lines of [plan].
tiny_plan() {
    printf '%s\n' 'version = 1' '[model]' 'family = "gpt"' 'hidden = 64' 'layers = 4' 'heads = 4' 'vocabulary = 256' 'max_positions = 64' 'sequence_length = 64' \
        '[cluster]' 'instance = "'"$instance"'"' 'nodes = 1' '[plan]' 'micro_batch = 2' 'micro_batches = 4' "$@" \
        '[training]' 'optimizer = "sgd"' 'learning_rate = 0.1' 'seed = 1234' 'steps = 5'
}

# The same with four experts in place of each layer's second half, of which a token takes two.
tiny_mixture() { tiny_plan "$@" | sed 's/^hidden = 64/experts = 4\nexperts_per_token = 2\nhidden = 64/'; }

# N processes on this host, each a rank: rank 0's output and exit code.
ranks() {
    local count=$1 port=$((20000 + RANDOM % 20000)) rank pids=() code=0
    shift
    for ((rank = count - 1; rank >= 0; --rank)); do
        RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NET=Socket NCCL_MNNVL_ENABLE=0 \
            NCCL_DEBUG=${NCCL_DEBUG:-WARN} limited 60 "$programs/smexec" "$@" --ranks-from env >"$scratch/rank$rank.out" 2>"$scratch/rank$rank.err" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
    cat "$scratch/rank0.out"
    for ((rank = 0; rank < count; ++rank)); do sed "s/^/rank $rank: /" "$scratch/rank$rank.err" | head -12; done
    [[ $code -eq 0 ]] || echo "[exit code $code]"
    return $code
}

# ranks N ... once more, with all that NCCL says, into the file of failures.
ranks_again() {
    local name=$1 count=$2 rank
    {
        printf '\n== %s\n' "$name"
        NCCL_DEBUG=INFO ranks "${@:2}"
        for ((rank = 0; rank < count; ++rank)); do
            echo "-- NCCL on rank $rank"
            tail -c 200000 "$scratch/rank$rank.err"
        done
    } >>"$results/$card-failures.txt" 2>&1
    echo "$name ran again with NCCL_DEBUG=INFO: $card-failures.txt"
}

do_nccl() {
    local failed=0 failed_together=0 name options
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
        [2_experts]=$'precision = "fp32"\ndata_parallel = 2\nexpert_parallel = 2'
        [2_context]=$'precision = "fp32"\ncontext_parallel = 2'
        [2_segments]=$'precision = "fp32"\npipeline_parallel = 2\nschedule = "seq1f1b"\nsegments = 4'
        [2_interleaved]=$'precision = "fp32"\npipeline_parallel = 2\nvirtual_stages = 2\nschedule = "interleaved"'
        [2_graph_v_shape]=$'precision = "fp32"\npipeline_parallel = 2\nvirtual_stages = 2\nschedule = "zb-v"'
        [4_tensor_sequence_data]=$'precision = "fp32"\ntensor_parallel = 2\nsequence_parallel = true\ndata_parallel = 2'
    )
    for name in $(printf '%s\n' "${!plans[@]}" | sort); do
        options=(--backend cuda --no-compare --check --time-limit 40)
        if [[ $name == *experts* ]]; then
            tiny_mixture "${plans[$name]}" >"$scratch/$name.toml"
            options+=(--cuda-expert-room 4) # tiny experts are uneven
        else tiny_plan "${plans[$name]}" >"$scratch/$name.toml"; fi
        [[ $name != *graph* ]] || options+=(--cuda-graph)
        printf '\n== %s: %s\n' "$name" "${plans[$name]//$'\n'/, }"
        if [[ $name == 1_* ]]; then limited 60 "$programs/smexec" "$scratch/$name.toml" "${options[@]}" || { echo "[exit code $?]"; failed=1; }
        elif ! ranks "${name%%_*}" "$scratch/$name.toml" "${options[@]}"; then
            failed=1
            # The first of them: what follows often fails for the same reason, and the budget is for what does not.
            [[ $failed_together -ne 0 ]] || ranks_again "$name" "${name%%_*}" "$scratch/$name.toml" "${options[@]}"
            failed_together=1
        fi
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
    scenario gpu_gpt2_124m -e 's/^micro_batch = .*/micro_batch = 2/' -e 's/^sequence_length = .*/sequence_length = 128/' >"$scratch/gpu.toml"
    sed -e 's/^precision = .*/precision = "fp32"/' "$scratch/gpu.toml" >"$scratch/cpu.toml"
    sed -e 's/^precision = .*/precision = { compute = "fp8" }/' "$scratch/gpu.toml" >"$scratch/fp8.toml"
    local common=(--no-compare --steps 5 --data "$text" --json) where places=(gpu cpu)
    # The CPU's steps, slow ones, last: there is nothing to compare them with where the GPU had none.
    if has_fp8; then places=(gpu fp8 cpu); fi
    for where in "${places[@]}"; do
        local backend=()
        [[ $where == cpu ]] || backend=(--backend cuda)
        [[ $where != cpu || $failed -eq 0 ]] || return 1
        printf '\n$ smexec GPT2-124M-%s.toml %s\n' "$where" "${backend[*]} ${common[*]:0:3}"
        limited 120 "$programs/smexec" "$scratch/$where.toml" "${backend[@]}" "${common[@]}" >"$scratch/$where.json" 2>"$scratch/err" || { failed=1; cat "$scratch/err"; head -c 600 "$scratch/$where.json"; }
    done
    python3 "$tables" losses "$scratch/gpu.json" "$scratch/cpu.json" || failed=1
    if [[ ${places[*]} == *fp8* ]]; then python3 "$tables" losses "$scratch/fp8.json" "$scratch/cpu.json" fp8 || failed=1; fi
    scenario gpu_gpt2_124m -e 's/^micro_batch = .*/micro_batch = 16/' >"$scratch/long.toml"
    shown 120 "$programs/smexec" "$scratch/long.toml" --backend cuda --cuda-graph --no-compare --steps 200 --data "$text" --verbose || failed=1
    return $failed
}

do_speed() {
    local name options failed=0 low=1
    has_fp8 || low=0
    python3 "$tables" speed-heading
    for name in gpu_gpt2_124m gpu_gpt2_xl gpu_llama_1b; do
        scenario "$name" >"$scratch/own.toml"
        for options in "" "--cuda-graph" "--cuda-graph --cuda-without gelu,residual-norm,norm-gradients,rotation" "--cuda-graph --cuda-tune"; do
            # shellcheck disable=SC2086
            limited 75 "$programs/smexec" "$scratch/own.toml" --backend cuda --no-compare --steps 15 --json $options >"$scratch/speed.json" 2>"$scratch/err" ||
                { failed=1; cat "$scratch/err"; }
            python3 "$tables" speed-row "$name" "smexec $options" "$scratch/speed.json" || failed=1
        done
        # The MFU is of the bf16 peak in every row, so that they compare.
        scenario "$name" -e 's/^precision = .*/precision = { compute = "fp8" }/' >"$scratch/fp8.toml"
        for options in "--cuda-graph" "--cuda-graph --cuda-tune"; do
            [[ $low -eq 1 ]] || continue
            # shellcheck disable=SC2086
            limited 75 "$programs/smexec" "$scratch/fp8.toml" --backend cuda --no-compare --steps 15 --json $options >"$scratch/speed.json" 2>"$scratch/err" ||
                { failed=1; cat "$scratch/err"; }
            python3 "$tables" speed-row "$name" "smexec fp8 $options" "$scratch/speed.json" || failed=1
        done
        limited 150 python3 "$root/bench/gpu_torch.py" "$name" >"$scratch/torch.json" 2>"$scratch/err" || { failed=1; tail -5 "$scratch/err"; }
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
        scenario "$base" -e "s/^micro_batch = .*/micro_batch = $micro/" -e "s/^micro_batches = .*/micro_batches = $batches/" -e "s/^sequence_length = .*/sequence_length = $tokens/" \
            -e "s/^layers = .*/layers = $layers/" -e "s/^attention = .*/attention = \"flash\"\nrecompute = \"$recompute\"/" >"$scratch/plan.toml"
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

do_profile() { shown 200 "$programs/smexec" profile --backend cuda --base "$instance" --out "$results/$card.toml"; }

# Nsight Compute's account of one step of GPT-2 124M: the kernels with their share of the device's rates. Clocks stay as they are.
do_ncu() {
    local ncu
    ncu=$(command -v ncu || echo /usr/local/cuda/bin/ncu)
    [[ -x $ncu ]] || { echo "skipped: Nsight Compute (ncu) is not on this machine"; return 0; }
    scenario gpu_gpt2_124m -e 's/^micro_batch = .*/micro_batch = 8/' -e 's/^layers = .*/layers = 2/' >"$scratch/ncu.toml"
    shown 150 "$ncu" --clock-control none --section SpeedOfLight --section LaunchStats --section Occupancy --launch-skip 200 --launch-count 120 --print-summary per-kernel \
        "$programs/smexec" "$scratch/ncu.toml" --backend cuda --no-compare --steps 4
}

# Asserts that a run's attention was cuDNN's: a silent fallback costs a factor of twenty.
fused_attention() { python3 "$tables" fused-attention "$1"; }

# Breadth first: what a first contact with a card would trip over, an item at most 25 seconds.
do_smoke() {
    local failed=0 name library
    printf '\n== versions and libraries\n'
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,ecc.mode.current,mig.mode.current --format=csv,noheader || failed=1
    shown 20 "$programs/smexec" --version || failed=1
    for library in libcudart libcublasLt libcudnn libnccl libnvrtc; do
        printf '%-14s %s\n' "$library" "$(LD_LIBRARY_PATH=$libraries ldd "$programs/smexec" | awk -v name="$library" '$1 ~ "^" name {print $3; exit}')"
    done
    printf '\n== each family of kernels, one round\n'
    kernel_families 1 25 || failed=1
    tiny_plan 'precision = "fp32"' >"$scratch/tiny.toml"
    printf '\n== tiny runs against the reference\n'
    shown 25 "$programs/smexec" "$scratch/tiny.toml" --backend cuda --no-compare --check || failed=1
    shown 25 "$programs/smexec" "$scratch/tiny.toml" --backend cuda --no-compare --check --cuda-graph || failed=1
    if has_fp8; then
        tiny_plan 'precision = { compute = "fp8" }' >"$scratch/tiny8.toml"
        shown 25 "$programs/smexec" "$scratch/tiny8.toml" --backend cuda --no-compare --check || failed=1
    fi
    tiny_mixture 'precision = "fp32"' >"$scratch/mixture.toml"
    for name in "" --cuda-graph "--cuda-without expert-products"; do
        # shellcheck disable=SC2086
        shown 25 "$programs/smexec" "$scratch/mixture.toml" --backend cuda --no-compare --check $name || failed=1
    done
    printf '\n== GPT-2 124M, five steps\n'
    scenario gpu_gpt2_124m >"$scratch/own.toml"
    for name in "" --cuda-graph; do
        # shellcheck disable=SC2086
        shown 25 "$programs/smexec" "$scratch/own.toml" --backend cuda --no-compare --steps 5 --json $name >"$scratch/smoke.json" || { failed=1; head -c 800 "$scratch/smoke.json"; }
        sed -n '/^{/,$p' "$scratch/smoke.json" >"$scratch/smoke.own.json"
        fused_attention "$scratch/smoke.own.json" || failed=1
    done
    printf '\n== two ranks on this card\n'
    for name in 'data_parallel = 2' $'pipeline_parallel = 2\nschedule = "1f1b"'; do
        tiny_plan 'precision = "fp32"' "$name" >"$scratch/two.toml"
        NCCL_DEBUG=INFO ranks 2 "$scratch/two.toml" --backend cuda --no-compare --check --time-limit 20 || failed=1
    done
    printf '\n== one row of speed a model\n'
    python3 "$tables" speed-heading
    for name in gpu_gpt2_124m gpu_gpt2_xl gpu_llama_1b; do
        scenario "$name" >"$scratch/own.toml"
        limited 25 "$programs/smexec" "$scratch/own.toml" --backend cuda --no-compare --steps 6 --json --cuda-graph >"$scratch/speed.json" 2>"$scratch/err" || { failed=1; cat "$scratch/err"; }
        python3 "$tables" speed-row "$name" "smexec --cuda-graph" "$scratch/speed.json" || failed=1
    done
    return $failed
}

# One line and exit 4 where there is no GPU. Anything else that goes wrong is the pieces' to show.
require_device() {
    [[ -x $programs/smexec ]] || return 0  # do_build makes it
    local words
    tiny_plan 'precision = "fp32"' >"$scratch/probe.toml"
    words=$(limited 60 "$programs/smexec" "$scratch/probe.toml" --backend cuda --no-compare --steps 1 2>&1) && return 0
    # Without a card every piece is started all the same: each is to say why it stops, within its time.
    if [[ -n ${GPU_CHECK_REHEARSAL:-} ]]; then
        echo "gpu-check: a rehearsal: ${words##*$'\n'}" >&2
        return 0
    fi
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
    set -- build smoke kernels nccl train speed predict profile ncu sanitize
fi
read_card
export GPU_CHECK_INSTANCE=$instance
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
