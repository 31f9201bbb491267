smsim schedule auto --stages 3 --micro-batches 4 --stage-times tests/golden/runs/unequal_stages.csv --p2p 1 --memory-limit 2 --objective span --print
