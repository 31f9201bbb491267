smplan --target p4d.24xlarge --set cluster.memory=1B --model gpt2 --global-batch 64
