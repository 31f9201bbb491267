smexec scenarios/gpt2_xl_g5.toml --backend cuda --cuda-without gelu,speed
