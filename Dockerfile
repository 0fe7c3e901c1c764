# safevla-bench in a container, for a user without root. `make image TARGET=libero` builds it with buildah, podman or docker:
#   core     judges records        libero     rolls out LIBERO        robocasa   rolls out RoboCasa and robosuite
#   develop  what `make test` needs of a system, for .devcontainer
# Images render on Mesa's CPU renderer; with an NVIDIA GPU and its container toolkit, on that.   docs/howto/clusters.md
# BASE=debian@sha256:DIGEST fixes the base too.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
ENV DEBIAN_FRONTEND=noninteractive PATH=/opt/safevla/bin:$PATH PYTHONNOUSERSITE=1 HOME=/home/safevla
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --home-dir /home/safevla safevla \
    && install -d -o safevla /home/safevla && chmod 1777 /home/safevla \
    && python3 -m venv /opt/safevla
ENTRYPOINT ["safevla"]
CMD ["--help"]

FROM python AS core
COPY . /src
RUN pip install --no-cache-dir --require-hashes -r /src/constraints/hashed/core.txt \
    && pip install --no-cache-dir --no-deps --no-build-isolation /src
USER safevla
WORKDIR /home/safevla

FROM python AS graphics
ENV MUJOCO_GL=egl NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgl1 libegl1 libegl-mesa0 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

FROM graphics AS libero
COPY . /src
RUN pip install --no-cache-dir --require-hashes -r /src/constraints/hashed/libero.txt \
    && pip install --no-cache-dir --no-deps --no-build-isolation /src
USER safevla
WORKDIR /home/safevla

FROM graphics AS robocasa
ENV SAFEVLA_ROBOCASA_ASSETS=/assets
COPY . /src
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev linux-libc-dev python3-dev \
    && pip install --no-cache-dir --require-hashes -r /src/constraints/hashed/robocasa.txt \
    && pip install --no-cache-dir --no-deps --no-build-isolation /src \
    && apt-get purge -y --auto-remove gcc libc6-dev linux-libc-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*
USER safevla
WORKDIR /home/safevla

FROM graphics AS develop
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium git make poppler-utils \
    && rm -rf /var/lib/apt/lists/*
USER safevla
ENTRYPOINT []
CMD ["bash"]
