CUDA_VISIBLE_DEVICES= smexec tests/golden/bad_input/plan_heads_not_divisible.toml --backend cuda
