// Families of transformers' models as tables: which key of config.json is which key of a description. Adding
// a family is adding an entry.
#pragma once

#include <string>
#include <vector>

#include "model/reader/huggingface/config_mapper.h"

namespace model {

std::vector<std::string> table_model_types();
// False where the model_type is of no table. Every key of the config is read, known as harmless, or an error.
bool map_family(const std::string& model_type, ConfigMapper& mapper);

// Families of transformers with Mamba's layers (Gu and Dao, arXiv 2312.00752), alone or between others: no
// operator here is one.
bool has_state_space(const std::string& model_type);

}  // namespace model
