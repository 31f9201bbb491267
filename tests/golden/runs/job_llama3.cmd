smsim job scenarios/job_llama3_405b.toml --set job.simulation.runs=500
