smsim compare scenarios/bert_large_p3.toml
