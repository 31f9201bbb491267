smplan --target p4d.24xlarge --set cluster.memory=1e-30x --model gpt2 --global-batch 64
