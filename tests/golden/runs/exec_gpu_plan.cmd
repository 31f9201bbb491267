smexec scenarios/llama2_7b_p4d.toml
