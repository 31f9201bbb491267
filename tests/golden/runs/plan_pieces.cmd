smplan --pareto --target g5.12xlarge --nodes 1 --model gpt2-medium --global-batch 16 --tp 4 --micro-batch 16 --tensor-overlap 1,2,4 --csv /dev/stdout
