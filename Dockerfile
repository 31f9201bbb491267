# docker build -t smsim . ; docker run --rm smsim smplan --target p4d.24xlarge
# The build stage has compilers, the image only what the tools load.
FROM debian:12-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        cmake dpkg-dev esbuild file g++ git mold ninja-build node-d3 \
        libboost-graph-dev libboost-program-options-dev libdnnl-dev libeigen3-dev libfmt-dev libonnx-dev \
        libopenmpi-dev libprotobuf-dev libsentencepiece-dev libssl-dev libtomlplusplus-dev nlohmann-json3-dev protobuf-compiler \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DSMSIM_PYTHON=OFF \
    && ninja -C /build smsim smplan smexec \
    && cd /build && cpack -G DEB && mkdir /packages && cp ./*.deb /packages/

FROM debian:12-slim
COPY --from=build /packages /packages
RUN apt-get update \
    && apt-get install -y --no-install-recommends /packages/*.deb \
    && rm -rf /var/lib/apt/lists/* /packages \
    && useradd --create-home smsim
USER smsim
WORKDIR /home/smsim
CMD ["smsim", "--help"]
