// Passes from compute order to a complete list in the text form: transfers, windows of gathered parameters,
// gradient reductions. They put the cells where PyTorch's pipelining puts them
// (torch.distributed.pipelining.schedules, _add_send_recv, _add_unshard_reshard, _add_reduce_grad,
// _merge_bw), so lists can be compared.
#pragma once

#include "schedule/schedule.h"

namespace schedule {

// A backward_input followed at once by the backward_weight of the same cell becomes one full backward.
Schedule merge_backward_halves(const Schedule& schedule);

// Sends follow the cell that makes their tensor. Ranks are played in turns, one cell each: a receive stands
// where its rank is when the sender reaches its send, so both ends agree on the order between two ranks. The
// compute order must be playable (InternalError otherwise).
Schedule with_transfers(const Schedule& schedule);

// Parameters of the next `most_gathered` different stages are gathered ahead, those no longer among them
// freed first, in the order of stages.
Schedule with_sharded_parameters(const Schedule& schedule, int most_gathered = 3);

// A stage's gradients are reduced right after the cell that completes them.
Schedule with_gradient_reductions(const Schedule& schedule);

}  // namespace schedule
