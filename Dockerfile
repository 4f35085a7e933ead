# One image for the head, the workers and the driver of the compose demo: all run the same Podium and the same Ray.
FROM python:3.11-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/podium

# Dependencies first: they change less often than the code.
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir -p core app web migrations examples && touch core/__init__.py app/__init__.py web/__init__.py \
    && pip install -c constraints.txt . && pip uninstall -y podium && rm -rf core app web migrations examples

COPY core core
COPY app app
COPY web web
COPY migrations migrations
COPY examples examples
RUN pip install --no-deps .

RUN useradd --create-home podium && mkdir -p /runs && chown podium /runs
USER podium
WORKDIR /home/podium
VOLUME /runs
CMD ["podium", "demo", "--exit", "--runs-dir", "/runs"]
