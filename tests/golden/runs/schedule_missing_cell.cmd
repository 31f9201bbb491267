smsim schedule --from tests/golden/runs/forgotten_backward.csv
