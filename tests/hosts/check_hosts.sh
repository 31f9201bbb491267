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

# Each host keeps its ranks' checkpoint files in a folder of its own, and the training goes on from them.
# emulated_hosts.sh names hosts anew in every run: folders go by a host's last word, h0 and h1.
# shellcheck disable=SC2016  # expanded on the hosts
local_states='exec "$0" "$1" --no-compare --json --checkpoint-local --checkpoint "$2/${HOSTNAME##*h}" --steps "$3" --resume'
for steps in 3 6; do
    timeout 120 "$hosts" run 2 2 off bash -c 'HOSTNAME=$(hostname); '"$local_states" "$smexec" "$plan" "$work/states" "$steps" >"$work/local.json" 2>"$work/local.err" || {
        cat "$work/local.err"
        echo "FAILED: a folder of each host's own, to step $steps"
        exit 1
    }
done
for rank in 0 1 2 3; do
    own=$((rank / 2)) other=$((1 - rank / 2))
    [[ -f $work/states/$own/step-00000006/rank-000$rank.safetensors && ! -e $work/states/$other/step-00000006/rank-000$rank.safetensors ]] || {
        echo "FAILED: rank $rank's file does not lie on its own host alone"
        exit 1
    }
done
"$smexec" "$plan" --ranks-from threads --no-compare --json --steps 6 >"$work/threads.json" 2>/dev/null
python3 - "$work/threads.json" "$work/local.json" <<'PY' || { echo "FAILED: losses with folders of the hosts' own"; exit 1; }
import json, sys
def losses(path):
    text = open(path).read()
    return json.JSONDecoder().raw_decode(text[text.index("{"):])[0]["losses"]
a, b = losses(sys.argv[1])[3:], losses(sys.argv[2])
sys.exit(not (len(a) == len(b) == 3 and all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b))))
PY
echo "2 2 with a folder of each host's own: resumed"

# One host of three has a quarter of the others' rate: the slowest link of each exchange tells its time, and the prediction knows.
sed 's/^data_parallel = 4/data_parallel = 3/' "$plan" >"$work/three.toml"
timeout 200 "$hosts" run 3 1 200mbit,200mbit,50mbit "$smexec" "$work/three.toml" --json --steps 6 >"$work/rates.json" 2>"$work/rates.err" || {
    cat "$work/rates.err"
    echo "FAILED: hosts of different rates"
    exit 1
}
python3 - "$work/rates.json" <<'PY' || { echo "FAILED: the prediction for hosts of different rates"; exit 1; }
import json, sys
text = open(sys.argv[1]).read()
run = json.JSONDecoder().raw_decode(text[text.index("{"):])[0]
# A ring of three sends 2 (3 - 1)/3 of 3.37 MB over each link: 0.72 s at 50 Mbit/s, 0.18 s at 200.
print(f"200, 200 and 50 Mbit/s: {run['predicted_step_s']:.3f} s predicted, {run['measured_step_s']['median']:.3f} s measured")
sys.exit(not (run["measured_step_s"]["min"] >= 0.68 and abs(run["error_pct"]) <= 25))
PY
