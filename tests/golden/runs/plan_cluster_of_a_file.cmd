smplan --target tests/golden/runs/plan_cluster_of_a_file.toml --model gpt3-175b --global-batch 32 --pp 1 --tp 1 --recompute none --offload none
