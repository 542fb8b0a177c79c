# Weir, Airflow and Spark in one image: every process of a deployment has the same Python and the same code.
# tests/test_image.py checks each line against the repository; docs/decisions/0012 says why it is as it is.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

# Some packages come as sources: they are built with the setuptools that the lock names.
COPY requirements.lock include/weir_dev/requirements.py /tmp/lock/
RUN cd /tmp/lock \
    && python requirements.py requirements.lock setuptools > build.txt \
    && python requirements.py requirements.lock > runtime.txt \
    && pip install --no-cache-dir --no-deps --require-hashes --requirement build.txt \
    && pip install --no-cache-dir --no-deps --require-hashes --no-build-isolation --requirement runtime.txt

WORKDIR /opt/weir
COPY pyproject.toml README.md ./
COPY include include
COPY plugins plugins
COPY spark_jobs spark_jobs
COPY dags dags
# Compiled here, because the user below cannot write here, and each task is a new process.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && echo /opt/weir/spark_jobs > "$(python -c 'import site; print(site.getsitepackages()[0])')/weir_examples.pth" \
    && python -m compileall -q include plugins spark_jobs

ENV AIRFLOW_HOME=/home/weir/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/weir/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    GX_ANALYTICS_ENABLED=false \
    PYSPARK_PYTHON=/usr/local/bin/python3 \
    PYTHONUNBUFFERED=1

# A volume that is mounted here begins with this folder's owner.
RUN useradd --create-home weir \
    && install --directory --owner=weir --group=weir /var/lib/weir
USER weir
WORKDIR /home/weir
CMD ["weir", "--help"]
