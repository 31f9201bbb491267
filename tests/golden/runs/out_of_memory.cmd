smsim scenarios/llama2_7b_p4d.toml --set plan.micro_batch=8 --set plan.recompute=none | grep -E '^(Does not fit|  (19 compute|micro-batch 0|asks for|held then))'
