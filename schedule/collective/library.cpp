#include "schedule/collective/library.h"

namespace schedule {

const std::vector<CommunicationLibrary>& communication_libraries() {
    static const std::vector<CommunicationLibrary> libraries = {
        {"auto", "NCCL on GPUs, copies through shared memory on CPUs"},
        {"nccl", "rings, trees and NVLink SHARP"},
        {"smddp",
         "SageMaker's: all-reduce summed by the nodes' CPUs in one hop each way, all-gather over a mesh of "
         "EFA; NCCL for the rest and where these do not apply"},
        {"horovod", "NCCL behind a coordinator that says which tensors are ready everywhere"},
        {"mpi", "through host memory, summed by the ranks' processor cores, without GPUDirect"},
        {"parameter-server",
         "every GPU sends its gradients to servers on the nodes' CPUs and fetches the sums"},
    };
    return libraries;
}

}  // namespace schedule
