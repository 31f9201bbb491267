// Takes the place of the CUDA files where there is no CUDA compiler.
#include "core/errors.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/device/open.h"

namespace exec::cuda {

DeviceReport probe_device(int) {
    DeviceReport report;
    report.reason = "this program was built without CUDA";
    return report;
}

int device_count() { return 0; }

std::string describe(const DeviceReport& report) { return "no CUDA device: " + report.reason; }

std::shared_ptr<Machine> open_machine(int, bool) {
    throw core::MachineError("this program was built without CUDA");
}

std::shared_ptr<Exchange> open_exchange(Communicator&, const std::shared_ptr<Machine>&, core::Seconds) {
    throw core::MachineError("this program was built without CUDA");
}

}  // namespace exec::cuda
