smplan --target p4d.24xlarge --nodes 1 --model gpt2-xl --global-batch 64 --tp x,0 --sharding params --schedule zbh1,dualpipe --precision int8 --recompute all --memory-margin 95 --tokens many
