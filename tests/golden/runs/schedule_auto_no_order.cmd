smsim schedule auto --stages 2 --micro-batches 3 --memory-limit 0.5
