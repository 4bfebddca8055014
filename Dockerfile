# An image that trains a defender as an ordinary user; the volume keeps the run:
#   docker build -t fastrl . && docker run --rm --shm-size=2g -v fastrl-runs:/work/runs fastrl
# The tests:
#   docker run --rm --shm-size=2g --workdir /fastrl fastrl sh -c "pip install '.[test]' && pytest"
FROM rust:1-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 fastrl \
    && python3 -m venv /opt/venv \
    && mkdir -p /fastrl /work/runs \
    && chown --recursive fastrl:fastrl /opt/venv /fastrl /work
USER fastrl
ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
# PyTorch for the CPU: without this line pip takes the build with CUDA, several gigabytes. It comes before the sources, so
# that it is not downloaded again when they change.
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu

WORKDIR /fastrl
COPY --chown=fastrl:fastrl . .
RUN pip install --no-cache-dir .

# Run directories are made in the folder runs, here that of the volume.
WORKDIR /work
VOLUME ["/work/runs"]
CMD ["fastrl-train", "cage2"]
