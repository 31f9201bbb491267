smsim model gpt-2
