#include "python/extension/convert.h"

#include <cstdint>

#include "core/diagnostics.h"

namespace nb = nanobind;

namespace python {

nb::object to_python(const core::Value& value) {
    switch (value.kind()) {
        case core::Value::Kind::null: return nb::none();
        case core::Value::Kind::boolean: return nb::bool_(value.boolean());
        case core::Value::Kind::integer: return nb::int_(value.integer());
        case core::Value::Kind::real: return nb::float_(value.number());
        case core::Value::Kind::string: {
            // Names of files and tensors need not be UTF-8.
            const std::string& text = value.string();
            return nb::steal(
                PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
        }
        case core::Value::Kind::array: {
            nb::list items;
            for (const core::Value& item : value.items()) items.append(to_python(item));
            return items;
        }
        case core::Value::Kind::table: {
            nb::dict members;
            for (const auto& [key, member] : value.members())
                members[to_python(core::Value(key))] = to_python(member);
            return members;
        }
    }
    throw core::InternalError("broken promise: every kind of value is one of Python's");
}

nb::object to_python(const core::Diagnostics& diagnostics) {
    const auto text_or_none = [](const std::string& text) {
        return text.empty() ? nb::object(nb::none()) : to_python(core::Value(text));
    };
    const auto number_or_none = [](int number) {
        return number > 0 ? nb::object(nb::int_(number)) : nb::object(nb::none());
    };
    nb::list list;
    for (const core::Diagnostic& entry : diagnostics.entries()) {
        nb::dict one;
        one["severity"] = entry.severity == core::Severity::error ? "error" : "warning";
        one["file"] = text_or_none(entry.location.file);
        one["line"] = number_or_none(entry.location.line);
        one["column"] = number_or_none(entry.location.column);
        one["key"] = to_python(core::Value(entry.key));
        one["value"] = text_or_none(entry.value);
        one["allowed"] = to_python(core::Value(entry.allowed));
        one["message"] = to_python(core::Value(entry.message));
        one["hint"] = to_python(core::Value(entry.hint));
        list.append(one);
    }
    return list;
}

namespace {

core::Value number_of(PyObject* object, const std::string& path) {
    int overflow = 0;
    const long long integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) throw nb::type_error((path + ": the integer has more than 64 bits").c_str());
    if (PyErr_Occurred()) throw nb::python_error();
    return core::Value(static_cast<std::int64_t>(integer));
}

core::Value array_of(nb::handle object, const std::string& path) {
    core::Value array = core::Value::array();
    std::size_t i = 0;
    for (nb::handle item : object) array.append(to_value(item, path + "[" + std::to_string(i++) + "]"));
    return array;
}

core::Value table_of(nb::handle object, const std::string& path) {
    core::Value table = core::Value::table();
    for (auto [key, member] : nb::borrow<nb::dict>(object)) {
        if (!PyUnicode_Check(key.ptr()))
            throw nb::type_error((path + ": keys are text, and one is not").c_str());
        const auto name = nb::cast<std::string>(key);
        table[name] = to_value(member, path.empty() ? name : path + "." + name);
    }
    return table;
}

}  // namespace

core::Value to_value(nb::handle object, const std::string& path) {
    PyObject* const given = object.ptr();
    if (object.is_none()) return {};
    if (PyBool_Check(given)) return core::Value(given == Py_True);
    if (PyUnicode_Check(given)) return core::Value(nb::cast<std::string>(object));
    if (PyLong_Check(given)) return number_of(given, path);
    if (PyFloat_Check(given)) return core::Value(PyFloat_AS_DOUBLE(given));
    if (PyDict_Check(given)) return table_of(object, path);
    if (PyList_Check(given) || PyTuple_Check(given)) return array_of(object, path);
    if (PyObject_HasAttrString(given, "__fspath__")) return to_value(nb::steal(PyOS_FSPath(given)), path);
    if (PyIndex_Check(given)) return number_of(nb::steal(PyNumber_Index(given)).ptr(), path);
    if (PyObject_HasAttrString(given, "__float__")) {
        const nb::object number = nb::steal(PyNumber_Float(given));
        if (!number.is_valid()) throw nb::python_error();
        return core::Value(PyFloat_AS_DOUBLE(number.ptr()));
    }
    throw nb::type_error((path + ": an object of type " + Py_TYPE(given)->tp_name +
                          " is no value: dict, list, str, int, float, bool and None are")
                             .c_str());
}

}  // namespace python
