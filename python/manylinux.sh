#!/bin/bash
# What a wheel is built with in manylinux_2_28 (AlmaLinux 8): EPEL's libraries, and Boost, fmt, Eigen and toml++ of versions
# that AlmaLinux does not have, from their own releases. Without ONNX: its graphs are not read by this wheel.
set -euo pipefail
dnf install -y epel-release
dnf install -y cmake ninja-build json-devel openssl-devel zlib-devel
prefix=/usr/local
fetch() { curl -fsSL "$1" | tar -xz -C /tmp; }
fetch https://archives.boost.io/release/1.84.0/source/boost_1_84_0.tar.gz
(cd /tmp/boost_1_84_0 && ./bootstrap.sh --with-libraries=graph,program_options --prefix=$prefix && ./b2 -j2 cxxflags=-fPIC install)
fetch https://github.com/fmtlib/fmt/archive/refs/tags/9.1.0.tar.gz
fetch https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz
fetch https://github.com/marzer/tomlplusplus/archive/refs/tags/v3.3.0.tar.gz
cmake -S /tmp/fmt-9.1.0 -B /tmp/fmt -DFMT_TEST=OFF -DBUILD_SHARED_LIBS=ON -DCMAKE_INSTALL_PREFIX=$prefix && cmake --build /tmp/fmt -j2 --target install
cmake -S /tmp/eigen-3.4.0 -B /tmp/eigen -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX=$prefix && cmake --install /tmp/eigen
cp -r /tmp/tomlplusplus-3.3.0/include/toml++ $prefix/include/
