cd tests/golden/runs && smsim frameworks --lint bad_frameworks.toml
