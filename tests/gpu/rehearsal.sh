#!/bin/bash
# Usage: rehearsal.sh PROGRAMS. Every piece of gpu-check on a machine without a card: each starts, writes its file and says why it stops, all of them within the
# budget of one call. PROGRAMS: the folder of smexec and test_exec_cuda.
set -uo pipefail
programs=$1
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    echo "skipped: this machine has a card: ./run gpu-check is the real thing"
    exit 0
fi
mkdir "$scratch/programs" "$scratch/out"
ln -s "$programs/smexec" "$scratch/programs/smexec"
ln -s "$programs/tests/test_exec_cuda" "$scratch/programs/test_exec_cuda"
pieces=(smoke kernels nccl train speed predict profile ncu sanitize)
failed=0
GPU_CHECK_REHEARSAL=1 GPU_CHECK_PROGRAMS=$scratch/programs GPU_CHECK_BUDGET=150 OUT=$scratch/out "$root/tests/gpu/check.sh" "${pieces[@]}" >"$scratch/log" 2>&1
code=$?
if [[ $code -ne 1 ]]; then
    echo "exit code $code where pieces must fail"
    failed=1
fi
# Without a card every kernel is left out, and every run of several ranks fails: the first of them once more, with NCCL's words.
if ! grep -q -- '-- NCCL on rank 1' "$scratch/out/none-failures.txt" 2>/dev/null; then
    echo "a run of several ranks failed and did not run again with NCCL_DEBUG=INFO"
    failed=1
fi
for piece in "${pieces[@]}"; do
    file=$scratch/out/none-$piece.txt
    if [[ ! -s $file ]]; then
        echo "$piece wrote no file"
        failed=1
    elif ! grep -qE 'no CUDA device|built without CUDA|skipped|no result|torch' "$file"; then
        echo "$piece does not say why it stopped:"
        head -20 "$file"
        failed=1
    elif grep -q 'left out, the budget' "$file"; then
        echo "$piece did not come to its end within the budget"
        failed=1
    fi
done
# What is wrong with a plan is told without a card, too.
if grep -hE '\.toml:[0-9]+:[0-9]+: error' "$scratch"/out/*.txt; then
    echo "a plan of gpu-check is refused"
    failed=1
fi
if [[ $failed -ne 0 ]]; then tail -20 "$scratch/log"; else echo "${#pieces[@]} pieces started, each said why it stopped, in $SECONDS s"; fi
exit $failed
