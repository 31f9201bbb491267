smsim schedule interleaved-1f1b --stages 2 --chunks 2 --micro-batches 2 --with sharding --print
