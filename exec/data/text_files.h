// Windows of a text's bytes or tokens.
#pragma once

#include <memory>
#include <string>

#include "core/diagnostics_fwd.h"
#include "exec/data/data_source.h"
#include "model/model_fwd.h"

namespace exec {

// Null after a diagnostic.
std::shared_ptr<const DataSource> load_text(const std::string& path, const model::ModelGraph& graph,
                                            const DataReferrer& referrer, core::Diagnostics& diagnostics);

// Little-endian numbers of 16 or 32 bits and nothing else (nanoGPT's train.bin is of 16), or behind the
// header of llm.c, which says of how many (github.com/karpathy/llm.c, dev/data/data_common.py, as of
// 2026-11-23): 256 words of 32 bits, of which the first three are 20240520, 1 and the number of tokens of 16
// bits, or 20240801, 7 and the number of tokens of 32 bits. `bits`: of a file without a header.
std::shared_ptr<const DataSource> load_tokens(const std::string& path, int bits,
                                              const model::ModelGraph& graph, const DataReferrer& referrer,
                                              core::Diagnostics& diagnostics);

}  // namespace exec
