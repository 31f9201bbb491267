smsim schedule 1f1b --stages 2 --micro-batches 2 --with transfers --json
