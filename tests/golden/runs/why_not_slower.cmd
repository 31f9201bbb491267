smplan why-not tests/golden/runs/why_not_slower.toml
