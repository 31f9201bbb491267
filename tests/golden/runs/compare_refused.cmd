smsim compare scenarios/bert_large_p3.toml tests/golden/bad_input/scenario_unknown_key.toml --json
