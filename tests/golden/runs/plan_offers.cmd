smplan --target p4d.24xlarge,p3dn.24xlarge --nodes 1 --model gpt2 --global-batch 64 --tokens 30B --objective expected-cost --finish-by 2d --budget 400 --csv /dev/stdout
