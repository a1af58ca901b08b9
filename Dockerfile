# Redis or Valkey with redis-rl:
#
#   docker build --target redis --tag redis-rl .
#   docker build --target valkey --tag valkey-rl .
#
# The module needs the C library it was built with or a newer one, so the builder is no newer than
# the images it is for.
FROM rust:1-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends libclang-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /redis-rl
COPY . .
RUN cargo build --locked --release && strip target/release/librl.so

# Not in the directory whose modules the image loads by itself: the module would be loaded twice.
FROM redis:8 AS redis
COPY --from=build --chmod=0755 /redis-rl/target/release/librl.so /usr/local/lib/librl.so
CMD ["redis-server", "--loadmodule", "/usr/local/lib/librl.so"]

FROM valkey/valkey:9 AS valkey
COPY --from=build --chmod=0755 /redis-rl/target/release/librl.so /usr/local/lib/librl.so
CMD ["valkey-server", "--loadmodule", "/usr/local/lib/librl.so"]
