smplan --target p4d.24xlarge --nodes 1 --model gpt2 --global-batch 64 --tokens 30B --objective expected-time --finish-by 3h
