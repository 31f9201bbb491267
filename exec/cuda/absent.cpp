// Takes the place of the .cu files where there is no CUDA compiler.
#include "core/diagnostics.h"
#include "exec/cuda/adamw.h"
#include "exec/cuda/device.h"

namespace exec::cuda {

namespace {

[[noreturn]] void refuse(const char* call) { throw core::MachineError(std::string(call) + ": this program was built without CUDA"); }

}  // namespace

DeviceReport probe_device() {
    DeviceReport report;
    report.reason = "this program was built without CUDA";
    return report;
}

std::string describe(const DeviceReport& report) { return "no CUDA device: " + report.reason; }

FloatBuffer::FloatBuffer(std::size_t) { refuse("FloatBuffer"); }
FloatBuffer::FloatBuffer(std::span<const float>) { refuse("FloatBuffer"); }
FloatBuffer::~FloatBuffer() = default;
FloatBuffer::FloatBuffer(FloatBuffer&&) noexcept = default;
FloatBuffer& FloatBuffer::operator=(FloatBuffer&&) noexcept = default;
void FloatBuffer::upload(std::span<const float>) { refuse("upload"); }
void FloatBuffer::download(std::span<float>) const { refuse("download"); }
void update(FloatBuffer&, const FloatBuffer&, FloatBuffer&, FloatBuffer&, const AdamWStep&) { refuse("update"); }

}  // namespace exec::cuda
