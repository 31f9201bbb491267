smsim model gpt2 --lenght 3
