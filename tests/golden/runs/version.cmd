smsim --version
