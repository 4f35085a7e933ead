# One image for the head, the workers and the driver of the compose demo: all run the same Podium and the same Ray.
# docs/docker.md says what is in it, how large it is, and how to get PyTorch's CPU build.
FROM python:3.11-slim-bookworm AS requirements
COPY pyproject.toml constraints.txt docker/requirements.py /source/
RUN python /source/requirements.py

# Dependencies first: this stage is built again only when one of them changes, not with the code.
FROM python:3.11-slim-bookworm AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The index to take torch from, such as PyTorch's index of CPU builds; empty means pip's own.
ARG TORCH_INDEX_URL=""
COPY --from=requirements /wanted/constraints.txt /
RUN python -m venv --without-pip /opt/venv && python -m venv /opt/build \
    && /opt/build/bin/pip install "hatchling>=1.27" \
    && /opt/build/bin/pip --python /opt/venv/bin/python install --no-compile -c /constraints.txt \
        ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch
COPY --from=requirements /wanted/requirements.txt /
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --no-compile -c /constraints.txt -r /requirements.txt
# What no process of Podium opens: tests, C++ headers and test programs of torch, Ray's Java, RLlib and dashboard pages.
RUN cd /opt/venv/lib/python3*/site-packages \
    && rm -rf torch/test torch/include torch/share ray/jars ray/rllib ray/dashboard/client/build \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && find sympy networkx -depth -type d -name tests -exec rm -rf {} +
# Bytecode of modules that are imported, and of no others: processes start seconds faster, all of it would be 200 MB, and
# the user that the containers run as cannot write it later.
COPY docker/imported.py /
RUN /opt/venv/bin/python /imported.py

FROM dependencies AS package
WORKDIR /source
COPY pyproject.toml README.md ./
COPY migrations migrations
COPY examples examples
COPY core core
COPY app app
COPY web web
RUN /opt/build/bin/pip wheel -q --no-deps --no-build-isolation -w /wheel . \
    && /opt/build/bin/pip --python /opt/venv/bin/python install -q --no-deps --no-index --prefix /package /wheel/*.whl

FROM python:3.11-slim-bookworm
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --uid 1000 --create-home podium && mkdir /runs && chown podium /runs
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=package /package /opt/venv
USER 1000
WORKDIR /home/podium
VOLUME /runs
CMD ["podium", "demo", "--exit", "--runs-dir", "/runs"]
