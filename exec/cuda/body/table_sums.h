// The gradient of a table whose rows were picked by ids: rows with one id are added up in their order, the
// same bits every time, without atomic additions.
//
// Ids are sorted together with the numbers of their rows (Batcher's bitonic network, AFIPS 1968: as many
// launches as it has steps between blocks). TokenRange in that order are added up in chunks, so that a word
// that stands everywhere is the work of many blocks; what a run of one id leaves in several chunks is added
// up last.
#pragma once

#include "exec/cuda/body/elementwise.h"

namespace exec::cuda::kernel_body {

using RowKey = std::uint64_t;  // id in the table in the upper half, row in the lower
inline constexpr std::uint32_t no_id =
    0xFFFFFFFFu;  // of ids that another rank's part of the table has, and of padding: behind all others
inline constexpr std::int64_t keys_per_block = 1024;
inline constexpr std::int64_t places_per_chunk = 32;

SMSIM_HOST_DEVICE std::uint32_t id_of(RowKey key) { return static_cast<std::uint32_t>(key >> 32); }
SMSIM_HOST_DEVICE std::int64_t row_of(RowKey key) { return key & 0xFFFFFFFFu; }

// Pair number p of the network's step that compares elements `distance` apart in runs of `size`.
SMSIM_DEVICE void order_pair(RowKey* keys, std::int64_t p, std::int64_t distance, std::int64_t size,
                             std::int64_t origin) {
    const std::int64_t low = 2 * p - (p & (distance - 1));
    const RowKey a = keys[low], b = keys[low + distance];
    const bool ascends = ((origin + low) & size) == 0;
    if ((a > b) == ascends) {
        keys[low] = b;
        keys[low + distance] = a;
    }
}

// A block's keys in shared memory: made from ids and sorted (`merged` = 0), or the last steps of a merge to
// runs of `merged`.
struct SortBlock {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "sort_rows";
    std::int64_t rows, first, table, own, merged;
    const std::int64_t* ids;
    RowKey* keys;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        RowKey* here = t.template shared<RowKey>();
        const std::int64_t origin = t.block() * own;
        for (std::int64_t i = t.thread(); i < own; i += t.threads())
            here[i] = merged > 0 ? keys[origin + i] : key_of(origin + i);
        t.synchronize();
        if (merged > 0) merge(t, here, origin, merged);
        else
            for (std::int64_t size = 2; size <= own; size *= 2) merge(t, here, origin, size);
        for (std::int64_t i = t.thread(); i < own; i += t.threads()) keys[origin + i] = here[i];
    }
    SMSIM_DEVICE RowKey key_of(std::int64_t row) const {
        const std::int64_t id = row < rows ? ids[row] - first : -1;
        const bool is_here = id >= 0 && id < table;
        return static_cast<RowKey>(is_here ? static_cast<std::uint32_t>(id) : no_id) << 32 | row;
    }
    template <class Thread>
    SMSIM_DEVICE void merge(const Thread& t, RowKey* here, std::int64_t origin, std::int64_t size) const {
        for (std::int64_t distance = (size < own ? size : own) / 2; distance > 0; distance /= 2) {
            for (std::int64_t p = t.thread(); p < own / 2; p += t.threads())
                order_pair(here, p, distance, size, origin);
            t.synchronize();
        }
    }
};

// A step between blocks.
struct SortStep {
    static constexpr const char* name = "sort_rows_step";
    std::int64_t distance, size;
    RowKey* keys;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t p) const {
        order_pair(keys, p, distance, size, 0);
    }
};

// A chunk of the sorted keys a block. Sums of runs that lie within go to the table; of the run that came in
// and of the one that goes on to partials [chunk][2][width].
template <class T, int V>
struct RunSums {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "run_sums";
    std::int64_t rows, width;
    const RowKey* keys;
    const T* dy;
    Sums dtable;
    float* partials;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        RowKey* here = t.template shared<RowKey>();  // one more on either side
        const std::int64_t begin = t.block() * places_per_chunk,
                           end = begin + places_per_chunk < rows ? begin + places_per_chunk : rows;
        const auto count = static_cast<int>(end - begin);
        for (int i = t.thread(); i < count + 2; i += t.threads()) {
            const std::int64_t index = begin + i - 1;
            here[i] = index >= 0 && index < rows ? keys[index] : ~RowKey{0};
        }
        t.synchronize();
        const bool comes_in = begin > 0 && id_of(here[0]) == id_of(here[1]);
        constexpr int at_once = 4;
        for (std::int64_t c = std::int64_t{t.thread()} * V; c < width; c += std::int64_t{t.threads()} * V) {
            float sum[V] = {};
            bool is_first_run = true;
            for (int i = 0; i < count; i += at_once) {
                Pack<T, V> packs[at_once] = {};
                SMSIM_UNROLL
                for (int j = 0; j < at_once; ++j)
                    if (i + j < count && id_of(here[i + j + 1]) != no_id)
                        packs[j] = load<T, V>(dy + row_of(here[i + j + 1]) * width + c);
                SMSIM_UNROLL
                for (int j = 0; j < at_once; ++j) {
                    if (i + j >= count) break;
                    const std::uint32_t id = id_of(here[i + j + 1]);
                    if (id == no_id) break;
                    for (int v = 0; v < V; ++v) sum[v] += to_float(packs[j].at[v]);
                    const bool is_last = i + j + 1 == count, goes_on = id_of(here[i + j + 2]) == id;
                    if (goes_on && !is_last) continue;
                    const bool came_in = is_first_run && comes_in;
                    for (int v = 0; v < V; ++v) {
                        if (came_in || goes_on)
                            partials[(t.block() * 2 + (came_in ? 0 : 1)) * width + c + v] = sum[v];
                        else add_at(dtable, id * width + c + v, sum[v]);
                        sum[v] = 0;
                    }
                    is_first_run = false;
                }
            }
        }
    }
};

// The run that begins in a chunk and goes on beyond it.
struct LongRunSums {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "long_run_sums";
    std::int64_t rows, width;
    const RowKey* keys;
    const float* partials;
    Sums dtable;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t end = (t.block() + 1) * places_per_chunk;
        if (end >= rows) return;
        const std::uint32_t id = id_of(keys[end - 1]);
        if (id == no_id || id_of(keys[end]) != id) return;
        const std::int64_t begin = end - places_per_chunk;
        if (begin > 0 && id_of(keys[begin - 1]) == id) return;  // it came in
        std::int64_t last = t.block() + 1;
        while ((last + 1) * places_per_chunk < rows && id_of(keys[(last + 1) * places_per_chunk]) == id)
            ++last;
        for (std::int64_t c = t.thread(); c < width; c += t.threads()) {
            float sum = partials[(t.block() * 2 + 1) * width + c];
            SMSIM_UNROLL_4
            for (std::int64_t chunk = t.block() + 1; chunk <= last; ++chunk)
                sum += partials[chunk * 2 * width + c];
            add_at(dtable, id * width + c, sum);
        }
    }
};

inline std::int64_t sorted_length(std::int64_t rows) {
    std::int64_t length = 2;
    while (length < rows) length *= 2;
    return length;
}
inline std::size_t table_workspace(std::int64_t rows, std::int64_t width) {
    return sorted_length(rows) * sizeof(RowKey) +
           (ceiling(rows, places_per_chunk) * 2 * width) * sizeof(float);
}

inline void embedding_weight(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t first,
                             std::int64_t table, const std::int64_t* ids, const void* dy, Sums dtable,
                             void* workspace) {
    const std::int64_t length = sorted_length(rows), own = at_most(length, keys_per_block);
    auto* keys = as<RowKey>(workspace);
    auto* partials = reinterpret_cast<float*>(keys + length);
    const int threads = own >= 512 ? 256 : own >= 128 ? 64 : 32;
    const auto sort_blocks = [&](std::int64_t merged) {
        launch(s, length / own, threads, own * sizeof(RowKey),
               SortBlock{rows, first, table, own, merged, ids, keys});
    };
    sort_blocks(0);
    for (std::int64_t size = 2 * own; size <= length; size *= 2) {
        for (std::int64_t distance = size / 2; distance >= own; distance /= 2)
            each<1>(s, length / 2, SortStep{distance, size, keys});
        sort_blocks(size);
    }
    const std::int64_t chunks = ceiling(rows, places_per_chunk);
    constexpr std::size_t shared = (places_per_chunk + 2) * sizeof(RowKey);
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const T* gradient = as<const T>(dy);
        const int lanes = width > 128 * wide ? 256 : width > 32 * wide ? 128 : 32;
        if (width % wide == 0 && is_aligned(dy, 16))
            launch(s, chunks, lanes, shared, RunSums<T, wide>{rows, width, keys, gradient, dtable, partials});
        else launch(s, chunks, lanes, shared, RunSums<T, 1>{rows, width, keys, gradient, dtable, partials});
    });
    launch(s, chunks, width > 128 ? 256 : 32, 0, LongRunSums{rows, width, keys, partials, dtable});
}

}  // namespace exec::cuda::kernel_body
