#include "core/paint.h"

#include "core/colour.h"

namespace core {

// default: in a comment, static_cast<std::size_t> in a comment and "switch (x) { default: }" in a literal are the text's own.
int loud(Colour colour) {
    switch (colour) {
        case Colour::red: return 1;
        case Colour::green: return 2;
        default: throw "an unknown colour";
    }
}

int silent(Colour colour) {
    switch (colour) {
        case Colour::red: return 1;
        default: return static_cast<int>(static_cast<std::size_t>(colour));
    }
}

int foreign(char letter) {
    switch (letter) {
        case 'a': return 1;
        default: return 0;
    }
}

int rank(OperatorKind kind, const char* text = "switch (x) { case Colour::red: default: break; }") {
    switch (kind) {
        case OperatorKind::add: return 1;
        case OperatorKind::multiply: return 2;
    }
    return 0;
}

}  // namespace core
