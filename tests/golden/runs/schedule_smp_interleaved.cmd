smsim schedule interleaved --stages 4 --micro-batches 16 --active-micro-batches 6 --forward 1 --backward-input 1 --backward-weight 1 --p2p 0 --print
