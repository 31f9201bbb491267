smsim calibrate tests/golden/runs/own_runs.csv; echo "exit $?"; smsim calibrate tests/golden/runs/missing.csv --out /dev/null; echo "exit $?"
