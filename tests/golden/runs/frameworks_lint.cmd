smsim frameworks --lint
