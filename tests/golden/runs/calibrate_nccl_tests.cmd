out=$(mktemp -d)/cluster.toml; smsim calibrate --nccl-tests tests/golden/runs/nccl_tests.txt --instance p4d.24xlarge --out $out 2>/dev/null; echo "exit $?"; grep -v '^#' $out; rm $out
smsim calibrate --nccl-tests tests/golden/runs/kineto_step.json --instance p4d.24xlarge; echo "exit $?"; smsim calibrate --nccl-tests tests/golden/runs/nccl_tests.txt --instance g6.xlarge; echo "exit $?"
