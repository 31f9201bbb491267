#!/bin/bash
# Usage: check_hosts.sh EMULATED_HOSTS_SH SMEXEC PLAN_DIRECTORY. Four ranks on two and four emulated hosts train as four threads do, and what they send takes at least
# as long as the line allows. Without root, iproute2 or Open MPI it says "skipped: ..." and why.
set -euo pipefail
hosts=$1 smexec=$2 plans=$3
what=$("$hosts" can) || { echo "skipped: $what, which emulated hosts need"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# field FILE NAME: a number or list of a JSON document (one key a line, as smexec writes it).
losses() { python3 -c 'import json,sys; t=open(sys.argv[1]).read(); j=json.JSONDecoder().raw_decode(t[t.index("{"):])[0]; print(*j["losses"])' "$1"; }
step() { python3 -c 'import json,sys; t=open(sys.argv[1]).read(); j=json.JSONDecoder().raw_decode(t[t.index("{"):])[0]; print(j["measured_step_s"]["min"])' "$1"; }

plan=$plans/hosts_gpt_data4.toml
"$smexec" "$plan" --ranks-from threads --no-compare --json --steps 4 >"$work/threads.json" 2>/dev/null
for shape in "2 2 200mbit" "4 1 100mbit"; do
    # shellcheck disable=SC2086  # three words
    timeout 120 "$hosts" run $shape "$smexec" "$plan" --no-compare --json --steps 4 >"$work/hosts.json" 2>"$work/hosts.err" || {
        cat "$work/hosts.err"
        echo "FAILED: $shape"
        exit 1
    }
    # Sums are taken in another order where hosts are told apart: equal up to rounding.
    python3 - "$(losses "$work/threads.json")" "$(losses "$work/hosts.json")" <<'PY' || { echo "FAILED: losses on $shape"; exit 1; }
import sys
a, b = ([float(x) for x in text.split()] for text in sys.argv[1:3])
sys.exit(not (len(a) == len(b) == 4 and all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b))))
PY
    # 3.37 MB of gradients: two hosts exchange as much each way, four hosts 2 (4 - 1)/4 of it; at the line's rate that takes 135 and 404 ms. The bucket's credit
    # of 32 KiB takes off at most 3 %.
    case $shape in 2*) least=0.125 ;; *) least=0.38 ;; esac
    python3 -c 'import sys; sys.exit(not float(sys.argv[1]) >= float(sys.argv[2]))' "$(step "$work/hosts.json")" "$least" || { echo "FAILED: $shape is faster than its line"; exit 1; }
    echo "$shape: $(step "$work/hosts.json") s a step"
done
