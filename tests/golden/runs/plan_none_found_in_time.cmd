smplan --target g4dn.12xlarge --nodes 8 --model llama-2-7b --global-batch 128 --time-limit 0.01 --pp 8 --schedule looped-bfs
