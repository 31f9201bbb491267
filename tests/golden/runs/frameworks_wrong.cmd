smsim frameworks --lint bad_frameworks.toml
