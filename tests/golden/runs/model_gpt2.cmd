smsim model gpt2
