smplan --target g4dn.12xlarge --nodes 8 --model llama-2-7b --global-batch 1024 --time-limit 0.2 --pp 8 --schedule looped-bfs
