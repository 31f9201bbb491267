smplan --target p4d.24xlarge --set cluster.network_bandwidth=fast --set plan.micro_batch=2 --set cluster.nodes=4 --set cluster.memroy=2x --nodes 1 --model gpt2 --global-batch 8
