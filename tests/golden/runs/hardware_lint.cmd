smsim hardware --lint
