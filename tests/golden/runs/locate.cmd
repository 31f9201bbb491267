smsim locate scenarios/llama2_7b_p4d.toml tests/golden/runs/kineto_step.json --set plan.global_batch=64 --set plan.micro_batch=4; echo "exit $?"
smsim locate scenarios/llama2_7b_p4d.toml tests/golden/runs/nccl_tests.txt; echo "exit $?"; smsim locate scenarios/llama2_7b_p4d.toml missing.json; echo "exit $?"; smsim locate trace.json.gz; echo "exit $?"
smsim locate tests/golden/runs/small_gpt.toml tests/validation/flops_profile.txt; echo "exit $?"; smsim locate tests/golden/runs/small_gpt.toml tests/validation/flops_profile_engine.txt --json; echo "exit $?"
