smplan --target p4d.24xlarge --model nope
