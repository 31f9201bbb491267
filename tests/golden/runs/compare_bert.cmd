smsim compare scenarios/bert_large_p3.toml scenarios/bert_large_p3dn.toml | sed -E "s/ {2,}/  /g; s/[-+]{2,}//; s/[0-9.]+ (m?s)/N \1/g; s/[0-9.]+ times/N times/; s/[-+]N/N/"
