smplan --target p3 --nodes 1 --model gpt3-175b --global-batch 8
