smsim
