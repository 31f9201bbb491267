smsim ablate scenarios/llama2_7b_p4d.toml | sed -E "s/[-+]?[0-9.]+ (s|ms|min|%|GiB|TiB)/N \1/g; s/ {2,}/  /g"
