smexec tests/golden/runs/nccl_plan.toml
