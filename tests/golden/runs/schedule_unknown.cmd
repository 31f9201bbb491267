smsim schedule 1f2b --stages 4 --micro-batches 8
