#include "python/extension/follow.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

namespace nb = nanobind;

namespace python {

namespace {

// Between looks at signals: nobody notices a twentieth of a second, and it costs nothing.
constexpr std::chrono::milliseconds between_looks(50);

nb::dict to_dict(const api::Progress& at) {
    const auto number_or_none = [](const std::optional<double>& number) {
        return number ? nb::object(nb::float_(*number)) : nb::object(nb::none());
    };
    nb::dict told;
    told["done"] = at.done;
    told["all"] = at.all;
    told["best"] = number_or_none(at.best);
    told["lower_bound"] = number_or_none(at.lower_bound);
    told["seconds"] = at.seconds;
    return told;
}

// The last progress of the working thread, for the one that waits.
class Bulletin {
public:
    void put(const api::Progress& at) {
        const std::lock_guard lock(guard_);
        latest_ = at;
    }
    std::optional<api::Progress> take() {
        const std::lock_guard lock(guard_);
        return std::exchange(latest_, std::nullopt);
    }

private:
    std::mutex guard_;
    std::optional<api::Progress> latest_;
};

// What ended the work before its end.
struct Ending {
    std::optional<nb::python_error> raised;
    bool is_interrupted = false;

    // Takes the error that is set.
    void take_error() {
        nb::python_error error;
        if (error.matches(PyExc_KeyboardInterrupt)) is_interrupted = true;
        else if (!raised) raised.emplace(std::move(error));
    }
};

void tell(const nb::object& progress, Bulletin& bulletin, std::atomic<bool>& is_stopped, Ending& ending) {
    const std::optional<api::Progress> at = bulletin.take();
    if (!at || progress.is_none() || is_stopped) return;
    try {
        if (progress(to_dict(*at)).ptr() == Py_False) is_stopped = true;
    } catch (nb::python_error& error) {
        error.restore();
        ending.take_error();
        is_stopped = true;
    }
}

}  // namespace

bool follow(nb::object progress, const std::function<void(const api::Watch&)>& work) {
    std::atomic<bool> is_stopped = false;
    Bulletin bulletin;
    api::Watch watch;
    watch.is_stopped = [&] { return is_stopped.load(std::memory_order_relaxed); };
    if (!progress.is_none()) watch.progress = [&](const api::Progress& at) { bulletin.put(at); };
    Ending ending;
    std::future<void> answer = std::async(std::launch::async, [&] { work(watch); });
    for (bool is_done = false; !is_done;) {
        {
            const nb::gil_scoped_release others_may_run;
            is_done = answer.wait_for(between_looks) == std::future_status::ready;
        }
        if (PyErr_CheckSignals() != 0) {
            ending.take_error();
            is_stopped = true;
        }
        tell(progress, bulletin, is_stopped, ending);
    }
    try {
        answer.get();
    } catch (const api::Stopped&) {
        if (!ending.raised) {
            PyErr_SetNone(PyExc_KeyboardInterrupt);
            throw nb::python_error();
        }
    }
    if (ending.raised) throw std::move(*ending.raised);
    return ending.is_interrupted;
}

}  // namespace python
