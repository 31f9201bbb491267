smsim scenarios/mnist_p3_8xlarge.toml 2>&1 >/dev/null
