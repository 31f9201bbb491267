smplan --target p4d.24xlarge --nodes 1 --model gpt2 --global-batch 8 --out /tmp/one.toml --csv /tmp/./one.toml --certificate /tmp/two.json
