smsim --version | sed 's/ (.*)/ (COMMIT)/'
