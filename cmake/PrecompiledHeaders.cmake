# Headers of the standard library and fmt that many files include, compiled once per set of flags: g++ reads its image
# in a tenth of the time. A file still includes what it uses: CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without.
# Our own headers stay out, or touching one would compile everything again.
set(standard_headers
    <algorithm> <array> <charconv> <chrono> <cmath> <cstdint> <deque> <filesystem> <fmt/core.h> <fstream> <functional>
    <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple>
    <utility> <vector>)

# An image serves only the optimisation level it was made with: one for -O2, exec (-O3) makes its own.
add_library(standard_headers OBJECT "${CMAKE_SOURCE_DIR}/cmake/empty.cpp")
target_link_libraries(standard_headers PRIVATE compiler_options fmt::fmt)
target_precompile_headers(standard_headers PRIVATE ${standard_headers})
