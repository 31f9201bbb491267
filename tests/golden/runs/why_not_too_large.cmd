smplan why-not tests/golden/runs/why_not_too_large.toml
