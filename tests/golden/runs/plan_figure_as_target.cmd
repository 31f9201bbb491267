smplan --target p5.48xlarge,network_bandwidth=2x --model gpt2
