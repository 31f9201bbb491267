out=$(CUDA_VISIBLE_DEVICES= smexec scenarios/gpt2_xl_g5.toml --backend cuda 2>&1); code=$?; echo "$out" | sed "s/\(no CUDA device: \).*/\1REASON/"; exit $code
