smsim model mnist-convnet --operators
