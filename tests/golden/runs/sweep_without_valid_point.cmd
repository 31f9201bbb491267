smsim scenarios/llama2_7b_p4d.toml --sweep plan.tensor_parallel=3,5 --json | tr -d '\n' | grep -o '"errors": \[[^]]*\]}$' | tr -s ' '
