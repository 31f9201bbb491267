// What the facade answers: one document and one text for every question, whoever asks. The command lines show
// it, Python makes objects of it; neither computes anything of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/output.h"
#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "core/value.h"

namespace api {

enum class Outcome {
    good,
    wrong_input,  // errors of `diagnostics` say what; there is no document
    no_plan,      // nothing fits, or a tolerance is exceeded; the document is there where there is an answer
};

struct Reply {
    Outcome outcome = Outcome::good;
    core::Value document = {};           // the contract's keys
    std::string text = {};               // the same for a person
    bool is_file = false;                // the text is a file's: shown as it is
    core::Diagnostics diagnostics = {};  // errors where there is no document, else warnings
    std::vector<OutputFile> files = {};  // to be written once the answer is shown
    bool is_stopped = false;             // by the caller: the best so far, or a part, and not the whole
};

// Wrong input, or where there are no errors nothing to say.
Reply refusal(core::Diagnostics diagnostics, Outcome outcome = Outcome::wrong_input);

// How far long work is. What is not known of a kind of work is absent.
struct Progress {
    std::size_t done = 0, all = 0;  // plans looked at of those in the space; rows; 0: unknown
    std::optional<double> best = {}, lower_bound = {};  // of the objective, in its unit
    double seconds = 0;                                 // since it began
};

// How a caller follows long work, and how wide the text may be that it shows. Functions may be called from
// any thread: `progress` by one at a time, `is_stopped` by several at once.
struct Watch {
    std::function<void(const Progress&)> progress = {};
    std::function<bool()> is_stopped = {};  // true: end with the best so far, as a time limit does
    std::size_t width = core::usual_width;  // of tables, in columns
};

// Work was stopped before it had anything to answer with.
struct Stopped {};

}  // namespace api
