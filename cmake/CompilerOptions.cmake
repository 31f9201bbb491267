# C++20, warnings, optimisation, faster compiler and linker front ends when present.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# CMake's Release is -O3: -O2 compiles faster and is as fast everywhere but in the kernels of exec, which ask for -O3 themselves.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

# Warnings are errors with the compiler we build with; a newer one, which may warn of more, must not keep a user from building.
set(is_our_compiler OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(is_our_compiler ON)
endif()
option(SMSIM_WERROR "treat warnings as errors" ${is_our_compiler})

add_library(compiler_options INTERFACE)
# g++ 12 warns falsely on `"text" + std::string` and std::string::insert where it inlines them (GCC bugs 105651 and
# 105329), with precompiled headers under three names.
set(warnings -Wall -Wextra -Wpedantic $<$<BOOL:${SMSIM_WERROR}>:-Werror> 
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds>)
target_compile_options(compiler_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${warnings}>)

# For the sanitizer presets: SMSIM_SANITIZE=address,undefined or thread.
set(SMSIM_SANITIZE "" CACHE STRING "sanitizers to build with, as -fsanitize= takes them")
if(SMSIM_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SMSIM_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  # These four checks cost 40 % of the compile time; the address sanitizer finds most of what they would.
  if(SMSIM_SANITIZE MATCHES "undefined")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,object-size,vptr>)
  endif()
  add_link_options(-fsanitize=${SMSIM_SANITIZE})
  # -Wmaybe-uninitialized: g++ 12 with -fsanitize=address warns falsely inside std::regex (GCC bug 105562).
  target_compile_options(compiler_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

option(SMSIM_FUZZ "build the fuzz targets of tests/fuzz (clang only)" OFF)
if(SMSIM_FUZZ)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

option(SMSIM_CCACHE "compile through ccache where it is installed" ON)
if(SMSIM_CCACHE)
  find_program(CCACHE_PROGRAM ccache)
else()
  set(CCACHE_PROGRAM CCACHE_PROGRAM-NOTFOUND)
endif()
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines,time_macros: without them nothing that reads a precompiled header is cached. Depend mode: g++ names the
  # headers of a file as it compiles it, so that ccache need not preprocess each file a first time.
  set(ccache_settings CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros)
  # Objects of another checkout serve too: paths are relative.
  if(NOT DEFINED ENV{CCACHE_BASEDIR})
    list(APPEND ccache_settings "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1)
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER /usr/bin/env ${ccache_settings} "${CCACHE_PROGRAM}")
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()
# A tool loads only the shared libraries that it uses.
add_link_options(-Wl,--as-needed)
