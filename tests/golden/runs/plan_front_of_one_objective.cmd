smplan --pareto --target p4d.24xlarge --nodes 1 --model bert-large --global-batch 256 --objective memory --top 3
