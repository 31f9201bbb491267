smplan --target p4d.24xlarge --global-batch -4
