smsim scenarios/cpu_gpt_pipeline2.toml --set plan.micro_batch=many --set zz.y=1 --set training.learning_rate=inf
