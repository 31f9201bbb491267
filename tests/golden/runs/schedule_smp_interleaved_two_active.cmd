smsim schedule interleaved --stages 4 --micro-batches 16 --active-micro-batches 2 --forward 1 --backward-input 1 --backward-weight 1 --p2p 0 --json
