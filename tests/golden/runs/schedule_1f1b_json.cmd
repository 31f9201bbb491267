smsim schedule 1f1b --stages 4 --micro-batches 8 --forward 1 --backward-input 1 --backward-weight 1 --p2p 0 --json
