#!/bin/bash
# Usage: resources_can_fail.sh PYTHON kernel_resources.py. One register, one byte of stack or of shared memory more than recorded,
# and a kernel that is not recorded, are failures; as many or fewer are none.
set -uo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# words REGISTERS STACK SHARED [KERNEL]: what ptxas 13.0 says of a kernel.
words() {
    local kernel=${4:-_ZN4exec4cuda11device_body3runINS1_11AddPartialsEEEvT_}
    printf "ptxas info    : Compiling entry function '%s' for 'sm_90'\n" "$kernel"
    printf 'ptxas info    : Function properties for %s\n    %d bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n' "$kernel" "$2"
    printf 'ptxas info    : Used %d registers, used 1 barriers, %d bytes smem, 1024 bytes cmem[0]\n' "$1" "$3"
}
run() { "$1" "$2" "$scratch/table" --log "$scratch/log" --arch 90 --files norm "${@:3}" >"$scratch/said" 2>&1; }

failed=0
expect() { # CODE WHAT ...
    local code=$1 what=$2
    shift 2
    run "$@"
    if [[ $? -ne $code ]]; then
        echo "$what: expected exit $code"
        cat "$scratch/said"
        failed=1
    fi
}
words 32 64 128 >"$scratch/log"
expect 1 "nothing is recorded" "$1" "$2"
expect 0 "recording" "$1" "$2" --write
expect 0 "as many" "$1" "$2"
words 33 64 128 >"$scratch/log"
expect 1 "a register more" "$1" "$2"
grep -q 'run<AddPartials>: registers 32 -> 33' "$scratch/said" || { echo "the kernel is not named"; failed=1; }
words 32 65 128 >"$scratch/log"
expect 1 "a byte of stack more" "$1" "$2"
words 32 64 129 >"$scratch/log"
expect 1 "a byte of shared memory more" "$1" "$2"
words 31 0 0 >"$scratch/log"
expect 0 "fewer" "$1" "$2"
words 8 0 0 _ZN4exec4cuda11device_body3runINS1_8AnythingEEEvT_ >"$scratch/log"
expect 1 "a kernel that is new" "$1" "$2"
grep -q 'run<AddPartials>: is recorded and gone' "$scratch/said" || { echo "the kernel that is gone is not named"; failed=1; }
: >"$scratch/log"
expect 1 "no kernel at all" "$1" "$2"
[[ $failed -eq 0 ]] && echo "nine cases hold"
exit $failed
