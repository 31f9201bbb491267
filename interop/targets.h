// The writers and readers of each target; contracts in exchange.h.
#pragma once

#include "interop/exchange.h"

namespace interop {

std::optional<Export> write_smp_v1(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics);
std::optional<Export> write_smp_v2(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics);
std::optional<Export> write_smddp(const ExportSource& source, const ExportOptions& options,
                                  core::Diagnostics& diagnostics);
std::optional<Export> write_megatron(const ExportSource& source, const ExportOptions& options,
                                     core::Diagnostics& diagnostics);
std::optional<Export> write_deepspeed(const ExportSource& source, const ExportOptions& options,
                                      core::Diagnostics& diagnostics);
std::optional<Export> write_torchtitan(const ExportSource& source, const ExportOptions& options,
                                       core::Diagnostics& diagnostics);
std::optional<Export> write_nemo(const ExportSource& source, const ExportOptions& options,
                                 core::Diagnostics& diagnostics);
std::optional<Export> write_megatron_bridge(const ExportSource& source, const ExportOptions& options,
                                            core::Diagnostics& diagnostics);
std::optional<Export> write_accelerate(const ExportSource& source, const ExportOptions& options,
                                       core::Diagnostics& diagnostics);
std::optional<Export> write_kubernetes(const ExportSource& source, const ExportOptions& options,
                                       core::Diagnostics& diagnostics);
std::optional<Export> write_skypilot(const ExportSource& source, const ExportOptions& options,
                                     core::Diagnostics& diagnostics);
std::optional<Export> write_torchrun(const ExportSource& source, const ExportOptions& options,
                                     core::Diagnostics& diagnostics);
std::optional<Export> write_mpirun(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics);
std::optional<Export> write_slurm(const ExportSource& source, const ExportOptions& options,
                                  core::Diagnostics& diagnostics);

std::optional<schedule::PlanFile> read_smp_v1(const std::string& text, const std::string& path,
                                              const ImportOptions& options, core::Diagnostics& diagnostics);
std::optional<schedule::PlanFile> read_smp_v2(const std::string& text, const std::string& path,
                                              const ImportOptions& options, core::Diagnostics& diagnostics);
std::optional<schedule::PlanFile> read_smddp(const std::string& text, const std::string& path,
                                             const ImportOptions& options, core::Diagnostics& diagnostics);
std::optional<schedule::PlanFile> read_megatron(const std::string& text, const std::string& path,
                                                const ImportOptions& options, core::Diagnostics& diagnostics);
std::optional<schedule::PlanFile> read_deepspeed(const std::string& text, const std::string& path,
                                                 const ImportOptions& options,
                                                 core::Diagnostics& diagnostics);

std::optional<schedule::PlanFile> read_torchtitan(const std::string& text, const std::string& path,
                                                  const ImportOptions& options,
                                                  core::Diagnostics& diagnostics);

}  // namespace interop
