smsim schedule 1f1b --stages 3 --micro-batches 4 --stage-times tests/golden/runs/unequal_stages.csv --memory-limit 2
