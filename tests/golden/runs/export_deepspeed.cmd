smplan export scenarios/cpu_gpt_sharded2.toml --to deepspeed
