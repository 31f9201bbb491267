smsim schedule auto --stages 2 --chunks 2 --micro-batches 3 --memory-limit 4 --print
