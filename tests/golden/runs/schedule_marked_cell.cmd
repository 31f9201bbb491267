smsim schedule --from tests/golden/runs/waits_for_ever.csv
