smplan export scenarios/llama2_70b_p4d.toml --to megatron --checkpoint states --every 0
