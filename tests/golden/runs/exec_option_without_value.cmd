smexec scenarios/cpu_gpt_pipeline2.toml --steps --json
