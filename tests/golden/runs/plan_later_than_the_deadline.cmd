smplan --target p4d.24xlarge --nodes 1 --model gpt2-xl --global-batch 64 --tokens 300B --deadline 10
