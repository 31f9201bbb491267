smsim compair a.toml b.toml
