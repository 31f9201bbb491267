smsim frameworks pytorch-fspd
