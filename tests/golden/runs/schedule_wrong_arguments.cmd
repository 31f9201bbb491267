smsim schedule 1f1b zb-h1 --stages 0 --forward nan --objective speed --chunks 1e3
