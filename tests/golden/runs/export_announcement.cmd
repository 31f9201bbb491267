smplan export scenarios/mnist_p3_8xlarge.toml --to sagemaker-smp-v1
