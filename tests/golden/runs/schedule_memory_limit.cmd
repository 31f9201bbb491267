smsim schedule zb-1p --stages 3 --micro-batches 5 --stage-times tests/golden/runs/unequal_stages.csv --p2p 1 --memory-limit 2 --print
