smplan --target p4d.24xlarge --nodes 1 --model gpt2 --objective expected-time --purchase gold --price p4d=3 --finish-by soon --confidence 200 --deadline 3
