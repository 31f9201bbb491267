// Families of transformers' models as tables: which key of config.json is which key of a description. Adding
// a family is adding an entry.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/reader/huggingface/config_mapper.h"

namespace model {

std::vector<std::string> table_model_types();
// False where the model_type is of no table. Every key of the config is read, known as harmless, or an error.
bool map_family(const std::string& model_type, ConfigMapper& mapper);

// Why a family that transformers knows has no table, and what to do.
struct FamilyRefusal {
    const char *reason, *hint;  // the reason goes on after "is not supported"
};
// Of families with Mamba's layers (Gu and Dao, arXiv 2312.00752), alone or between others.
std::optional<FamilyRefusal> refusal_of_family(const std::string& model_type);

}  // namespace model
