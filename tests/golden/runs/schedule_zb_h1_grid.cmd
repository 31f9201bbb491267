smsim schedule zb-h1 --stages 3 --micro-batches 4 --print
