smsim hardware
