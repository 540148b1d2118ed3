# mpd-agl with its native kernels: docker build -t mpd-agl . && docker run --rm -v "$PWD/runs:/home/snn/runs" mpd-agl demo
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu /wheels/*.whl && rm -rf /wheels
RUN useradd --create-home snn
USER snn
WORKDIR /home/snn
ENTRYPOINT ["mpd-agl"]
CMD ["demo"]
