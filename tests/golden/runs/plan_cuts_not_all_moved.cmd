smplan --target p3.8xlarge --nodes 2 --model bert-base --global-batch 32 --time-limit 0.26 | grep -E "stopped|gap to"
