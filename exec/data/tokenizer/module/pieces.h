// The C interface of the module that has SentencePiece in it. Debian's libsentencepiece carries symbols of a
// protobuf of its own (3.14), which end a program that is linked with another one, as ours is for ONNX: so
// the module is loaded into a name space of its own (dlmopen), with a libstdc++ of its own, and nothing of
// C++ crosses this border.
#pragma once

#include <cstddef>

namespace exec::pieces {

extern "C" {
using TakeToken = void (*)(void* into, int token);

// Null when the file is no model; then `message` says why, in at most `room` octets with its end.
void* smsim_pieces_open(const char* path, char* message, std::size_t room);
void smsim_pieces_close(void* model);
int smsim_pieces_count(const void* model);
int smsim_pieces_end(const void* model);  // negative = none
// False when the library fails.
bool smsim_pieces_encode(const void* model, const char* text, std::size_t bytes, TakeToken take, void* into);
}

}  // namespace exec::pieces
