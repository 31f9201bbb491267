#pragma once
#include <cuda_runtime.h>
namespace exec::cuda {}
