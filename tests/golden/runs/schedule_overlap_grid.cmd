smsim schedule dualpipe-v --stages 2 --micro-batches 4 --print
