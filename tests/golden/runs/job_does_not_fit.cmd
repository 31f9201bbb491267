smsim job scenarios/llama2_7b_p4d.toml --set cluster.memory=1GiB --set job.steps=10
