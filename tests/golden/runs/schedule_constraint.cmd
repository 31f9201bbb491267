smsim schedule interleaved-1f1b --stages 4 --chunks 2 --micro-batches 6
