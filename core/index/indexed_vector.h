// A std::vector whose elements have ids: `operators[OperatorId]` compiles, `operators[TensorId]` does not.
// Positions as plain integers stay possible, for loops over all elements.
#pragma once

#include <vector>

#include "core/index/integers.h"

namespace core {

// `Index` is a core::Id. As a std::vector, operator[] checks nothing.
template <class Index, class T>
class IndexedVector : public std::vector<T> {
    using Base = std::vector<T>;

public:
    using Base::Base;
    using Base::operator[];

    typename Base::reference operator[](Index id) { return Base::operator[](id.index); }
    typename Base::const_reference operator[](Index id) const { return Base::operator[](id.index); }

    // The ids of all elements when the loop begins, ascending.
    IndexRange<Index> ids() const { return {0, count_of(*this)}; }
    // The id that the next element gets.
    Index next_id() const { return Index(count_of(*this)); }
};

}  // namespace core
