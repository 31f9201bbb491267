smsim --help
