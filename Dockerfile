# An image that runs the README's two commands:
#   docker build -t fastrl . && docker run --rm --shm-size=2g fastrl
# installs the package and trains a defender; the tests:
#   docker run --rm --shm-size=2g fastrl sh -c "pip install '.[test]' && pytest"
FROM rust:1-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
# PyTorch for the CPU: without this line pip takes the build with CUDA, several gigabytes. It comes before the sources, so
# that it is not downloaded again when they change.
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu

WORKDIR /fastrl
COPY . .
RUN pip install --no-cache-dir .
CMD ["fastrl-train", "cage2"]
