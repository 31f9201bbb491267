smplan why-not tests/golden/runs/why_not_refused.toml
