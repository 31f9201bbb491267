#pragma once
#include <Eigen/Core>
namespace exec::cpu::INSTRUCTION_SET {}
