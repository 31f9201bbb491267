smplan --pareto --target p3.2xlarge --nodes 1 --model bert-base --global-batch 64 --micro-batch 16,32 --csv /dev/stdout
